// Adds up what neither the model nor its activations explain: workspaces, buffers of communication, masks.
#pragma once

#include "estimator/buckets/bucket.h"
#include "estimator/run.h"
#include "estimator/stages.h"

namespace spillway::estimator {

// Held from the first step on.
Buckets persistent_overhead(const TrainingRun& run, const Stage& stage);

// Held while a microbatch is under way.
Buckets transient_overhead(const TrainingRun& run, const Stage& stage);

}  // namespace spillway::estimator
