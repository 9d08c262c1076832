// Holds what a replay found out about one trace, and how it is written: JSON by the contract, a table for
// people, Markdown for comparisons.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/replay/run.h"

namespace spillway {

struct ReplayRow {
  std::string trace;
  int device = 0;
  int devices_with_events = 1;
  AllocatorKind allocator = AllocatorKind::kSpillway;
  Completion completion = Completion::kInstant;
  uint32_t repeats = 1;
  uint64_t events = 0;  // allocations and frees of one pass
  uint64_t peak_live_bytes = 0;

  std::optional<uint64_t> capacity_bytes;  // of the run that the counters below are from; empty: unlimited
  RunResult run;
  double ns_per_event = 0;

  // With --capacity min only. A capacity is empty where no device is large enough.
  bool searched = false;
  std::optional<uint64_t> min_capacity_bytes;
  std::optional<uint64_t> stall_free_capacity_bytes;
  uint64_t unlimited_peak_reserved_bytes = 0;
  uint64_t unlimited_driver_calls = 0;
  uint64_t unlimited_steady_driver_calls = 0;
};

// An array with one object for each row.
std::string to_json(const std::vector<ReplayRow>& rows);

// A block for each trace, in 80 columns, and a line for each row that ran out of memory; docs/trace.md says
// what the columns are.
std::string to_text(const std::vector<ReplayRow>& rows);

}  // namespace spillway
