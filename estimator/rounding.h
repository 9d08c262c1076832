// Tells what the allocator adds to a run's tensors, found by playing its allocations through the allocator's
// rules: states, one step, the optimizer's states, a second step.
#pragma once

#include "estimator/buckets/states.h"
#include "estimator/run.h"
#include "estimator/stages.h"

namespace spillway::estimator {

struct RoundingBytes {
  double steady = 0;
  double peak = 0;  // at the end of the forward pass, of everything held then
};

// `activations` are the tensors held at the end of the forward pass, in the order they are made.
RoundingBytes allocator_rounding(const TrainingRun& run, const std::vector<RankWeight>& weights,
                                 const std::vector<double>& activations);

}  // namespace spillway::estimator
