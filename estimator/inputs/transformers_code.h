// Decides whether a run's activations are counted by transformers' own code.
#pragma once

#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

// Reads that code into a run of the framework "transformers", where it can be played; else the run becomes
// one of lean code ("pytorch"), which a warning says. Complains of what transformers refuses, and where lean
// code is not what was asked for.
void read_transformers(KeyValues& values, TrainingRun& run);

}  // namespace spillway::estimator
