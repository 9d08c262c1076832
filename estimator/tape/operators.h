// PyTorch's operators on a tape: what each makes, what its node keeps for the backward pass, and what the
// backward formula makes. Sources: tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp,
// aten/src/ATen/autocast_mode.{h,cpp} and the kernels that are named beside an operator. Shapes are known to
// the caller: an operator is told sizes in elements.
#pragma once

#include <cstdint>

#include "estimator/tape/tape.h"

namespace spillway::estimator {

// A matrix of weights with its bias, and the input and output widths.
struct Matrix {
  Tensor weight = {};
  Tensor bias = {};
  double in = 0;
  double out = 0;
  bool quantised = false;  // a 16-bit copy is made for each product
  bool transposed = true;  // as nn.Linear keeps it; Conv1D does not
  bool grouped = false;    // experts' in one: grouped_mm, which autocast does not know
  bool viewed = false;     // products read a view of it, of which autocast keeps no copy
};

class Operators {
 public:
  // `autocast`: matrix products and attention run in 16 bits whatever comes in.
  // `float16`: 16 bits are those of IEEE, whose softmax in fp32 is one kernel.
  Operators(Tape& tape, bool autocast, bool float16 = false)
      : tape_(tape), autocast_(autocast), float16_(float16) {}

  Tape& tape() const { return tape_; }
  bool autocast() const { return autocast_; }

  // x W^T + b over the last dimension.
  Tensor linear(const Tensor& x, const Matrix& matrix) const;
  // x with `weight` and `bias`; the result has `elements`.
  Tensor convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, double elements) const;
  // Autocast's cast of what goes into a product.
  Tensor for_product(const Tensor& x) const;

  Tensor add(const Tensor& a, const Tensor& b) const;
  // a += b, into a's storage.
  Tensor add_in_place(Tensor a, const Tensor& b) const;
  Tensor multiply(const Tensor& a, const Tensor& b) const;
  // a / b, both of which keep both.
  Tensor divide(const Tensor& a, const Tensor& b) const;
  // A batched product of matrices, as they are: the caller casts.
  Tensor product(const Tensor& a, const Tensor& b, double elements) const;
  // With a number, or a tensor that needs no gradient and is held elsewhere.
  Tensor scale(const Tensor& x) const { return scale(x, x.element); }
  // The same with a tensor of wider elements.
  Tensor scale(const Tensor& x, double element) const;
  // a where a condition holds, and b elsewhere.
  Tensor where(const Tensor& a, const Tensor& b) const;
  // With a vector of weights over the last dimension.
  Tensor multiply_by_weight(const Tensor& x, const Tensor& weight) const;
  Tensor cast(const Tensor& x, double element) const;
  // With a function whose gradient needs its input (SiLU, GELU), or its result (ReLU, tanh, sigmoid).
  Tensor activation(const Tensor& x) const;
  Tensor activation_of_result(const Tensor& x) const;
  // Autocast's cast of what goes into a power.
  Tensor for_power(const Tensor& x) const { return autocast_ ? cast(x, 4) : x; }
  // x to a power that is a number.
  Tensor power(const Tensor& x) const;
  // The mean over the last dimension of `rows` rows.
  Tensor mean(const Tensor& x, double rows) const;
  // Also a norm over groups of channels, of which there are `rows`. `casts`: autocast runs it in fp32.
  Tensor layer_norm(const Tensor& x, const Tensor& weight, double rows, bool casts = true) const;
  // PyTorch's own kernel, with a weight for each element of a row.
  Tensor rms_norm(const Tensor& x, const Tensor& weight, double rows) const;
  Tensor dropout(const Tensor& x) const;
  // x itself; what `kept` holds is there until its gradient is.
  Tensor beside(const Tensor& x, const Tensor& kept) const;
  // A copy in another layout, or into a larger tensor's place.
  Tensor copy(const Tensor& x) const;
  // Another number of elements from the same places: nearest neighbours, zeros around.
  Tensor resampled(const Tensor& x, double elements) const;
  // A part of a tensor's last dimension, whose gradient is a whole tensor of zeros beside it.
  Tensor slice(const Tensor& x, double elements) const;
  // `count` parts at once, whose gradients are put together.
  std::vector<Tensor> split(const Tensor& x, const std::vector<double>& elements) const;
  Tensor concatenate(const Tensor& a, const Tensor& b) const;
  Tensor concatenate(const std::vector<Tensor>& parts) const;
  // A copy of `x` with `rows` in the place of some of its own (masked_scatter).
  Tensor scatter(const Tensor& x, const Tensor& rows) const;
  // A view whose gradient has to be copied into the layout of what was viewed.
  Tensor view_of_transposed(const Tensor& x) const;
  // The same storage, changed in place, whose gradient is a tensor of its own (masked_fill_).
  Tensor in_place(const Tensor& x) const;
  // Sums over rows; the gradient is expanded, and copied where it is viewed.
  Tensor sum_of_rows(const Tensor& x, double elements) const;
  Tensor softmax(const Tensor& x, double element) const;
  // Rows of a table for `tokens`.
  Tensor embedding(const Tensor& table, double tokens, double width) const;
  // Samples, which no gradient is asked of, times the weights.
  Tensor patches(const Tensor& weights, double elements) const;
  // The loss of fp32 logits: log-softmax and negative log-likelihood.
  Tensor cross_entropy(const Tensor& logits) const;
  // The mean of squared differences to a tensor that needs no gradient.
  Tensor squared_error(const Tensor& x) const;

 private:
  Tensor weight_for_product(const Tensor& weight, bool viewed = false) const;

  Tape& tape_;
  bool autocast_;
  bool float16_;
};

}  // namespace spillway::estimator
