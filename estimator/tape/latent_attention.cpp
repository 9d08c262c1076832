// DeepSeek's attention as transformers writes it: each token's keys and values are made of a narrow row.
// Source: models/deepseek_v3/modeling_deepseek_v3.py and deepseek_v2, DeepseekV3Attention.forward.
#include <algorithm>

#include "estimator/tape/layers.h"

namespace spillway::estimator {
namespace {

// x.expand() over heads, whose gradient is summed up.
Tensor expanded(const Operators& op, const Tensor& x, double times) {
  Tape::Recorder recorder(op.tape(), {x.edge});
  Tensor out = x.view(x.elements * times);
  out.edge = recorder.finish([bytes = x.bytes()](Backward& run) { run.give(0, run.make(bytes)); });
  return out;
}

// CopySlices: into a part of what is there. Its gradient is copied as a whole, and the part once more; what
// the part was before gets zeros.
Tensor written(const Operators& op, const Tensor& into, const Tensor& part) {
  Tape::Recorder recorder(op.tape(), {into.edge, part.edge});
  Tensor out = into;
  const double bytes = into.bytes(), part_bytes = part.bytes();
  const bool more = into.edge.any();
  out.edge = recorder.finish([=](Backward& run) {
    Share whole = run.make(bytes), slice = run.make(part_bytes);
    if (more) {
      const Share zeros = run.make(part_bytes);
      run.give(0, std::move(whole));
    }
    run.give(1, std::move(slice));
  });
  return out;
}

}  // namespace

// apply_rotary_pos_emb_interleave, and apply_rotary_emb of complex numbers.
Tensor Layers::rotated_pairs(const Tensor& x) {
  if (code_.rotation == RotationCode::kComplex) return op_.cast(op_.scale(op_.cast(x, 4)), x.element);
  if (code_.rotation == RotationCode::kPairsCopied) return rotated(op_.copy(x));
  if (code_.rotation != RotationCode::kPairs) return rotated(x);
  const auto table = [&](const Tensor& of) { return op_.scale(of, std::max(of.element, cosine_.element)); };
  const Tensor even = op_.slice(x, x.elements / 2), odd = op_.slice(x, x.elements / 2);
  const Tensor front = op_.add(table(even), table(odd));
  return op_.concatenate(front, op_.add(table(odd), table(even)));
}

// The parts of queries that stay as they are and that are rotated.
std::vector<Tensor> Layers::latent_query(const Attention& block, const Tensor& x) {
  const LatentAttention& latent = *block.latent;
  const auto heads = static_cast<double>(block.heads), rank = static_cast<double>(latent.query_rank),
             pass = static_cast<double>(latent.head_dim), turned = static_cast<double>(latent.rotary_dim);
  Tensor query;
  if (rank > 0) {
    const Tensor row = norm(projected(x, "q_a_proj", hidden_, rank, block.output_bias), rank);
    query = projected(row, "q_b_proj", rank, heads * (pass + turned), false);
  } else {
    query = projected(x, "q_proj", hidden_, heads * (pass + turned), false);
  }
  return op_.split(op_.view_of_transposed(query), {tokens_ * heads * pass, tokens_ * heads * turned});
}

// Keys but for what is rotated, and values, of the narrow rows.
std::vector<Tensor> Layers::widened(const Attention& block, const Tensor& rows) {
  const LatentAttention& latent = *block.latent;
  const auto pass = static_cast<double>(block.heads * latent.head_dim),
             wide = static_cast<double>(block.heads * latent.value_dim);
  const Tensor all =
      projected(rows, "kv_b_proj", static_cast<double>(latent.key_value_rank), pass + wide, false);
  return op_.split(op_.view_of_transposed(all), {tokens_ * pass, tokens_ * wide});
}

Layers::Heads Layers::latent_heads(const Attention& block, const Tensor& x) {
  const auto narrow = static_cast<double>(block.latent->key_value_rank),
             turned = static_cast<double>(block.latent->rotary_dim);
  const std::vector<Tensor> query = latent_query(block, x);
  const Tensor low = projected(x, "kv_a_proj_with_mqa", hidden_, narrow + turned, block.output_bias);
  const std::vector<Tensor> parts = op_.split(low, {tokens_ * narrow, tokens_ * turned});
  Heads out = code_.caches_latent ? heads_of_cached_rows(block, query, parts)
                                  : heads_before_cache(block, query, parts);
  out.query_by_heads = true;
  return out;
}

// `low`: the narrow rows, and the part of keys that all heads have and that is rotated. transformers 5 caches
// both.
Layers::Heads Layers::heads_of_cached_rows(const Attention& block, const std::vector<Tensor>& query,
                                           const std::vector<Tensor>& low) {
  const auto heads = static_cast<double>(block.heads);
  Tensor rows = norm(low[0], static_cast<double>(block.latent->key_value_rank));
  Heads out;
  out.query = rotated_pairs(query[1]);
  Tensor key = rotated_pairs(low[1]);
  if (caches()) {
    const double element = std::max(rows.element, key.element);
    rows = cached(rows, element);
    key = cached(key, element);
  }
  out.query = op_.concatenate(query[0], out.query);
  if (code_.scales_query) out.query = op_.scale(out.query);
  const std::vector<Tensor> wide = widened(block, rows);
  out.key = written(op_, tape_.make(wide[0].elements + heads * key.elements, wide[0].element), wide[0]);
  out.key = written(op_, out.key, expanded(op_, key, heads));
  out.value = wide[1];
  return out;
}

// transformers 4 caches keys and values.
Layers::Heads Layers::heads_before_cache(const Attention& block, const std::vector<Tensor>& query,
                                         const std::vector<Tensor>& low) {
  const std::vector<Tensor> wide =
      widened(block, norm(low[0], static_cast<double>(block.latent->key_value_rank)));
  const Tensor turned = rotated_pairs(query[1]);
  const Tensor key = expanded(op_, rotated_pairs(low[1]), static_cast<double>(block.heads));
  Heads out;
  out.query = op_.concatenate(query[0], turned);
  out.key = op_.concatenate(wide[0], key);
  out.value = wide[1];
  if (caches()) {
    const double element = std::max(out.key.element, out.value.element);
    out.key = cached(out.key, element);
    out.value = cached(out.value, element);
  }
  return out;
}

}  // namespace spillway::estimator
