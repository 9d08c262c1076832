// train.method and what goes with it: how samples are trained on.
#pragma once

#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

// After the model, its code and its adapter have been read.
void read_preference(KeyValues& values, TrainingRun& run);

}  // namespace spillway::estimator
