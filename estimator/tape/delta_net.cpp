// The gated delta rule of Qwen 3.5 as transformers computes it where no kernels of flash-linear-attention and
// causal-conv1d are installed: in chunks, whose states are kept (modeling_qwen3_5.py of 5.17,
// Qwen3_5GatedDeltaNet and torch_chunk_gated_delta_rule). Large tensors live as long as the Python variables
// that hold them.
#include <algorithm>
#include <cmath>

#include "estimator/tape/layers.h"

namespace spillway::estimator {
namespace {

constexpr double kChunk = 64;
// Of longer sequences several chunks are played as one, whose tensors are as many times as large.
constexpr double kMostPlayed = 32;

// A copy, in fp32, with heads in front of tokens.
Tensor by_heads(const Operators& op, const Tensor& x) {
  return x.element < 4 ? op.cast(x, 4) : op.copy(x);
}

// repeat_interleave: a copy for each of several heads, whose gradient is summed up.
Tensor repeated_heads(const Operators& op, const Tensor& x, double times) {
  if (times == 1) return x;
  Tape::Recorder recorder(op.tape(), {x.edge});
  Tensor out = op.tape().make(x.elements * times, x.element);
  out.edge = recorder.finish([bytes = x.bytes()](Backward& run) { run.give(0, run.make(bytes)); });
  return out;
}

// A sum over the last dimension, whose gradient is a view.
Tensor row_sums(const Operators& op, const Tensor& x, double rows) {
  Tape::Recorder recorder(op.tape(), {x.edge});
  Tensor out = op.tape().make(rows, x.element);
  out.edge = recorder.finish([](Backward& run) { run.give(0, Share(run.gradient()).view()); });
  return out;
}

Tensor unit_length(const Operators& op, const Tensor& x, double rows) {
  const Tensor sums = row_sums(op, op.multiply(x, x), rows);
  return op.multiply(x, op.activation_of_result(op.scale(sums)));
}

// constant_pad_nd, which copies where nothing is added too, and its gradient.
Tensor padded(const Operators& op, const Tensor& x, double elements) {
  return op.resampled(x, elements);
}

// Differences of all tokens of a chunk.
Tensor pairwise(const Operators& op, const Tensor& x, double elements) {
  Tape::Recorder recorder(op.tape(), {x.edge, x.edge});
  Tensor out = op.tape().make(elements, x.element);
  out.edge = recorder.finish([whole = out.bytes(), bytes = x.bytes()](Backward& run) {
    const Share turned = run.make(whole);
    run.give(0, run.make(bytes));
    run.give(1, run.make(bytes));
  });
  return out;
}

// linalg_solve_triangular(matrix, b): its gradient is solved for, then multiplied with the solution.
Tensor solved(const Operators& op, const Tensor& matrix, const Tensor& b) {
  Tape::Recorder recorder(op.tape(), {matrix.edge, b.edge});
  Tensor out = op.tape().make(b.elements, b.element);
  recorder.save(matrix.data);
  recorder.save(out.data);
  out.edge = recorder.finish([of_matrix = matrix.bytes(), of_b = b.bytes()](Backward& run) {
    Share solution = run.make(of_b);
    Share product = run.make(of_matrix);
    product = run.make(of_matrix);  // its sign is turned
    run.give(0, run.make(of_matrix));
    run.give(1, std::move(solution));
  });
  return out;
}

// into[:, :, i] = part (CopySlices): the gradient of what was there before is a copy of the whole one's.
Tensor with_part(const Operators& op, const Tensor& into, const Tensor& part) {
  Tape::Recorder recorder(op.tape(), {into.edge, part.edge});
  Tensor out = into;
  out.edge =
      recorder.finish([whole = into.bytes(), bytes = part.bytes(), first = !into.edge.any()](Backward& run) {
        Share copy = run.make(whole);
        run.give(1, run.make(bytes));
        if (!first) run.give(0, std::move(copy));
      });
  return out;
}

}  // namespace

Tensor Layers::delta_net(const DeltaNet& net, const Tensor& x) {
  const auto key_heads = static_cast<double>(net.key_heads),
             value_heads = static_cast<double>(net.value_heads);
  const double keys = key_heads * static_cast<double>(net.key_dim);
  const double values = value_heads * static_cast<double>(net.value_dim);
  const double channels = 2 * keys + values, kernel = static_cast<double>(net.convolution);
  const auto trained = [&](double elements) { return tape_.weight(elements, weight_element_, trained_); };

  Tensor mixed = op_.view_of_transposed(projected(x, "in_proj_qkv", hidden_, channels, false));
  const Tensor z = projected(x, "in_proj_z", hidden_, values, false);
  const Tensor b = projected(x, "in_proj_b", hidden_, value_heads, false);
  const Tensor a = projected(x, "in_proj_a", hidden_, value_heads, false);
  // Both ends are padded; what the convolution makes for the end is cut off.
  mixed = op_.convolution(op_.cast(mixed, weight_element_), trained(channels * kernel), {},
                          channels * batch_ * (sequence_ + kernel - 1));
  mixed = op_.activation(op_.slice(mixed, channels * tokens_));
  const std::vector<Tensor> parts = op_.split(mixed, {keys * tokens_, keys * tokens_, values * tokens_});
  const Tensor beta = op_.activation_of_result(b);
  const Tensor step = op_.activation(op_.add(op_.cast(a, 4), trained(value_heads)));
  const Tensor rate = op_.activation_of_result(op_.cast(trained(value_heads), 4));
  const Tensor decay = op_.multiply_by_weight(step, op_.scale(rate));
  const double times = value_heads / key_heads;
  const Tensor query = repeated_heads(op_, parts[0], times), key = repeated_heads(op_, parts[1], times);
  Tensor out = delta_rule(net, {query, key, parts[2]}, beta, decay);
  out = gated_head_norm(out, z, static_cast<double>(net.value_dim));
  return projected(out, "out_proj", values, hidden_, false);
}

// Qwen3_5RMSNormGated.
Tensor Layers::gated_head_norm(const Tensor& x, const Tensor& gate, double width) {
  const double rows = x.elements / width;
  const Tensor whole = op_.cast(x, 4);
  const Tensor variance = op_.mean(op_.power(whole), rows);
  Tensor out = op_.multiply(whole, op_.activation_of_result(op_.scale(variance)));
  out = op_.multiply_by_weight(op_.cast(out, x.element), tape_.weight(width, weight_element_, trained_));
  out = op_.multiply(out, op_.activation(op_.cast(gate, 4)));
  return op_.cast(out, x.element);
}

Tensor Layers::delta_rule(const DeltaNet& net, const Heads& heads, const Tensor& given_beta,
                          const Tensor& given_decay) {
  const auto count = static_cast<double>(net.value_heads);
  const auto key_dim = static_cast<double>(net.key_dim), value_dim = static_cast<double>(net.value_dim);
  const double chunks = std::ceil(sequence_ / kChunk);
  const double rows = batch_ * chunks * kChunk * count;  // of padded tokens and heads
  Tensor query = by_heads(op_, heads.query), key = by_heads(op_, heads.key),
         value = by_heads(op_, heads.value);
  Tensor beta = by_heads(op_, given_beta), decay = by_heads(op_, given_decay);
  query = unit_length(op_, query, tokens_ * count);
  key = unit_length(op_, key, tokens_ * count);
  query = padded(op_, op_.scale(query), rows * key_dim);
  key = padded(op_, key, rows * key_dim);
  value = padded(op_, value, rows * value_dim);
  beta = padded(op_, beta, rows);
  decay = padded(op_, decay, rows);
  const Tensor v_beta = op_.multiply(value, beta), k_beta = op_.multiply(key, beta);

  const auto product = [&](const Tensor& one, const Tensor& other, double elements) {
    return op_.product(op_.for_product(one), op_.for_product(other), elements);
  };
  const Tensor cum_decay = op_.scale(decay);
  const Tensor pairwise_decay = op_.activation_of_result(op_.scale(pairwise(op_, cum_decay, rows * kChunk)));
  const Tensor ut_system = op_.multiply(product(k_beta, key, rows * kChunk), pairwise_decay);
  const Tensor intra_chunk = op_.multiply(product(query, key, rows * kChunk), pairwise_decay);
  const Tensor decayed_k_beta = op_.multiply(k_beta, op_.activation_of_result(cum_decay));
  const Tensor new_values = solved(op_, ut_system, v_beta);
  const Tensor k_cumdecay = solved(op_, ut_system, decayed_k_beta);
  Tensor state = tape_.make(batch_ * count * key_dim * value_dim, 4);
  Tensor core = tape_.make(rows * value_dim, 4);
  query = op_.multiply(query, op_.activation_of_result(cum_decay));
  key = op_.multiply(key, op_.activation_of_result(op_.scale(cum_decay)));
  const Tensor chunk_decay = op_.activation_of_result(op_.slice(cum_decay, rows / kChunk));

  const double played = std::min(chunks, kMostPlayed), of_one = chunks / played;
  const auto part = [&](const Tensor& of) { return op_.slice(of, of.elements / played); };
  const double values = core.elements / played;
  state.elements *= of_one;
  for (double i = 0;; ++i) {
    const Tensor v_new = op_.add(part(new_values), product(part(k_cumdecay), state, values));
    {
      const Tensor inter_chunk = product(part(query), state, values);
      core = with_part(op_, core, op_.add(inter_chunk, product(part(intra_chunk), v_new, values)));
    }
    // Nothing is asked of the last one's state: what it would save is gone at once.
    if (i + 1 >= played) break;
    state = op_.add(op_.multiply(state, part(chunk_decay)), product(part(key), v_new, state.elements));
  }
  if (caches()) cache_.push_back(tape_.make(state.elements / of_one, 4).data);
  const double elements = tokens_ * count * value_dim;
  const Tensor out = elements < core.elements ? op_.slice(core, elements) : core;
  return heads.value.element < 4 ? op_.cast(out, heads.value.element) : op_.copy(out);
}

}  // namespace spillway::estimator
