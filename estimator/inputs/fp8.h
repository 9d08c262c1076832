// Recipes of Transformer Engine as bytes.
#pragma once

#include <string_view>

#include "estimator/run.h"

namespace spillway::estimator {

// "delayed", "tensorwise", "blockwise" or "mxfp8"; any other name is no fp8.
Fp8 fp8_recipe(std::string_view name);

}  // namespace spillway::estimator
