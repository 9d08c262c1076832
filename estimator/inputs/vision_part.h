// The tower of images in front of a language model: composite types of transformers, whose file has a
// `vision_config` beside the language part.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

// Types whose tower and connector are written down.
std::vector<std::string_view> vision_language_types();

// Puts the tower of `whole`, a composite model's type, before the language part. False where it is not
// written down or the file has none. Complains through `values`.
bool add_vision(KeyValues& values, const std::string& prefix, const std::string& whole, Model& model,
                Notes& notes);

// How many images a sample has, of how many pixels, and whether their tower is trained: train.images,
// train.image_pixels, train.freeze_vision. Complains through `values`.
void read_images(KeyValues& values, TrainingRun& run);

}  // namespace spillway::estimator
