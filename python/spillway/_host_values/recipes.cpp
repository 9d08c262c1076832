// Operators that have kernels for CUDA alone, and those whose kernels for the host refuse some arguments.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

#include "operators.h"

namespace spillway::values {
namespace {

using Values = std::vector<IValue>;

// ---- Softmax of 16-bit numbers with results of 32 bits, forward and backward

template <at::Tensor (*softmax)(const at::Tensor&, int64_t, bool)>
Values softmax_of(const Values& arguments) {
  const at::Tensor input = arguments[0].toTensor();
  const bool widens = arguments[2].toBool();
  return {softmax(widens ? input.to(at::kFloat) : input, arguments[1].toInt(), false)};
}

template <at::Tensor (*backward)(const at::Tensor&, const at::Tensor&, int64_t, at::ScalarType)>
Values softmax_backward_of(const Values& arguments) {
  const at::Tensor gradient = arguments[0].toTensor();
  return {backward(gradient, arguments[1].toTensor(), arguments[2].toInt(), gradient.scalar_type())};
}

// ---- Attention

struct Attention {
  at::Tensor query, key, value;  // of 32 bits and more; with as many heads as the query has
  at::Tensor bias;
  bool is_causal = false;
  double scale = 1;
  int64_t groups = 1;  // heads of the query for each of the key
};

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

Attention attention_of(const IValue& query, const IValue& key, const IValue& value, const IValue& bias,
                       bool is_causal, const IValue& scale) {
  Attention all;
  all.query = widened(query.toTensor());
  all.groups = all.query.size(1) / key.toTensor().size(1);
  all.key = widened(key.toTensor()).repeat_interleave(all.groups, 1);
  all.value = widened(value.toTensor()).repeat_interleave(all.groups, 1);
  if (bias.isTensor() && bias.toTensor().defined()) all.bias = widened(bias.toTensor());
  all.is_causal = is_causal;
  all.scale = scale.isNone() ? 1 / std::sqrt(static_cast<double>(all.query.size(-1))) : scale.toDouble();
  return all;
}

at::Tensor scores_of(const Attention& of) {
  at::Tensor scores = at::matmul(of.query, of.key.transpose(-2, -1)) * of.scale;
  if (of.bias.defined()) scores = scores + of.bias;
  if (of.is_causal) {
    const at::Tensor later = at::ones({scores.size(-2), scores.size(-1)}, at::kBool).triu(1);
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  }
  return scores;
}

// A row that may look at nothing weighs nothing.
at::Tensor weights_of(const at::Tensor& scores) {
  return at::softmax(scores, -1).masked_fill(at::isneginf(scores).all(-1, true), 0);
}

at::Tensor summed_over_groups(const at::Tensor& gradient, int64_t groups) {
  return groups == 1 ? gradient : gradient.unflatten(1, {-1, groups}).sum(2);
}

struct Gradients {
  at::Tensor query, key, value, bias;
};

Gradients gradients_of(const Attention& of, const at::Tensor& gradient) {
  const at::Tensor weights = weights_of(scores_of(of));
  const at::Tensor of_weights = at::matmul(gradient, of.value.transpose(-2, -1));
  const at::Tensor of_scores = weights * (of_weights - (of_weights * weights).sum(-1, true));
  Gradients out;
  out.query = at::matmul(of_scores, of.key) * of.scale;
  out.key = summed_over_groups(at::matmul(of_scores.transpose(-2, -1), of.query) * of.scale, of.groups);
  out.value = summed_over_groups(at::matmul(weights.transpose(-2, -1), gradient), of.groups);
  if (of.bias.defined()) out.bias = at::sum_to(of_scores, of.bias.sizes());
  return out;
}

// Without the dropout, of which the kernels keep no mask.
Values efficient_attention(const Values& a) {
  const Attention of = attention_of(a[0], a[1], a[2], a[3], a[6].toBool(), a[7]);
  const at::Tensor scores = scores_of(of);
  at::Tensor sums;
  if (a[4].toBool()) {
    const int64_t rows = scores.size(-2);
    sums = at::constant_pad_nd(at::logsumexp(scores, -1), {0, (rows + 31) / 32 * 32 - rows});
  }
  return {at::matmul(weights_of(scores), of.value), sums, at::Tensor(), at::Tensor()};
}

Values efficient_attention_backward(const Values& a) {
  const Attention of = attention_of(a[1], a[2], a[3], a[4], a[11].toBool(), a[12]);
  const Gradients found = gradients_of(of, widened(a[0].toTensor()));
  return {found.query, found.key, found.value, found.bias};
}

Values flash_attention(const Values& a) {
  const Attention of = attention_of(a[0], a[1], a[2], IValue(), a[4].toBool(), a[6]);
  const at::Tensor scores = scores_of(of);
  Values results(9, at::Tensor());
  results[0] = at::matmul(weights_of(scores), of.value);
  results[1] = at::logsumexp(scores, -1);
  return results;
}

Values flash_attention_backward(const Values& a) {
  const Attention of = attention_of(a[1], a[2], a[3], IValue(), a[11].toBool(), a[14]);
  const Gradients found = gradients_of(of, widened(a[0].toTensor()));
  return {found.query, found.key, found.value};
}

// ---- Products with results of another type

Values mm(const Values& a) {
  return {at::mm(a[0].toTensor().to(at::kFloat), a[1].toTensor().to(at::kFloat))};
}
Values bmm(const Values& a) {
  return {at::bmm(a[0].toTensor().to(at::kFloat), a[1].toTensor().to(at::kFloat))};
}

// ---- Layers

Values depthwise_convolution(const Values& a) {
  const at::Tensor input = a[0].toTensor();
  const at::Tensor weight = a[1].toTensor();
  const auto bias = a[3].toOptional<at::Tensor>();
  const std::vector<int64_t> none(a[4].toIntVector().size(), 0);
  return {at::convolution(input, weight, bias, a[4].toIntVector(), a[5].toIntVector(), a[6].toIntVector(),
                          false, none, input.size(1))};
}

// The host's kernel counts floating-point numbers alone.
Values histogram(const Values& a) {
  const at::Tensor input = a[0].toTensor();
  return {at::histc(input.is_floating_point() ? input : input.to(at::kDouble), a[1].toInt(), a[2].toScalar(),
                    a[3].toScalar())};
}

// The host's kernel needs what only the host's forward pass keeps.
Values log_sigmoid_backward(const Values& a) {
  const at::Tensor input = a[1].toTensor();
  return {a[0].toTensor() * at::sigmoid(-input)};
}

// grad_out, input, normalized_shape, rstd, weight, output_mask
Values rms_norm_backward(const Values& a) {
  const at::Tensor gradient = widened(a[0].toTensor());
  const at::Tensor input = widened(a[1].toTensor());
  const at::Tensor scale = widened(a[3].toTensor());
  const auto weight = a[4].toOptional<at::Tensor>();
  const auto count = static_cast<int64_t>(a[2].toIntVector().size());
  std::vector<int64_t> inner;
  std::vector<int64_t> outer;
  for (int64_t i = 0; i < input.dim(); ++i) (i < input.dim() - count ? outer : inner).push_back(i);
  const at::Tensor normal = input * scale;
  const at::Tensor weighted =
      weight.has_value() && weight->defined() ? gradient * widened(*weight) : gradient;
  const at::Tensor of_input = scale * (weighted - normal * (weighted * normal).mean(inner, true));
  const at::Tensor product = gradient * normal;
  return {of_input, outer.empty() ? product : product.sum(outer)};
}

}  // namespace

const RecipeOf* recipe_of(const c10::OperatorName& name) {
  static const auto* const kRecipes = new std::unordered_map<std::string, RecipeOf>{
      {"aten::_softmax", {softmax_of<at::_softmax>, {}}},
      {"aten::_log_softmax", {softmax_of<at::_log_softmax>, {}}},
      {"aten::_softmax_backward_data", {softmax_backward_of<at::_softmax_backward_data>, {}}},
      {"aten::_log_softmax_backward_data", {softmax_backward_of<at::_log_softmax_backward_data>, {}}},
      {"aten::_scaled_dot_product_efficient_attention", {efficient_attention, {}, 5}},
      {"aten::_scaled_dot_product_efficient_attention_backward",
       {efficient_attention_backward, {5, 6, 7, 8}, 9}},
      {"aten::_scaled_dot_product_flash_attention", {flash_attention, {}, 3}},
      {"aten::_scaled_dot_product_flash_attention_backward",
       {flash_attention_backward, {4, 5, 6, 7, 12, 13}, 10}},
      {"aten::mm.dtype", {mm, {}}},
      {"aten::bmm.dtype", {bmm, {}}},
      {"aten::_conv_depthwise2d", {depthwise_convolution, {}}},
      {"aten::conv_depthwise3d", {depthwise_convolution, {}}},
      {"aten::histc", {histogram, {}}},
      {"aten::log_sigmoid_backward", {log_sigmoid_backward, {2}}},
      {"aten::_fused_rms_norm_backward", {rms_norm_backward, {}}},
  };
  const auto found = kRecipes->find(c10::toString(name));
  return found == kRecipes->end() ? nullptr : &found->second;
}

}  // namespace spillway::values
