// The gated delta rule of Qwen 3.5 and Qwen3-Next as transformers computes it where no kernels of
// flash-linear-attention and causal-conv1d are installed: in chunks, whose states are kept
// (modeling_qwen3_5.py and modeling_qwen3_next.py of 5.17 and 4.57, torch_chunk_gated_delta_rule). Large
// tensors live as long as the Python variables that hold them.
#include <algorithm>
#include <cmath>

#include "estimator/tape/layers.h"
#include "estimator/tape/mixer_operators.h"

namespace spillway::estimator {
namespace {

constexpr double kChunk = 64;
// Of longer sequences several chunks are played as one, whose tensors are as many times as large.
constexpr double kMostPlayed = 32;

Tensor unit_length(const Operators& op, const Tensor& x, double rows) {
  const Tensor sums = row_sums(op, op.multiply(x, x), rows);
  return op.multiply(x, op.activation_of_result(op.scale(sums)));
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

}  // namespace

Layers::DeltaInputs Layers::delta_projections(const DeltaNet& net, const Tensor& x) {
  const auto count = static_cast<double>(net.value_heads);
  const double keys = static_cast<double>(net.key_heads * net.key_dim);
  const double values = count * static_cast<double>(net.value_dim);
  if (!net.joined)
    return {projected(x, "in_proj_qkv", hidden_, 2 * keys + values, false),
            projected(x, "in_proj_z", hidden_, values, false),
            projected(x, "in_proj_b", hidden_, count, false),
            projected(x, "in_proj_a", hidden_, count, false),
            {}};
  // Each key head's parts stand together: they are put together by kind (fix_query_key_value_ordering).
  const Tensor all = projected(x, "in_proj_qkvz", hidden_, 2 * keys + 2 * values, false);
  const Tensor both = projected(x, "in_proj_ba", hidden_, 2 * count, false);
  const std::vector<Tensor> wide =
      op_.split(all, {keys * tokens_, keys * tokens_, values * tokens_, values * tokens_});
  const std::vector<Tensor> narrow = op_.split(both, {count * tokens_, count * tokens_});
  const auto by_heads = [&](const Tensor& of) { return net.value_heads > net.key_heads ? op_.copy(of) : of; };
  return {op_.concatenate({op_.copy(wide[0]), op_.copy(wide[1]), op_.copy(wide[2])}), by_heads(wide[3]),
          by_heads(narrow[0]), by_heads(narrow[1]), all};
}

Tensor Layers::delta_net(const DeltaNet& net, const Tensor& x) {
  const auto value_heads = static_cast<double>(net.value_heads);
  const double keys = static_cast<double>(net.key_heads * net.key_dim) * tokens_;
  const double values = value_heads * static_cast<double>(net.value_dim);
  const auto trained = [&](double elements) { return tape_.weight(elements, weight_element_, trained_); };

  const DeltaInputs made = delta_projections(net, x);
  Tensor mixed = convolved(op_.view_of_transposed(made.mixed), static_cast<double>(net.convolution), false);
  mixed = without_past(op_.activation(mixed));
  const std::vector<Tensor> parts = op_.split(mixed, {keys, keys, values * tokens_});
  const Tensor beta = op_.activation_of_result(made.beta);
  const Tensor step = op_.activation(op_.add(op_.cast(made.decay, 4), trained(value_heads)));
  const Tensor rate = op_.activation_of_result(op_.cast(trained(value_heads), 4));
  const Tensor decay = op_.multiply_by_weight(step, op_.scale(rate));
  const auto for_values = [&](const Tensor& of) {
    if (net.value_heads == net.key_heads) return of;
    return repeated_heads(op_, of, value_heads / static_cast<double>(net.key_heads));
  };
  Tensor out = delta_rule(net, {for_values(parts[0]), for_values(parts[1]), parts[2]}, beta, decay);
  out = gated_head_norm(out, made.gate, static_cast<double>(net.value_dim));
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
  // To what has that type already transformers 5 does nothing: heads stay behind tokens in memory.
  const bool stays = !code_.unrolled_mixers && heads.value.element == 4;
  const auto turned = [&](const Tensor& of) { return stays ? of : by_heads(op_, of); };
  const auto unit = [&](const Tensor& of) {
    if (code_.unrolled_mixers) return by_heads(op_, unit_length(op_, of, tokens_ * count));
    return unit_length(op_, turned(of), tokens_ * count);
  };
  Tensor query = unit(heads.query), key = unit(heads.key), value = turned(heads.value);
  Tensor beta = turned(given_beta), decay = turned(given_decay);
  query = padded(op_, op_.scale(query), rows * key_dim);
  key = padded(op_, key, rows * key_dim);
  value = padded(op_, value, rows * value_dim);
  beta = padded(op_, beta, rows);
  decay = padded(op_, decay, rows);
  Tensor v_beta = op_.multiply(value, beta), k_beta = op_.multiply(key, beta);
  decay = op_.scale(decay);

  DeltaChunks given{std::move(query),
                    std::move(key),
                    std::move(value),
                    std::move(v_beta),
                    std::move(k_beta),
                    std::move(decay),
                    rows,
                    batch_ * count,
                    stays};
  const Tensor core =
      code_.unrolled_mixers ? delta_chunks_by_rows(std::move(given)) : delta_chunks(std::move(given));
  if (caches()) cache_.push_back(tape_.make(batch_ * count * key_dim * value_dim, 4).data);
  const double elements = tokens_ * count * value_dim;
  const Tensor out = elements < core.elements ? op_.slice(core, elements) : core;
  return heads.value.element < 4 ? op_.cast(out, heads.value.element) : op_.copy(out);
}

Tensor Layers::delta_product(const Tensor& one, const Tensor& other, double elements) const {
  return op_.product(op_.for_product(one), op_.for_product(other), elements);
}

Tensor Layers::delta_chunks(DeltaChunks of) {
  const double rows = of.rows, value_dim = of.value.elements / rows, key_dim = of.key.elements / rows;
  const Tensor pairwise_decay =
      op_.activation_of_result(op_.scale(pairwise(op_, of.cum_decay, rows * kChunk)));
  const auto factor = [&](const Tensor& one) { return of.by_tokens ? op_.copy(one) : one; };
  const Tensor ut_system =
      op_.multiply(delta_product(factor(of.k_beta), factor(of.key), rows * kChunk), pairwise_decay);
  const Tensor intra_chunk =
      op_.multiply(delta_product(factor(of.query), factor(of.key), rows * kChunk), pairwise_decay);
  const Tensor decayed_k_beta = op_.multiply(of.k_beta, op_.activation_of_result(of.cum_decay));
  const Tensor new_values = solved(op_, ut_system, of.v_beta);
  const Tensor k_cumdecay = solved(op_, ut_system, decayed_k_beta);
  const double chunks = rows / kChunk / of.heads;
  Tensor state = tape_.make(of.heads * key_dim * value_dim, 4);
  Tensor core = tape_.make(rows * value_dim, 4);
  of.query = op_.multiply(of.query, op_.activation_of_result(of.cum_decay));
  of.key = op_.multiply(of.key, op_.activation_of_result(op_.scale(of.cum_decay)));
  const Tensor chunk_decay = op_.activation_of_result(op_.slice(of.cum_decay, rows / kChunk));

  const double played = std::min(chunks, kMostPlayed), of_one = chunks / played;
  const auto part = [&](const Tensor& whole) { return op_.slice(whole, whole.elements / played); };
  const double values = core.elements / played;
  state.elements *= of_one;
  for (int i = 0;; ++i) {
    const Tensor v_new = op_.add(part(new_values), delta_product(part(k_cumdecay), state, values));
    {
      const Tensor inter_chunk = delta_product(factor(part(of.query)), state, values);
      core = with_part(op_, core, op_.add(inter_chunk, delta_product(part(intra_chunk), v_new, values)));
    }
    // Nothing is asked of the last one's state: what it would save is gone at once.
    if (i + 1 >= played) return core;
    state = op_.add(op_.multiply(state, part(chunk_decay)),
                    delta_product(factor(part(of.key)), v_new, state.elements));
  }
}

// transformers 4 solves the system row by row, in place, and keeps what each row read.
Tensor Layers::delta_chunks_by_rows(DeltaChunks of) {
  const double rows = of.rows, value_dim = of.value.elements / rows, key_dim = of.key.elements / rows;
  Tensor decay = op_.activation_of_result(op_.scale(pairwise(op_, of.cum_decay, rows * kChunk)));
  decay = op_.scale(decay);
  Tensor system = op_.multiply(delta_product(of.k_beta, of.key, rows * kChunk), decay);
  system = op_.scale(filled(op_, system, rows * kChunk));
  for (int line = 1; line < static_cast<int>(kChunk); ++line) {
    const double i = line;
    const Tensor row = op_.copy(op_.slice(op_.slice(system, rows), rows / kChunk * i));
    const Tensor before = op_.copy(op_.slice(op_.slice(system, rows * i), rows / kChunk * i * i));
    const Tensor sums = row_sums(op_, op_.multiply(row, before), row.elements);
    system = with_part(op_, system, op_.add(row, sums));
  }
  system = op_.add(system, tape_.make(kChunk * kChunk, 4));
  of.value = delta_product(system, of.v_beta, of.value.elements);
  const Tensor k_cumdecay =
      delta_product(system, op_.multiply(of.k_beta, op_.activation_of_result(of.cum_decay)), of.key.elements);

  const double heads = of.heads, chunks = rows / kChunk / heads;
  const double played = std::min(chunks, kMostPlayed), of_one = chunks / played;
  const auto part = [&](const Tensor& whole) { return op_.slice(whole, whole.elements / played); };
  Tensor state = tape_.make(heads * key_dim * value_dim * of_one, of.value.element);
  Tensor core = tape_.make(rows * value_dim, of.value.element);
  const double values = core.elements / played;
  for (int i = 0;; ++i) {
    const Tensor query = part(of.query), key = part(of.key), cumulated = part(of.cum_decay);
    Tensor pairs = op_.multiply(delta_product(query, key, rows * kChunk / played), part(decay));
    pairs = op_.in_place(pairs);
    const Tensor v_new = op_.add(part(of.value), delta_product(part(k_cumdecay), state, values));
    const Tensor inter =
        delta_product(op_.multiply(query, op_.activation_of_result(cumulated)), state, values);
    core = with_part(op_, core, op_.add(inter, delta_product(pairs, v_new, values)));
    if (i + 1 >= played) return core;
    const Tensor last = op_.slice(cumulated, cumulated.elements / kChunk);
    const Tensor left = op_.activation_of_result(op_.add(last, cumulated));
    state = op_.add(op_.multiply(state, op_.activation_of_result(last)),
                    delta_product(op_.multiply(key, left), v_new, state.elements));
  }
}

}  // namespace spillway::estimator
