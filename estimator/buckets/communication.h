// Adds up what data parallelism holds beside the model states: gradient buckets, gathered weights.
#pragma once

#include "estimator/buckets/bucket.h"
#include "estimator/buckets/states.h"
#include "estimator/run.h"

namespace spillway::estimator {

// True where buffers that live from one step to the next hold the gradients: DDP's buckets from the first
// backward pass on, and the flat buffer of DeepSpeed's stage 3.
bool gradients_live_in_buckets(const TrainingRun& run);

// Held from the first step on.
Buckets persistent_communication(const TrainingRun& run, const StateBytes& states);

// Held while a microbatch is under way.
Buckets transient_communication(const TrainingRun& run, const RankParameters& parameters);

// Weights and gradients of one layer on their way out of the backward pass, before they are sharded: its
// 16-bit gradients and the input of their reduction.
double layer_reduction_bytes(const TrainingRun& run);

// Returns what the optimizer step makes beside the states.
double step_temporary_bytes(const TrainingRun& run, const StateBytes& states);

}  // namespace spillway::estimator
