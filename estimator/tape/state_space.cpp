// Mamba-2 and short convolutions as transformers computes them where no kernels of mamba-ssm and
// causal-conv1d are installed: products of every pair of a chunk's tokens, heads and states are whole
// tensors, of which two are there at once in the backward pass (modeling_mamba2.py, torch_forward of 4.57 and
// mamba2_chunk_scan of 5.17; modeling_lfm2.py, Lfm2ShortConv.slow_forward). Large tensors live as long as the
// Python variables that hold them.
#include <cmath>

#include "estimator/tape/layers.h"
#include "estimator/tape/mixer_operators.h"

namespace spillway::estimator {

// The convolution of each channel by itself: both ends are padded, and what it makes for the end is cut off.
Tensor Layers::convolved(const Tensor& given, double kernel, bool bias) {
  const double channels = given.elements / tokens_;
  const auto trained = [&](double elements) { return tape_.weight(elements, weight_element_, trained_); };
  // transformers 5 casts it to the weights' type.
  const Tensor x = code_.unrolled_mixers ? given : op_.cast(given, weight_element_);
  const Tensor out = op_.convolution(x, trained(channels * kernel), bias ? trained(channels) : Tensor(),
                                     channels * batch_ * (sequence_ + kernel - 1));
  return op_.slice(out, channels * tokens_);
}

// transformers 5 cuts off what its cache may have put in front.
Tensor Layers::without_past(const Tensor& x) const {
  return caches() && !code_.unrolled_mixers ? op_.slice(x, x.elements) : x;
}

Tensor Layers::short_convolution(const ShortConvolution& block, const Tensor& x) {
  const Tensor all = op_.view_of_transposed(projected(x, "in_proj", hidden_, 3 * hidden_, block.bias));
  const double one = tokens_ * hidden_;
  const std::vector<Tensor> parts = op_.split(all, {one, one, one});
  const Tensor mixed = op_.multiply(parts[0], parts[2]);
  const Tensor gated =
      op_.multiply(parts[1], without_past(convolved(mixed, static_cast<double>(block.kernel), block.bias)));
  return projected(op_.copy(gated), "out_proj", hidden_, hidden_, block.bias);
}

Tensor Layers::state_space(const StateSpace& space, const Tensor& given) {
  const auto heads = static_cast<double>(space.heads), head_dim = static_cast<double>(space.head_dim);
  const double inner = heads * head_dim, grouped = static_cast<double>(space.groups * space.state);
  const double channels = inner + 2 * grouped;
  const auto trained = [&](double elements) { return tape_.weight(elements, weight_element_, trained_); };

  const Tensor x = code_.multiplies ? op_.scale(given) : given;
  Tensor all = projected(x, "in_proj", hidden_, inner + channels + heads, space.bias);
  if (code_.multiplies) all = op_.scale(all, std::max(all.element, weight_element_));
  const std::vector<Tensor> parts = op_.split(all, {inner * tokens_, channels * tokens_, heads * tokens_});
  Tensor mixed = op_.view_of_transposed(parts[1]);
  mixed = convolved(mixed, static_cast<double>(space.convolution), space.convolution_bias);
  mixed = without_past(op_.activation(mixed));
  const Tensor step = op_.activation(op_.activation(op_.add(parts[2], trained(heads))));
  // transformers 4 computes all of it in one function, whose variables live until it is done.
  std::vector<Tensor> named;
  const Tensor out = chunk_scan(
      space, op_.split(mixed, {inner * tokens_, grouped * tokens_, grouped * tokens_}), step, named);
  if (!code_.unrolled_mixers) named.clear();
  const Tensor normed = gated_state(space, out, parts[0]);
  return projected(op_.cast(normed, given.element), "out_proj", inner, hidden_, space.output_bias);
}

// `parts`: what is mixed, what goes into states, what comes out of them. `step`: how far each head's decay
// goes. Puts what is large and has a name into `named`.
Tensor Layers::chunk_scan(const StateSpace& space, const std::vector<Tensor>& parts, const Tensor& step,
                          std::vector<Tensor>& named) {
  const auto heads = static_cast<double>(space.heads), head_dim = static_cast<double>(space.head_dim);
  const auto state = static_cast<double>(space.state), chunk = static_cast<double>(space.chunk);
  const double times = heads / static_cast<double>(space.groups);
  const double chunks = std::ceil(sequence_ / chunk), rows = batch_ * chunks * chunk * heads;
  const auto trained = [&] { return tape_.weight(heads, weight_element_, trained_); };
  const auto summed = [&](Tensor product, double elements) {
    Tensor sums = row_sums(op_, product, elements);
    if (code_.unrolled_mixers) named.push_back(std::move(product));
    return sums;
  };

  Tensor x = op_.cast(parts[0], 4);
  Tensor in = repeated_heads(op_, op_.cast(parts[1], 4), times);
  Tensor from = repeated_heads(op_, op_.cast(parts[2], 4), times);
  const Tensor beside = op_.multiply(padded(op_, x, rows * head_dim), trained());
  x = op_.multiply(x, code_.unrolled_mixers ? step : op_.cast(step, 4));
  Tensor decay = op_.scale(op_.activation_of_result(op_.cast(trained(), 4)));
  decay = op_.multiply(code_.unrolled_mixers ? step : op_.cast(step, 4), decay);
  x = padded(op_, x, rows * head_dim);
  decay = padded(op_, decay, rows);
  in = padded(op_, in, rows * state);
  from = padded(op_, from, rows * state);
  if (code_.contracts_states) {
    const Tensor out = op_.add(contracted_scan(space, x, in, from, decay), beside);
    return sequence_ < chunks * chunk ? op_.slice(out, tokens_ * heads * head_dim) : out;
  }
  const Tensor cumulated = running_sums(op_, decay);

  // These are what tokens of one chunk give each other.
  const Tensor factors = segments(op_, decay, rows * chunk);
  Tensor pairs = summed(outer_product(op_, from, in, rows * chunk * state), rows * chunk);
  const Tensor weights = summed(op_.multiply(pairs, factors), rows * chunk);
  const Tensor diagonal =
      row_sums(op_, outer_product(op_, weights, x, rows * chunk * head_dim), rows * head_dim);

  // These are what goes from chunk to chunk.
  const Tensor left = op_.activation_of_result(op_.add(op_.slice(cumulated, rows / chunk), cumulated));
  const Tensor decayed = op_.multiply(in, left);
  const double of_one = batch_ * heads * head_dim * state;
  Tensor states = row_sums(op_, outer_product(op_, decayed, x, rows * head_dim * state), of_one * chunks);
  states = op_.concatenate(tape_.make(of_one, 4), states);
  const Tensor between =
      segments(op_, padded(op_, op_.slice(cumulated, rows / chunk), rows / chunk + batch_ * heads),
               batch_ * heads * (chunks + 1) * (chunks + 1));
  const Tensor all_states = row_sums(
      op_, outer_product(op_, between, states, of_one * (chunks + 1) * (chunks + 1)), of_one * (chunks + 1));
  states = op_.slice(all_states, of_one * chunks);
  if (caches() && !code_.makes_states_first) cache_.push_back(op_.copy(op_.slice(all_states, of_one)).data);
  const Tensor gone = op_.activation_of_result(cumulated);
  const Tensor read = outer_product(op_, from, states, rows * head_dim * state);
  const Tensor between_chunks = op_.multiply(row_sums(op_, read, rows * head_dim), gone);
  named.insert(named.end(), {x, beside, diagonal, read, between_chunks});
  Tensor out = op_.add(diagonal, between_chunks);
  out = op_.add(out, beside);
  return sequence_ < chunks * chunk ? op_.slice(out, tokens_ * heads * head_dim) : out;
}

// mamba2_chunk_scan since 5.18: torch.einsum puts chunks and heads in front of what it multiplies, which
// copies it, and multiplies matrices. `x`, `in`, `from` and `decay` are padded to whole chunks.
Tensor Layers::contracted_scan(const StateSpace& space, const Tensor& x, const Tensor& in, const Tensor& from,
                               const Tensor& decay) {
  const auto heads = static_cast<double>(space.heads), head_dim = static_cast<double>(space.head_dim);
  const auto state = static_cast<double>(space.state), chunk = static_cast<double>(space.chunk);
  const double chunks = std::ceil(sequence_ / chunk), rows = batch_ * chunks * chunk * heads;
  const double of_one = batch_ * heads * head_dim * state;
  const auto product = [&](const Tensor& a, const Tensor& b, double elements) {
    return op_.product(op_.for_product(a), op_.for_product(b), elements);
  };
  const auto contracted = [&](const Tensor& a, const Tensor& b, double elements) {
    return op_.view_of_transposed(product(a, b, elements));
  };
  // What came from the convolution has its tokens last: with one chunk its heads stand in front as they are.
  const auto by_chunks = [&](const Tensor& of) { return chunks > 1 ? op_.copy(of) : of; };
  const Tensor cumulated = running_sums(op_, decay);
  const Tensor factors = segments(op_, decay, rows * chunk);
  const Tensor pairs = product(op_.copy(from), op_.copy(in), rows * chunk);
  const Tensor weights = op_.multiply(pairs, factors);
  const Tensor diagonal = contracted(weights, by_chunks(x), rows * head_dim);

  const Tensor left = op_.activation_of_result(op_.add(op_.slice(cumulated, rows / chunk), cumulated));
  const Tensor decayed = op_.multiply(in, left);
  Tensor states = contracted(op_.copy(decayed), by_chunks(x), of_one * chunks);
  states = op_.concatenate(tape_.make(of_one, states.element), states);
  const Tensor between =
      segments(op_, padded(op_, op_.slice(cumulated, rows / chunk), rows / chunk + batch_ * heads),
               batch_ * heads * (chunks + 1) * (chunks + 1));
  const Tensor all_states = contracted(between, op_.copy(states), of_one * (chunks + 1));
  states = op_.slice(all_states, of_one * chunks);
  if (caches()) cache_.push_back(op_.copy(op_.slice(all_states, of_one)).data);
  const Tensor gone = op_.activation_of_result(cumulated);
  const Tensor read = contracted(op_.copy(from), op_.copy(states), rows * head_dim);
  return op_.copy(op_.add(diagonal, op_.multiply(read, gone)));
}

// MambaRMSNormGated, FalconH1RMSNormGated and Zamba2RMSNormGated.
Tensor Layers::gated_state(const StateSpace& space, const Tensor& x, const Tensor& gate) {
  if (!space.normed) return op_.multiply(x, op_.activation(gate));
  const auto opened = [&](const Tensor& of) { return op_.multiply(of, op_.activation(op_.cast(gate, 4))); };
  const double inner = x.elements / tokens_;
  const double rows = tokens_ * (code_.norms_groups ? static_cast<double>(space.groups) : 1);
  const Tensor first = code_.gates_behind ? x : opened(x);
  const Tensor inverse = op_.activation_of_result(op_.scale(op_.mean(op_.power(first), rows)));
  const Tensor out =
      op_.multiply_by_weight(op_.multiply(first, inverse), tape_.weight(inner, weight_element_, trained_));
  return code_.gates_behind ? opened(out) : out;
}

}  // namespace spillway::estimator
