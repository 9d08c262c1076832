// Mixture-of-experts activations: what routing copies and experts keep.
#pragma once

#include <vector>

#include "estimator/buckets/activations.h"
#include "estimator/run.h"

namespace spillway::estimator {

// For one layer and microbatch, appended to `out`; `tokens` on this rank before sequence parallelism.
void append_routed_tensors(const TrainingRun& run, const Experts& block, double tokens,
                           std::vector<SavedTensor>& out);

// The all-gather dispatcher's one buffer with the tokens of all expert ranks.
double gathered_token_bytes(const TrainingRun& run, double tokens);

}  // namespace spillway::estimator
