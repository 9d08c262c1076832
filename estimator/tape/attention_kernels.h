// PyTorch's kernels of attention, on a tape. Sources: aten/src/ATen/native/transformers/cuda/attention.cu,
// attention_backward.cu, flash_attn/flash_api.cpp.
#pragma once

#include <cmath>

#include "estimator/tape/operators.h"

namespace spillway::estimator {

// A flash kernel serves heads up to this size.
constexpr double kFlashHead = 256;

inline double rounded_up(double value, double to) {
  return std::ceil(value / to) * to;
}

// Sizes of a call, in tokens of a sample.
struct AttentionCall {
  double samples = 0;
  double heads = 0;
  double key_heads = 0;
  double head_dim = 0;
  double queries = 0;
  double keys = 0;
};

// For 16 bits, without a mask.
Tensor flash_attention(const Operators& op, const AttentionCall& call, const Tensor& query, const Tensor& key,
                       const Tensor& value);
// With as many key as query heads. `mask`: of numbers, of one sample where it asks for a gradient; empty:
// none.
Tensor efficient_attention(const Operators& op, const AttentionCall& call, const Tensor& query,
                           const Tensor& key, const Tensor& value, const Tensor& mask);

}  // namespace spillway::estimator
