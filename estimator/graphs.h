// Megatron-LM's captured CUDA graphs. A graph reads and writes the same addresses in each replay, so what
// goes into it stays; what it makes lies in a pool that all of them share, is free between replays as far as
// the allocator counts, and can be used by nothing else.
#pragma once

#include "estimator/estimate.h"
#include "estimator/stages.h"

namespace spillway::estimator {

// Adds to a rank class that was counted without graphs what stays for them, and makes its peak the largest of
// the steps before they are captured, of capturing them and of the steps that replay them. `moments` are the
// bytes of the optimizer's states, which come with the first step.
void add_graphs(const TrainingRun& run, const Stage& stage, double moments, RankClass& rank);

}  // namespace spillway::estimator
