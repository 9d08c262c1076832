// The answer for one run: bytes by bucket and by phase for each rank class, and how sure they are. Pure
// arithmetic: no I/O, no clock, microseconds for one run; safe to call from any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/buckets/bucket.h"
#include "estimator/run.h"

namespace spillway::estimator {

struct Phase {
  const char* name;
  double bytes;
};

// Holds the times of one step. Exposed is what compute does not hide: max(0, transfer - overlap).
struct StepTime {
  double transfer_seconds = 0;  // hops are pipelined: the slowest counts
  double exposed_seconds = 0;
  double compute_seconds = 0;  // 0: not known
};

// Ranks of one pipeline stage; all of them hold the same.
struct RankClass {
  int64_t stage = 0;
  int64_t parameters = 0;  // elements on one rank
  Buckets steady = {};     // between steps
  Buckets peak = {};       // beside or instead of them at the peak; may be negative where less is held
  double steady_bytes = 0;
  double peak_bytes = 0;        // the largest phase of a later step
  double peak_step1_bytes = 0;  // of the first step: the optimizer's states come at its end
  double pool_bytes = 0;        // free memory of captured graphs' pools that nothing else may use at the peak
  double engine_bytes = 0;      // of the peak, what an inference engine takes with an allocator of its own
  std::vector<Phase> phases = {};
  Buckets host = {};  // what lies in host memory for this rank, staging buffers included
  Buckets nvme = {};
  StepTime time = {};
  double lowest_bytes = 0;  // the interval that should hold the measured peak
  double highest_bytes = 0;

  // What the run's allocator must have room for.
  double held_bytes() const { return peak_bytes + pool_bytes - engine_bytes; }
};

struct Estimate {
  int64_t parameters = 0;  // of the whole model
  std::vector<RankClass> ranks = {};
  size_t peak_rank = 0;  // index of the rank class with the highest peak

  const RankClass& peak() const { return ranks[peak_rank]; }
};

// Errors: sizes that contradict each other.
Result<Estimate> estimate(const TrainingRun& run);

// estimate(), or the same with what was learned from measurements.
using Estimator = std::function<Result<Estimate>(const TrainingRun&)>;

}  // namespace spillway::estimator
