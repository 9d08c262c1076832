// The text of an out-of-memory error, in about ten lines: what was asked for, why what is free did not serve,
// what to do next, who holds the memory, and what was tried. Its figures are those of a dump, exact in
// brackets; a figure before '=' is the sum of those after it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stats/device_stats.h"
#include "stats/dump.h"
#include "stats/slow_path_log.h"

namespace spillway {

struct OomRequest {
  uint64_t requested_bytes = 0;
  int device = 0;
  uint64_t most_reserved_bytes =
      0;                      // what reserved memory may reach now: limit, device, and what others left
  uint64_t device_bytes = 0;  // by the driver's account, or 0 where it does not say
  uint64_t device_free_bytes = 0;
  std::vector<PoolRow> pools{};  // without regions, which have names
  SlowPath climb{};              // what was tried for it
};

// Begins "CUDA out of memory. Tried to allocate", which programs search for.
std::string oom_report(const OomRequest& request, const DeviceStats& stats);
// A line of the program, and what it holds.
struct OomSite {
  std::string name;
  int64_t bytes = 0;
  int64_t blocks = 0;
};

// The line after it: the largest of them; empty for none.
std::string oom_sites(std::vector<OomSite> sites);
// The lines after that: the regions that hold most of the device, and what lies elsewhere.
std::string oom_tiers(DumpTiers tiers);

}  // namespace spillway
