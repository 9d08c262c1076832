#include "estimator/tape/attention_kernels.h"

namespace spillway::estimator {
// mha_fwd, mha_bwd: the backward pass adds up queries' gradients in fp32, and makes keys' and values' for
// each query head.
Tensor flash_attention(const Operators& op, const AttentionCall& call, const Tensor& query, const Tensor& key,
                       const Tensor& value) {
  const double rows = rounded_up(call.queries, 128);
  const double accumulated = 4 * call.samples * rows * call.heads * rounded_up(call.head_dim, 32);
  const double sums = 4 * call.samples * call.heads * rows;
  const double query_bytes = query.bytes(), key_bytes = key.bytes();
  const double expanded = key.element * call.samples * call.keys * call.head_dim * call.heads;
  const bool grouped = call.heads != call.key_heads;
  Tape& tape = op.tape();
  Tape::Recorder recorder(tape, {query.edge, key.edge, value.edge});
  recorder.save(query.data);
  recorder.save(key.data);
  recorder.save(value.data);
  Tensor out = tape.make(query.elements, query.element);
  const Tensor logarithms = tape.make(call.samples * call.heads * call.queries, 4);
  recorder.save(out.data);
  recorder.save(logarithms.data);
  out.edge = recorder.finish([=](Backward& run) {
    Share of_query = run.make(query_bytes), of_key = run.make(key_bytes), of_value = run.make(key_bytes);
    const Share sum = run.make(sums), accumulator = run.make(accumulated);
    const Share keys = run.make(grouped ? expanded : 0), values = run.make(grouped ? expanded : 0);
    run.give(0, std::move(of_query));
    run.give(1, std::move(of_key));
    run.give(2, std::move(of_value));
  });
  return out;
}

// mem_eff_forward and backward.
Tensor efficient_attention(const Operators& op, const AttentionCall& call, const Tensor& query,
                           const Tensor& key, const Tensor& value, const Tensor& mask) {
  const double query_bytes = query.bytes(), key_bytes = key.bytes(), value_bytes = value.bytes();
  const double delta = 4 * call.samples * call.heads * call.queries;
  const double workspace = query.element < 4 ? 4 * query.elements : 0;
  Tape& tape = op.tape();
  Tape::Recorder recorder(tape, {query.edge, key.edge, value.edge, mask.edge});
  recorder.save(query.data);
  recorder.save(key.data);
  recorder.save(value.data);
  recorder.save(mask.data);
  // The mask's gradient is one for each sample, whose rows are aligned, and then summed up.
  const double mask_bytes = mask.needs_gradient() ? mask.bytes() : 0, samples = call.samples;
  const double aligned = rounded_up(call.keys, 16) / call.keys;
  Tensor out = tape.make(value.elements / call.keys * call.queries, query.element);
  const Tensor logarithms = tape.make(call.samples * call.heads * rounded_up(call.queries, 32), 4);
  recorder.save(out.data);
  recorder.save(logarithms.data);
  out.edge = recorder.finish([=](Backward& run) {
    Share of_query = run.make(query_bytes), of_key = run.make(key_bytes), of_value = run.make(value_bytes);
    const Share sum = run.make(delta), accumulator = run.make(workspace);
    run.give(0, std::move(of_query));
    run.give(1, std::move(of_key));
    run.give(2, std::move(of_value));
    if (mask_bytes == 0) return;
    Share of_mask = run.make(mask_bytes * samples * aligned);
    run.end_formula();
    if (samples > 1) of_mask = run.make(mask_bytes);
    run.give(3, std::move(of_mask));
  });
  return out;
}

}  // namespace spillway::estimator
