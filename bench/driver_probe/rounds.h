// Rounds of memory management: how long each call of them took.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/driver_probe/sections.h"

namespace spillway::probe {

// Times of rounds of reserve, create, map, access, unmap, release and free, in ns.
struct Round {
  std::vector<uint64_t> reserve, create, map, access, unmap, release, free;
};

// Adds one round over `count` handles of `bytes` each, with one call of cuMemSetAccess and one of cuMemUnmap
// for all.
void run_round(const Session& session, size_t count, size_t bytes, Round& round,
               Sharing sharing = Sharing::kNone);

// The medians of rounds over `count` handles, and what a whole round takes by them.
Json round_json(const Round& round, size_t count);

}  // namespace spillway::probe
