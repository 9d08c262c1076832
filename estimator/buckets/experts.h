// Mixture-of-experts activations: what routing copies and experts keep.
#pragma once

#include "estimator/run.h"

namespace spillway::estimator {

// For one layer and microbatch; `tokens` on this rank before sequence parallelism.
double routed_expert_bytes(const Run& run, const Experts& block, double tokens, double hidden,
                           double element_bytes);

// The all-gather dispatcher's one buffer with the tokens of all expert ranks.
double gathered_token_bytes(const Run& run, double tokens, double hidden, double element_bytes);

}  // namespace spillway::estimator
