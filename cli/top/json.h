// Live pages as JSON for scripts: docs/schema/top.schema.json.
#pragma once

#include <nlohmann/json.hpp>

#include "stats/live_reader.h"

namespace spillway {

// `now_ns` is since 1970.
nlohmann::ordered_json top_json(const LiveListing& listing, int64_t now_ns);

}  // namespace spillway
