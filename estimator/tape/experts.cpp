// Routed experts. transformers 4 goes through experts one after the other (MixtralSparseMoeBlock and its
// like); 5 sorts tokens by expert for grouped products (integrations/moe.py, grouped_mm_experts_forward).
// Tokens spread evenly, which random weights nearly do.
#include <algorithm>

#include "estimator/tape/layers.h"
#include "estimator/tape/mixer_operators.h"

namespace spillway::estimator {
namespace {

// Rows of a tensor by their numbers, whose gradient is put into zeros of its size.
Tensor picked(const Operators& op, const Tensor& x, double elements) {
  Tape& tape = op.tape();
  Tape::Recorder recorder(tape, {x.edge});
  Tensor out = tape.make(elements, x.element);
  const double bytes = x.bytes();
  out.edge = recorder.finish([=](Backward& run) { run.give(0, run.make(bytes)); });
  return out;
}

// index_add_: into a sum that is there; gives the rows of its gradient, and keeps the added ones for their
// shape.
void add_rows(const Operators& op, Tensor& sum, const Tensor& rows) {
  Tape::Recorder recorder(op.tape(), {sum.edge, rows.edge});
  recorder.save(rows.data);
  const double bytes = rows.bytes();
  const bool more = sum.edge.any();
  sum.edge = recorder.finish([=](Backward& run) {
    if (more) run.give(0, run.gradient());
    run.give(1, run.make(bytes));
  });
}

}  // namespace

Tensor Layers::routing_weights(const Experts& block, const Tensor& x) {
  const auto count = static_cast<double>(block.count);
  const double chosen = tokens_ * static_cast<double>(block.top_k);
  Matrix router = matrix(hidden_, count, block.router_bias);
  if (code_.router_in_fp32) router.weight = op_.cast(router.weight, 4);
  const Tensor logits = op_.linear(code_.router_in_fp32 ? op_.cast(x, 4) : x, router);
  if (code_.experts == ExpertsCode::kParallel)
    return op_.cast(op_.softmax(picked(op_, op_.cast(logits, 4), chosen), 4), x.element);
  const Tensor probabilities = op_.softmax(logits, 4);
  Tensor weights = picked(op_, probabilities, chosen);
  // topk's indices, in eight bytes each.
  const Tensor indices = tape_.make(chosen, 8);
  weights = op_.multiply(weights, tape_.make(tokens_, 4));
  return code_.experts_in_fp32 ? weights : op_.cast(weights, x.element);
}

// Gemma4TextRouter and the experts, beside what the dense block made.
Tensor Layers::beside_dense(const Experts& block, const Tensor& dense, const Tensor& x) {
  tape_.set_purpose(Purpose::kNorms);
  const Tensor first = norm(dense, hidden_);
  tape_.set_purpose(Purpose::kExperts);
  const auto trained = [&](double elements) { return tape_.weight(elements, weight_element_, trained_); };
  Tensor weights;
  {
    const Tensor scaled = op_.multiply_by_weight(norm_without_weights(x, hidden_), trained(hidden_));
    weights = routing_weights(block, op_.scale(scaled));
  }
  const auto count = static_cast<double>(block.count);
  weights = op_.multiply(weights, picked(op_, trained(count), weights.elements));
  const Tensor second = grouped_experts(block, norm(x, hidden_), weights);
  return op_.add(first, norm(second, hidden_));
}

Tensor Layers::routed(const Experts& block, const Tensor& x) {
  if (code_.experts == ExpertsCode::kEvery) return every_expert(block, x);
  const Tensor weights = routing_weights(block, x);
  Tensor out;
  switch (code_.experts) {
    case ExpertsCode::kLoop:
      out = looped_experts(block, x, weights);
      break;
    case ExpertsCode::kSorted:
      out = sorted_experts(block, x, weights);
      break;
    case ExpertsCode::kParallel:
      out = parallel_experts(block, x, weights);
      break;
    default:
      out = grouped_experts(block, x, weights);
  }
  if (block.shared_ffn == 0) return out;
  Tensor shared = feed_forward({block.shared_ffn, block.gated, block.bias, 0}, x);
  if (block.shared_gate) {
    const Tensor gate = op_.activation_of_result(op_.linear(x, matrix(hidden_, 1, false)));
    shared = op_.multiply(gate, shared);
  }
  return op_.add(out, shared);
}

// GptOssExperts._apply_gate: every second column is a gate.
Tensor Layers::clamped_gate(const Tensor& both) {
  const Tensor gate = op_.activation(op_.slice(both, both.elements / 2));
  const Tensor up = op_.activation(op_.slice(both, both.elements / 2));
  const Tensor opened = op_.multiply(gate, op_.activation_of_result(op_.scale(gate)));
  return op_.multiply(op_.scale(up), opened);
}

Tensor Layers::looped_experts(const Experts& block, const Tensor& x, const Tensor& weights) {
  const auto ffn = static_cast<double>(block.ffn);
  const double rows = weights.elements / static_cast<double>(block.count);
  Tensor sum = tape_.make(x.elements, weights.element);
  // one_hot, of whole numbers.
  const Tensor mask = tape_.make(weights.elements * static_cast<double>(block.count), 8);
  for (int64_t i = 0; i < block.count; ++i) {
    const Tensor state = picked(op_, x, rows * hidden_);
    Tensor out = op_.linear(state, matrix(hidden_, code_.clamps_gates ? 2 * ffn : ffn, block.bias));
    out = code_.clamps_gates ? clamped_gate(out) : activated(out);
    if (block.gated && !code_.clamps_gates)
      out = op_.multiply(out, op_.linear(state, matrix(hidden_, ffn, block.bias)));
    out = op_.linear(out, matrix(ffn, hidden_, block.bias));
    out = op_.multiply(out, picked(op_, weights, rows));
    add_rows(op_, sum, op_.cast(out, sum.element));
  }
  return op_.cast(sum, x.element);
}

// DeepseekV2MoE.moe of transformers 4: tokens in the order of experts, which take a part each.
Tensor Layers::sorted_experts(const Experts& block, const Tensor& x, const Tensor& weights) {
  const auto ffn = static_cast<double>(block.ffn);
  const auto count = static_cast<double>(block.count);
  const Tensor order = tape_.make(2 * weights.elements, 8);
  const Tensor sorted = picked(op_, x, weights.elements * hidden_);
  Tensor all;
  {
    std::vector<Tensor> parts;
    for (int64_t i = 0; i < block.count; ++i) {
      const Tensor state = op_.slice(sorted, sorted.elements / count);
      Tensor out = activated(op_.linear(state, matrix(hidden_, ffn, block.bias)));
      out = op_.multiply(out, op_.linear(state, matrix(hidden_, ffn, block.bias)));
      parts.push_back(op_.linear(out, matrix(ffn, hidden_, block.bias)));
    }
    all = op_.concatenate(parts);
  }
  // Into their places, then each times its weight, in place: what was there is kept for the weight's
  // gradient.
  all = op_.cast(picked(op_, all, all.elements), 4);
  return op_.cast(op_.sum_of_rows(op_.multiply(op_.copy(all), weights), x.elements), x.element);
}

// Llama4TextMoe: a copy of all tokens for each expert, times its score, which is 0 where it was not chosen.
Tensor Layers::every_expert(const Experts& block, const Tensor& x) {
  const auto count = static_cast<double>(block.count), ffn = static_cast<double>(block.ffn);
  const Tensor logits = op_.linear(x, matrix(hidden_, count, false));
  const Tensor scores = op_.cast(op_.activation_of_result(op_.cast(logits, 4)), logits.element);
  const auto product = [&](const Tensor& in, double from, double to) {
    Matrix all{tape_.weight(count * from * to, weight_element_, trained_), {}, from, to};
    all.transposed = false;
    return op_.linear(in, all);
  };
  const Tensor in = op_.multiply(repeated_heads(op_, x, count), scores);
  const double wide = tokens_ * count * ffn;
  const std::vector<Tensor> halves = op_.split(product(in, hidden_, 2 * ffn), {wide, wide});
  const Tensor out = product(op_.multiply(halves[1], activated(halves[0])), ffn, hidden_);
  Tensor shared = feed_forward({block.shared_ffn, block.gated, block.bias, 0}, x);
  return op_.add_in_place(std::move(shared), op_.sum_of_rows(out, x.elements));
}

// GraniteMoeParallelExperts of transformers 4: a product for each expert with a part of one tensor, whose
// gradients are as large as all of it.
Tensor Layers::parallel_experts(const Experts& block, const Tensor& x, const Tensor& weights) {
  const auto ffn = static_cast<double>(block.ffn), count = static_cast<double>(block.count);
  const double rows = weights.elements;
  const Tensor order = tape_.make(2 * rows, 8);
  const auto product = [&](const Tensor& in, double from, double to) {
    const Tensor all = tape_.weight(count * from * to, weight_element_, trained_);
    const std::vector<Tensor> parts =
        op_.split(in, std::vector<double>(static_cast<size_t>(block.count), in.elements / count));
    std::vector<Tensor> out;
    for (const Tensor& part : parts)
      out.push_back(op_.linear(part, {op_.slice(all, from * to), {}, from, to}));
    return op_.concatenate(out);
  };
  Tensor out = product(picked(op_, x, rows * hidden_), hidden_, 2 * ffn);
  const std::vector<Tensor> halves = op_.split(out, {rows * ffn, rows * ffn});
  out = op_.multiply(activated(halves[0]), halves[1]);
  out = op_.multiply(product(out, ffn, hidden_), picked(op_, weights, rows));
  Tensor sum = tape_.make(x.elements, out.element);
  add_rows(op_, sum, out);
  return op_.cast(sum, x.element);
}

Tensor Layers::grouped_experts(const Experts& block, const Tensor& x, const Tensor& weights) {
  const auto ffn = static_cast<double>(block.ffn);
  const auto count = static_cast<double>(block.count);
  const double rows = weights.elements;
  const double wide = rows * ffn * (block.gated ? 2 : 1);
  // Expert numbers, sorted ones, their order and its inverse.
  const Tensor order = tape_.make(3 * rows, 8);
  const Tensor chosen = picked(op_, weights, rows);
  Tensor state = op_.in_place(picked(op_, x, rows * hidden_));
  const auto grouped = [&](const Tensor& in, double from, double to) {
    Matrix stacked{tape_.weight(count * from * to, weight_element_, trained_), {}, from, to};
    stacked.grouped = true;
    return op_.linear(in, stacked);
  };
  Tensor out = grouped(state, hidden_, wide / rows);
  state.reset();
  // masked_fill of rows that no expert has.
  out = op_.scale(out);
  if (code_.clamps_gates) {
    out = clamped_gate(out);
  } else if (block.gated) {
    const std::vector<Tensor> parts = op_.split(out, {wide / 2, wide / 2});
    out = op_.multiply(activated(parts[0]), parts[1]);
  } else {
    out = activated(out);
  }
  out = grouped(out, ffn, hidden_);
  out = op_.scale(out);
  out = op_.multiply(out, chosen);
  out = picked(op_, out, rows * hidden_);
  return op_.cast(op_.sum_of_rows(out, x.elements), x.element);
}

}  // namespace spillway::estimator
