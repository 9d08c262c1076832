// Live pages as JSON for scripts: docs/schema/top.schema.json.
#pragma once

#include <cstdint>
#include <string>

#include "stats/live_reader.h"

namespace spillway {

// One document with a line end. `now_ns` is since 1970.
std::string top_json(const LiveListing& listing, int64_t now_ns);

}  // namespace spillway
