// Dumps as text of Prometheus' exposition format 0.0.4, which its server, its textfile collector and others
// read. Names and units by its conventions: bytes and seconds, `_total` for what only grows.
//
// Each sample bears the labels pid, rank, device and uuid; a family appears once, for all dumps together.
// Pure; throws std::bad_alloc only.
#pragma once

#include <string>
#include <vector>

#include "stats/dump.h"

namespace spillway {

// Segments, pools and climbs of the dumps are not looked at, and may be left out.
std::string prometheus_text(const std::vector<Dump>& dumps);

}  // namespace spillway
