#include "estimator/inputs/fp8.h"

namespace spillway::estimator {

// Transformer Engine, pytorch/tensor/: rows for the forward and columns for the backward pass of every
// matrix, and of each kept input what the backward pass multiplies. 32 elements share a scale of one byte in
// mxfp8, 128 an fp32 scale in blocks. common/recipe: delayed scaling looks back on 1024 steps unless told.
Fp8 fp8_recipe(std::string_view name) {
  constexpr double kBothWays = 2;
  if (name == "delayed") return {kBothWays, 1, 1024};
  if (name == "tensorwise") return {kBothWays, 1, 0};
  if (name == "blockwise") return {kBothWays * (1 + 4.0 / 128), 1 + 4.0 / 128, 0};
  if (name == "mxfp8") return {kBothWays * (1 + 1.0 / 32), 1 + 1.0 / 32, 0};
  return {};
}

}  // namespace spillway::estimator
