#include "estimator/diffusion/modules.h"

#include <cmath>

#include "estimator/tape/adapters.h"
#include "estimator/tape/attention_kernels.h"

namespace spillway::estimator {
Grid Grid::halved() const {
  return {samples, std::floor((height + 1) / 2), std::floor((width + 1) / 2)};
}

Modules::Modules(Tape& tape, const ModuleSettings& settings)
    : op_(tape, settings.autocast), settings_(settings) {}

Tensor Modules::weight(double elements) {
  parameters_ += elements;
  return tape().weight(elements, settings_.element, settings_.trained);
}

Tensor Modules::linear(const char* name, const Tensor& x, double in, double out, bool bias) {
  const Tensor matrix = weight(in * out);
  const Tensor of_bias = bias ? weight(out) : Tensor();
  Tensor result = op_.linear(x, {matrix, of_bias, in, out});
  if (settings_.adapter == nullptr || !settings_.adapter->targets_module(name)) return result;
  const Purpose before = tape().set_purpose(Purpose::kAdapters);
  result = adapted(op_, *settings_.adapter, x, std::move(result), in, out);
  tape().set_purpose(before);
  return result;
}

Tensor Modules::convolution(const Tensor& x, double in, double out, double kernel, double out_places) {
  const Tensor matrix = weight(in * out * kernel * kernel);
  const Tensor bias = weight(out);
  return op_.convolution(x, matrix, bias, out * out_places);
}

Tensor Modules::group_norm(const Tensor& x, double channels, double groups, double samples) {
  return op_.layer_norm(x, weight(2 * channels), samples * groups);
}

Tensor Modules::layer_norm(const Tensor& x, double width, bool affine) {
  return op_.layer_norm(x, affine ? weight(2 * width) : Tensor(), x.elements / width);
}

// layer_norm.cpp, rms_norm: one kernel where both types are the same, else operator by operator in fp32.
Tensor Modules::rms_norm(const Tensor& x, double width) {
  const Tensor scale = weight(width);
  if (x.element == scale.element) return op_.rms_norm(x, scale, x.elements / width);
  const Tensor whole = op_.cast(x, 4);
  const Tensor mean = op_.mean(op_.power(whole), x.elements / width);
  Tensor out = op_.multiply(whole, op_.activation_of_result(mean));
  out = op_.multiply_by_weight(out, scale);
  return op_.cast(out, x.element);
}

Tensor Modules::plain_rms_norm(const Tensor& x, double width) {
  const Tensor scale = weight(width);
  Tensor inverse;
  {
    const Tensor variance = op_.mean(op_.power(op_.cast(x, 4)), x.elements / width);
    inverse = op_.activation_of_result(op_.scale(variance));
  }
  Tensor out = op_.multiply(x, inverse);
  if (settings_.element < 4) out = op_.cast(out, settings_.element);
  return op_.multiply_by_weight(out, scale);
}

Tensor Modules::embedding(const Tensor& x, double in, double width) {
  Tensor out = linear("linear_1", x, in, width);
  out = silu(out);
  return linear("linear_2", out, width, width);
}

Tensor Modules::residual_block(const Tensor& x, const Tensor& time, double time_width, double in, double out,
                               double groups, const Grid& grid) {
  Tensor hidden = group_norm(x, in, groups, grid.samples);
  hidden = silu(hidden);
  hidden = convolution(hidden, in, out, 3, grid.all());
  if (time.elements > 0) {
    const Tensor shift = linear("time_emb_proj", silu(time), time_width, out);
    hidden = op_.add(hidden, shift);
  }
  hidden = group_norm(hidden, out, groups, grid.samples);
  hidden = silu(hidden);
  hidden = convolution(hidden, out, out, 3, grid.all());
  const Tensor shortcut = in == out ? x : convolution(x, in, out, 1, grid.all());
  // Divided by a factor that is one.
  return op_.scale(op_.add(shortcut, hidden));
}

Tensor Modules::downsample(const Tensor& x, double channels, bool pads, const Grid& grid) {
  const Grid smaller = grid.halved();
  if (!pads) return convolution(x, channels, channels, 3, smaller.all());
  const Tensor padded = op_.resampled(x, channels * grid.samples * (grid.height + 1) * (grid.width + 1));
  return convolution(padded, channels, channels, 3, smaller.all());
}

Tensor Modules::upsample(const Tensor& x, double channels, const Grid& larger) {
  // Autocast runs it in fp32.
  const Tensor wide = op_.resampled(op_.autocast() ? op_.cast(x, 4) : x, channels * larger.all());
  return convolution(wide, channels, channels, 3, larger.all());
}

Tensor Modules::attention(const Tensor& query, const Tensor& key, const Tensor& value, double samples,
                          double heads, double head_dim, double queries, double keys) {
  const AttentionCall call{samples, heads, heads, head_dim, queries, keys};
  const Tensor q = op_.for_product(query), k = op_.for_product(key), v = op_.for_product(value);
  if (q.element < 4 && head_dim <= kFlashHead) return flash_attention(op_, call, q, k, v);
  return efficient_attention(op_, call, q, k, v, {});
}

Tensor Modules::feed_forward(const char* up, const char* down, const Tensor& x, double width) {
  Tensor out = linear(up, x, width, 4 * width);
  out = op_.activation(out);
  return linear(down, out, 4 * width, width);
}

Tensor Modules::block(const Tensor& x, const Body& body) {
  if (!settings_.recompute) return body(x);
  tape().set_purpose(Purpose::kInputs);
  return tape().checkpoint(x, body, false);
}

}  // namespace spillway::estimator
