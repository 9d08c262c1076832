// The setting that just fits: the largest batch or sequence, the fewest GPUs, the smallest tensor-parallel
// size, the weakest recomputation. Everything else stays as the run says.
#pragma once

#include <optional>
#include <string>

#include "driver/status.h"
#include "estimator/estimate.h"
#include "estimator/verdict.h"

namespace spillway::estimator {

enum class Unknown {
  kBatch,      // micro-batch, up to kMostBatch
  kSequence,   // tokens of every tower, up to the model's learned positions or kMostSequence
  kGpus,       // whole replicas of the model, up to kMostGpus
  kTensor,     // on the GPUs there are, or on as many as it needs
  kRecompute,  // none, selective, full
};

constexpr int64_t kMostBatch = int64_t{1} << 20;
constexpr int64_t kMostSequence = int64_t{1} << 24;
constexpr int64_t kMostGpus = int64_t{1} << 16;
constexpr int64_t kMostTensor = 1024;

// "batch", "seq", "gpus", "tp", "recompute".
Result<Unknown> unknown_named(const std::string& name);

struct Setting {
  std::string text;  // as a key of a run file: "train.micro_batch = 12"
  TrainingRun run;
  Estimate estimate;
};

struct Solution {
  std::optional<Setting> fits;    // none where no setting does
  std::optional<Setting> misses;  // its neighbour that does not; none where the limit is reached first
};

// Cost: some dozens of estimates; up to kMostTensor for kTensor. Errors: sizes of the run that contradict
// each other whatever the setting.
Result<Solution> solve(const TrainingRun& run, Unknown unknown, const GpuMemory& gpu,
                       const Estimator& estimator);

}  // namespace spillway::estimator
