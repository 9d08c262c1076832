// The phases of a training step on one rank class. The peak is the largest phase, never a sum of all buckets:
// gradients of a step without accumulation come while activations go, and optimizer states come with the
// first step.
#pragma once

#include "estimator/estimate.h"
#include "estimator/stages.h"

namespace spillway::estimator {

RankClass rank_class(const TrainingRun& run, const Stage& stage);

}  // namespace spillway::estimator
