// Weights that a checkpoint holds in few bits: `quantization_config` of a Hugging Face config, and
// `model.weights`.
#pragma once

#include <string>

#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

// Fills `run.training.frozen` and says in its notes what that leaves out. Complains of a method that is not
// modelled, by its name.
void read_quantization(KeyValues& values, const std::string& prefix, TrainingRun& run);

}  // namespace spillway::estimator
