// Dumps as text for Prometheus: its server, its textfile collector and others read it.
#pragma once

#include <string>
#include <vector>

#include "stats/dump.h"

namespace spillway {

// Each sample bears the labels pid, rank and device; a family appears once, for all dumps together. Empty for
// none. Segments, pools and climbs of the dumps are not looked at, and may be left out. Pure; throws
// std::bad_alloc only.
std::string prometheus_text(const std::vector<Dump>& dumps);

}  // namespace spillway
