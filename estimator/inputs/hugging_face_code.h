// Reads what of transformers' code for a model decides its activations: by its type, and by the keys of its
// file that change it.
#pragma once

#include <string>

#include "estimator/inputs/key_values.h"
#include "estimator/model.h"
#include "estimator/model_code.h"

namespace spillway::estimator {

// `known` is false where the type's code is not written down; what is said of its attention and of its
// checkpoints holds all the same.
ModelCode read_code(KeyValues& values, const std::string& prefix, const Model& model);

// The same as read_code of a tower of images, from its part of the file.
ModelCode read_vision_code(KeyValues& values, const std::string& prefix, const Tower& tower);

}  // namespace spillway::estimator
