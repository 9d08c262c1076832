// Weights that a checkpoint holds in few bits: `quantization_config` of a Hugging Face config, and
// `model.weights`.
#pragma once

#include <string>

#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

struct QuantisedWeights {
  FrozenWeights weights = {};
  std::string what = {};  // the key that says so, and its value
};

// Complains of a method that is not modelled, by its name.
QuantisedWeights read_quantised_weights(KeyValues& values, const std::string& prefix, Notes& notes);

// Fills `run.training.frozen` with these and says in its notes what that leaves out.
void read_quantization(KeyValues& values, const std::string& prefix, TrainingRun& run);

}  // namespace spillway::estimator
