// Finds what grows with every step of a program that repeats itself: leaks, and caches without a bound.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/report/history.h"
#include "cli/report/view.h"

namespace spillway {

struct Steps {
  std::string how;             // "marked by Optimizer.step", "every 512 allocations"; empty: none found
  std::vector<size_t> starts;  // indices of events, ascending
};

// Marks of the program that come again and again, else the period of what it allocates: the shortest after
// which nine of ten allocations have the size and the place they had before, seen three times at least.
// Cost: the number of allocations times a bounded number of candidates.
Steps find_steps(const MemoryView& view);

struct GrowingRow {
  std::string name;  // of the call site, or "512 B to 1 KiB" of a size class
  bool is_site = false;
  uint64_t first_bytes = 0;  // at the start of the second step
  uint64_t last_bytes = 0;   // at the start of the last
  double bytes_per_step = 0;
};

struct Growth {
  Steps steps;
  std::vector<GrowingRow> rows;  // the fastest first
};

// Sites and classes with more live bytes at the start of each step than of the one before it. The first step
// does not count: it makes what the others use. Empty rows where there are fewer than four steps.
Growth find_growth(const MemoryView& view, History& history);

}  // namespace spillway
