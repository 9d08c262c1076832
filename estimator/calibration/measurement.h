// Holds what an allocator counted in one process on one device, whoever the allocator was.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "driver/status.h"

namespace spillway::estimator {

// Bytes.
struct Counter {
  double current = 0;
  double peak = 0;
};

struct Measurement {
  std::string source;                // the file it was read from
  std::string hardware;              // the device's name; empty where the file has none
  double memory_bytes = 0;           // of the device; 0 where the file does not say
  std::optional<int64_t> rank = {};  // in the job
  int64_t process_id = 0;
  int64_t device = 0;
  int64_t time_seconds = 0;  // since 1970; 0 where the file does not say

  // requested <= allocated <= active <= reserved. A trace knows only what was requested: the others are the
  // same.
  Counter requested, allocated, active, reserved, inactive_split;
  double cached_free_bytes = 0;  // of whole segments, now
  int64_t retries = 0;           // flushes before an allocation succeeded
  int64_t ooms = 0;
  // Holds what the program said its bytes are: parameter_bytes, gradient_bytes, buffer_bytes,
  // optimizer_bytes, outside_bytes (spillway.annotate).
  std::map<std::string, double> annotations = {};
  std::vector<double> blocks = {};  // requested bytes of the blocks that were live
  bool blocks_at_peak = false;      // when requests peaked; else when the file was written

  double annotation(const std::string& name) const;  // 0 where there is none
};

// A Spillway dump, or torch.cuda.memory_stats() as JSON (flat or nested): one for each device that had
// anything allocated. Errors: neither of them, a missing counter, nothing allocated; they do not name a file.
Result<std::vector<Measurement>> read_counters(const std::string& text);

}  // namespace spillway::estimator
