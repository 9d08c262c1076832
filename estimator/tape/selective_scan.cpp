// The first Mamba as transformers computes it where no kernels of mamba-ssm and causal-conv1d are installed:
// from token to token, with a state of its own each, and factors for every token, channel and state
// (modeling_mamba.py, slow_forward of 4.57 and mamba_selective_scan of 5.17; Falcon-Mamba and Jamba alike).
#include <algorithm>

#include "estimator/tape/layers.h"
#include "estimator/tape/mixer_operators.h"

namespace spillway::estimator {
namespace {

// Of longer sequences several tokens are played as one, whose tensors are as many times as large.
constexpr double kMostPlayedTokens = 128;

}  // namespace

std::vector<Tensor> Layers::normed_inputs(const SelectiveScan& scan, std::vector<Tensor> made) {
  if (scan.norms == SelectiveScan::Norms::kNone) return made;
  for (Tensor& each : made) {
    const double width = each.elements / tokens_;
    each = scan.norms == SelectiveScan::Norms::kWithWeights ? norm(each, width)
                                                            : norm_without_weights(each, width);
  }
  return made;
}

Tensor Layers::selective_scan(const SelectiveScan& scan, const Tensor& given) {
  const auto inner = static_cast<double>(scan.inner), state = static_cast<double>(scan.state);
  const auto rank = static_cast<double>(scan.rank);
  const double one = tokens_ * inner;
  const Tensor all = op_.view_of_transposed(projected(given, "in_proj", hidden_, 2 * inner, scan.bias));
  const std::vector<Tensor> parts = op_.split(all, {one, one});
  Tensor x = convolved(parts[0], static_cast<double>(scan.convolution), scan.convolution_bias);
  x = without_past(op_.activation(x));
  // Tokens stand behind channels in memory: products copy them, unless there is one sample.
  const auto factor = [&](const Tensor& of) { return batch_ > 1 ? op_.copy(of) : of; };
  const Tensor selected = projected(factor(x), "x_proj", inner, rank + 2 * state, false);
  const std::vector<Tensor> made =
      normed_inputs(scan, op_.split(selected, {tokens_ * rank, tokens_ * state, tokens_ * state}));
  Tensor step = projected(made[0], "dt_proj", rank, inner, code_.unrolled_mixers);
  if (!code_.unrolled_mixers)
    step = op_.add(step, op_.cast(tape_.weight(inner, weight_element_, trained_), step.element));
  step = op_.activation(op_.for_power(step));
  Tensor out = scanned(scan, x, step, made);
  const Tensor skip = tape_.weight(inner, weight_element_, trained_);
  out = op_.add(out, op_.multiply(x, code_.unrolled_mixers ? skip : op_.cast(skip, 4)));
  out = op_.multiply(out, op_.activation(parts[1]));
  out = code_.unrolled_mixers ? out : op_.cast(out, given.element);
  return projected(factor(out), "out_proj", inner, hidden_, scan.bias);
}

// `made`: what steps are made of, what goes into states and what comes out of them.
Tensor Layers::scanned(const SelectiveScan& scan, const Tensor& x, const Tensor& step,
                       const std::vector<Tensor>& made) {
  const auto state = static_cast<double>(scan.state);
  const double whole = x.elements * state;
  const Tensor weight = tape_.weight(static_cast<double>(scan.inner) * state, weight_element_, trained_);
  const Tensor rate = op_.scale(op_.activation_of_result(op_.cast(weight, 4)));
  const Tensor decay = op_.activation_of_result(outer_product(op_, rate, step, whole));
  const Tensor given = outer_product(op_, op_.cast(made[1], 4), step, whole);
  const Tensor fed = op_.multiply(given, op_.cast(x, 4));

  const double played = std::min(sequence_, kMostPlayedTokens);
  const auto part = [&](const Tensor& of) { return op_.slice(of, of.elements / played); };
  const double element = op_.autocast() ? 4 : weight_element_;
  Tensor states = tape_.make(whole / played, element);
  std::vector<Tensor> out;
  for (int i = 0; i < static_cast<int>(played); ++i) {
    states = op_.add(op_.multiply(part(decay), states), part(fed));
    out.push_back(op_.product(op_.for_product(op_.cast(states, element)), op_.for_product(part(made[2])),
                              x.elements / played));
  }
  if (caches()) cache_.push_back(tape_.make(whole / sequence_, 4).data);
  return op_.concatenate(out);
}

}  // namespace spillway::estimator
