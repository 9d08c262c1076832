// Attention as transformers calls it. Sources: integrations/sdpa_attention.py;
// aten/src/ATen/native/transformers/attention.cpp, cuda/sdp_utils.cpp.
#include <algorithm>
#include <cmath>

#include "estimator/tape/layers.h"

namespace spillway::estimator {
namespace {

// Elements of a head: of queries and keys, and of values.
double key_width(const Attention& block) {
  return static_cast<double>(block.latent ? block.latent->head_dim + block.latent->rotary_dim
                                          : block.head_dim);
}
double value_width(const Attention& block) {
  return static_cast<double>(block.latent ? block.latent->value_dim : block.head_dim);
}

}  // namespace

bool Layers::is_masked(size_t index) const {
  if (code_.masks_without_cache && !code_.bidirectional) {
    // Where layers are recomputed the cache is off (utils/generic.py, check_model_inputs).
    if (!code_.uses_cache || run_.training.recompute != Recompute::kNone) return true;
  }
  if (code_.always_masked) return true;
  return is_windowed(index) && sequence_ >= static_cast<double>(code_.window);
}

bool Layers::is_windowed(size_t index) const {
  return code_.window > 0 && (code_.windowed.empty() || code_.windowed[index % code_.windowed.size()]);
}

bool Layers::same(const std::vector<Layer>& layers, size_t first, size_t second) const {
  return layers[first] == layers[second] && is_masked(first) == is_masked(second) &&
         is_kept(first) == is_kept(second) && is_sparse(first) == is_sparse(second) &&
         (!code_.rotates_windowed || is_windowed(first) == is_windowed(second));
}

bool Layers::is_kept(size_t index) const {
  const auto* own = std::get_if<Attention>(&tower_.layers[index].front());
  if (!code_.keeps_last_keys || own == nullptr || reuses_keys(*own)) return false;
  for (size_t next = index + 1; next < tower_.layers.size(); ++next) {
    const auto* other = std::get_if<Attention>(&tower_.layers[next].front());
    if (other != nullptr && other->sees_all == own->sees_all) return reuses_keys(*other);
  }
  return true;
}

AttentionPath Layers::path(const Attention& block) const {
  if (code_.bias != BiasCode::kAdded && run_.training.attention == AttentionKernel::kFlash)
    return block.cross || code_.bias == BiasCode::kEfficient ? AttentionPath::kEfficient
                                                             : AttentionPath::kMath;
  if (code_.eager_attention || code_.own_attention || run_.training.attention != AttentionKernel::kFlash)
    return AttentionPath::kEager;
  if (code_.broadcasts_heads && block.heads != block.key_value_heads) return AttentionPath::kMath;
  const bool half = run_.training.precision != Precision::kFp32;
  if (is_masked(index_)) return AttentionPath::kEfficient;
  if (half && key_width(block) <= kFlashHead && key_width(block) == value_width(block))
    return AttentionPath::kFlash;
  const bool as_many =
      block.heads == block.key_value_heads || code_.repeats_first || repeats_for_kernel(block);
  return as_many ? AttentionPath::kEfficient : AttentionPath::kMath;
}

bool Layers::repeats_for_kernel(const Attention& block) const {
  if (code_.repeats_first) return false;
  const bool is_wide = key_width(block) > kFlashHead || key_width(block) != value_width(block);
  return is_masked(index_) || (code_.repeats_wide && is_wide);
}

Tensor Layers::head_norm(const Tensor& x, const Attention& block, double heads) {
  if (block.head_norm_parameters == 0) return x;
  const bool whole = block.head_norm_parameters > 4 * block.head_dim;
  return norm(x, static_cast<double>(block.head_dim) * (whole ? heads : 1));
}

// apply_rotary_pos_emb and rotate_half. The tables need no gradient, so products keep nothing else.
Tensor Layers::rotated(const Tensor& whole) {
  if (code_.rotary <= 0) return whole;
  const Tensor given = code_.rotates_in_fp32 ? op_.cast(whole, 4) : whole;
  const bool part = code_.rotary < 1 || code_.copies_rotated;
  const double elements = given.elements * code_.rotary;
  const Tensor x = part ? op_.slice(given, elements) : given;
  const auto table = [&](const Tensor& of) { return op_.scale(of, std::max(of.element, cosine_.element)); };
  if (code_.rotates_halves) {
    const std::vector<Tensor> halves = op_.split(x, {elements / 2, elements / 2});
    const Tensor front = op_.add(table(halves[0]), table(halves[1]));
    return op_.concatenate(front, op_.add(table(halves[1]), table(halves[0])));
  }
  const Tensor first = table(x);
  Tensor turned;
  {
    const Tensor front = op_.slice(x, elements / 2), back = op_.slice(x, elements / 2);
    turned = op_.concatenate(op_.scale(back), front);
  }
  turned = table(turned);
  Tensor out = op_.add(first, turned);
  if (code_.rotates_in_fp32) out = op_.cast(out, whole.element);
  if (!part) return out;
  return op_.concatenate(out, op_.slice(given, given.elements - elements));
}

Layers::Heads Layers::heads_of(const Attention& block, const Tensor& x) {
  const double query = static_cast<double>(block.heads * block.head_dim);
  const double key = static_cast<double>(block.key_value_heads * block.head_dim);
  const bool bias = block.query_key_value_bias;
  const Tensor& source = block.cross ? source_ : x;
  const double in = block.input > 0 ? static_cast<double>(block.input) : hidden_;
  if (code_.projection == ProjectionCode::kSeparate || block.cross) {
    const auto one = [&](const Tensor& from, const char* name, double width) {
      return beside_shared(block.shared, from, projected(from, name, in, width, bias), in, width);
    };
    Heads out;
    Tensor asked = one(x, code_.names.query, block.gated ? 2 * query : query);
    if (block.gated) {
      const std::vector<Tensor> parts = op_.split(asked, {tokens_ * query, tokens_ * query});
      asked = parts[0];
      out.gate = op_.copy(parts[1]);
    }
    out.query = head_norm(asked, block, static_cast<double>(block.heads));
    if (reuses_keys(block)) return out;
    const Tape::AlsoHeld held(tape_, graph_holder());
    const Tensor made = one(source, code_.names.key, key);
    out.key = head_norm(made, block, static_cast<double>(block.key_value_heads));
    out.value = block.keys_are_values ? made : one(source, code_.names.value, key);
    if (code_.norms_values) out.value = norm_without_weights(out.value, static_cast<double>(block.head_dim));
    return out;
  }
  const Tensor all = projected(x, code_.names.joined, hidden_, query + 2 * key, bias);
  if (code_.repeats_first)
    return {op_.copy(op_.slice(all, tokens_ * query)), repeated(op_.slice(all, tokens_ * key), block),
            repeated(op_.slice(all, tokens_ * key), block)};
  if (code_.projection == ProjectionCode::kSliced)
    return {op_.slice(all, tokens_ * query), op_.slice(all, tokens_ * key), op_.slice(all, tokens_ * key)};
  const std::vector<Tensor> parts = op_.split(all, {tokens_ * query, tokens_ * key, tokens_ * key});
  return {head_norm(parts[0], block, static_cast<double>(block.heads)),
          head_norm(parts[1], block, static_cast<double>(block.key_value_heads)), parts[2]};
}

// DynamicLayer.update: torch.cat of what was there, which is nothing but has the keys' type, and of what
// comes. Where autocast casts it for the product only the cache holds it.
Tensor Layers::cached(const Tensor& x, double element) {
  const bool is_cast = op_.autocast() && element != 2;
  const Purpose before = is_cast ? tape_.set_purpose(Purpose::kCache) : Purpose::kCache;
  Tensor out = op_.copy(is_cast ? op_.cast(x, element) : x);
  if (is_cast) {
    tape_.set_purpose(before);
    cache_.push_back(out.data);
  }
  if (returned_ != nullptr) tape_.keep(out.data, *returned_);
  return out;
}

Tensor Layers::attention(const Attention& block, const Tensor& x) {
  Heads heads = block.latent ? latent_heads(block, x) : turned_heads(block, x);
  if (code_.repeats_keys && block.heads != block.key_value_heads) {
    heads.key = repeated(heads.key, block);
    heads.value = repeated(heads.value, block);
    Attention equal = block;
    equal.key_value_heads = block.heads;
    return attend(equal, std::move(heads));
  }
  return attend(block, std::move(heads));
}

Tensor Layers::attend(const Attention& block, Heads heads) {
  const double width = static_cast<double>(block.heads) * value_width(block);
  const Tensor gate = std::move(heads.gate);
  Tensor mixed = scaled_dot_product(block, std::move(heads), path(block));
  if (block.gated) mixed = op_.multiply(mixed, op_.activation_of_result(gate));
  if (code_.norms_inside) mixed = norm(mixed, width);
  return projected(mixed, code_.names.output, width, hidden_, block.output_bias);
}

Layers::Heads Layers::turned_heads(const Attention& block, const Tensor& x) {
  Heads heads = heads_of(block, x);
  if (code_.multiplies) heads.key = op_.scale(op_.view_of_transposed(heads.key));
  if (code_.puts_heads_first) {
    heads = {op_.copy(op_.scale(heads.query)), op_.copy(heads.key), op_.copy(heads.value)};
    heads.query_by_heads = true;
  }
  const bool rotates = !code_.rotates_windowed || code_.window <= 0 || is_windowed(index_);
  if (code_.rotary > 0 && rotates && !block.cross) {
    const auto turned = [&](const Tensor& of) {
      if (code_.rotation == RotationCode::kComplex) return rotated_pairs(of);
      return rotated(code_.rotates_by_tokens ? of : op_.view_of_transposed(of));
    };
    heads.query = turned(heads.query);
    if (!reuses_keys(block)) heads.key = turned(heads.key);
    if (code_.scales_query && !code_.rotates_windowed) heads.query = op_.scale(heads.query);
    heads.query_by_heads = !code_.rotates_by_tokens && (code_.rotary < 1 || code_.copies_rotated);
  }
  if (code_.norms_rotated && rotates) {
    heads.query = norm_without_weights(heads.query, static_cast<double>(block.head_dim));
    heads.key = norm_without_weights(heads.key, static_cast<double>(block.head_dim));
  }
  if (code_.rotates_windowed && code_.scales_query && !rotates)
    heads.query = op_.cast(op_.scale(heads.query, 4), heads.query.element);
  Heads& shared = shared_[block.sees_all ? 1 : 0];
  if (reuses_keys(block)) {
    heads.key = shared.key;
    heads.value = shared.value;
    return heads;
  }
  if (caches() && code_.caches_by_name) {
    cache_.insert(cache_.end(), {heads.key.data, heads.value.data});
    if (returned_ != nullptr) {
      for (const Tensor* each : {&heads.key, &heads.value}) tape_.keep(each->data, *returned_);
    }
  } else if (caches()) {
    const double element = std::max(heads.key.element, heads.value.element);
    heads.key = cached(op_.view_of_transposed(heads.key), element);
    heads.value = cached(op_.view_of_transposed(heads.value),
                         code_.caches_values_apart ? heads.value.element : element);
  }
  if (is_kept(index_)) shared = {{}, heads.key, heads.value};
  return heads;
}

Tensor Layers::scaled_dot_product(const Attention& block, Heads heads, AttentionPath path) {
  if (op_.autocast()) {
    heads.query = op_.for_product(heads.query);
    heads.key = op_.for_product(heads.key);
    heads.value = op_.for_product(heads.value);
  }
  switch (path) {
    case AttentionPath::kFlash:
      // mha_fwd: the result lies as the query does, and is put together by tokens after it.
      if (heads.query_by_heads)
        return op_.copy(flash_attention(op_, call(block), heads.query, heads.key, heads.value));
      return flash_attention(op_, call(block), heads.query, heads.key, heads.value);
    case AttentionPath::kEfficient:
      return efficient(block, heads);
    case AttentionPath::kMath:
    case AttentionPath::kEager:
      break;
  }
  return materialised(block, std::move(heads), path);
}

AttentionCall Layers::call(const Attention& block) const {
  return {batch_,
          static_cast<double>(block.heads),
          static_cast<double>(code_.repeats_first ? block.heads : block.key_value_heads),
          key_width(block),
          sequence_,
          block.cross ? source_sequence_ : sequence_};
}

// create_position_bias_mask: a decoder's biases are kept where it sees, an encoder's are put together.
Tensor Layers::bias_mask(const Attention& block) {
  const auto heads = static_cast<double>(block.heads);
  Tensor own = position_bias_, cross = cross_bias_;
  if (code_.biases_in_layers) {
    if (block.cross)
      cross = tape_.make(heads * sequence_ * source_sequence_, op_.autocast() ? 2 : weight_element_);
    else
      own = op_.embedding(tape_.weight(32 * heads, weight_element_, trained_), sequence_ * sequence_, heads);
  }
  if (block.cross) return op_.for_product(cross);
  const Tensor mask = op_.copy(own);
  const bool is_encoder = &tower_ == &run_.model.towers.front();
  return op_.for_product(is_encoder ? mask : op_.view_of_transposed(mask));
}

// A mask of truth values becomes one of numbers for each layer.
Tensor Layers::efficient(const Attention& block, const Heads& given) {
  const bool masked = is_masked(index_), repeats = repeats_for_kernel(block);
  const Tensor key = repeats ? repeated(given.key, block) : given.key;
  const Tensor value = repeats ? repeated(given.value, block) : given.value;
  if (code_.bias == BiasCode::kEfficient)
    return efficient_attention(op_, call(block), given.query, given.key, given.value, bias_mask(block));
  Tensor mask = mask_;
  // Autocast casts it, and one that is not aligned is copied, for each layer.
  const bool is_copied = op_.autocast() || std::fmod(sequence_, 16) != 0;
  if (masked && (!mask.data || is_copied))
    mask = tape_.make(batch_ * sequence_ * rounded_up(sequence_, 16), given.query.element);
  return efficient_attention(op_, call(block), given.query, key, value, mask);
}

// repeat_kv, and repeat_interleave of the math kernel: a copy for each query head, whose gradient is summed
// up.
Tensor Layers::repeated(const Tensor& x, const Attention& block) {
  if (block.heads == block.key_value_heads) return x;
  const double times = static_cast<double>(block.heads) / static_cast<double>(block.key_value_heads);
  Tape::Recorder recorder(tape_, {x.edge});
  Tensor out = tape_.make(x.elements * times, x.element);
  const double bytes = x.bytes();
  out.edge = recorder.finish([=](Backward& run) { run.give(0, run.make(bytes)); });
  return out;
}

// DisentangledSelfAttention: products with a table of positions, of which each score picks one, are added up.
Tensor Layers::by_relative_position(const Heads& heads, double scores) {
  const double span = 2 * static_cast<double>(code_.relative_span);
  Tensor sum;
  for (int64_t i = 0; i < code_.relative_terms; ++i) {
    const Tensor& of = i == 0 ? heads.query : heads.key;
    const double table = hidden_ * span * batch_;
    const Tensor all = op_.product(of, tape_.make(table, of.element), scores / sequence_ * span);
    // gather_backward reads what was gathered from, and where.
    Tape::Recorder recorder(tape_, {all.edge});
    recorder.save(all.data);
    recorder.save(tape_.make(sequence_ * sequence_, 8).data);
    Tensor picked = tape_.make(scores, all.element);
    picked.edge = recorder.finish([bytes = all.bytes()](Backward& run) { run.give(0, run.make(bytes)); });
    picked = op_.scale(picked);
    sum = sum.data ? op_.add_in_place(std::move(sum), picked) : op_.scale(picked);
  }
  return sum;
}

// torch.max with a number: where both are equal each gets half of the gradient (maximum_backward).
Tensor Layers::bounded(const Tensor& x) const {
  Tape::Recorder recorder(tape_, {x.edge});
  recorder.save(x.data);
  Tensor out = tape_.make(x.elements, x.element);
  out.edge = recorder.finish([bytes = x.bytes(), elements = x.elements](Backward& run) {
    const Share equal = run.make(elements), half = run.make(bytes);
    run.give(0, run.make(bytes));
  });
  return out;
}

// _scaled_dot_product_attention_math, and the models' own eager_attention_forward.
Tensor Layers::materialised(const Attention& block, Heads heads, AttentionPath path) {
  const auto count = static_cast<double>(block.heads);
  const double scores = tokens_ * count * (block.cross ? source_sequence_ : sequence_);
  if (!code_.repeats_first) {
    heads.key = repeated(heads.key, block);
    heads.value = repeated(heads.value, block);
  }
  const double element = heads.query.element;
  tape_.set_purpose(Purpose::kScores);
  Tensor probabilities;
  if (path == AttentionPath::kMath) {
    // It computes in fp32 whatever comes in.
    const Tensor query = op_.scale(op_.cast(heads.query, 4)), key = op_.scale(op_.cast(heads.key, 4));
    heads.value = op_.cast(heads.value, 4);
    const Tensor mask = tape_.make(sequence_ * sequence_, element);
    // The mask is added in place.
    probabilities = op_.product(query, key, scores);
    if (position_bias_.data && !block.cross)
      probabilities = op_.add_in_place(std::move(probabilities), position_bias_);
    probabilities = op_.softmax(probabilities, 4);
  } else {
    // Products over four dimensions copy factors whose heads are not next to each other.
    const bool copies = (batch_ > 1 || code_.copies_heads) && !code_.eager_attention;
    if (code_.bounds_scores) heads.query = op_.scale(heads.query);
    if (code_.scores_in_fp32 && !op_.autocast()) {
      heads.query = op_.cast(heads.query, 4);
      heads.key = op_.cast(heads.key, 4);
    }
    const Tensor query = copies ? op_.copy(heads.query) : heads.query;
    probabilities = op_.product(query, copies ? op_.copy(heads.key) : heads.key, scores);
    if (code_.eager_attention) {
      // T5: biases by relative positions are added in place, softmax runs in fp32.
      const Tensor& bias = block.cross ? cross_bias_ : position_bias_;
      if (bias.data) probabilities = op_.add_in_place(std::move(probabilities), bias);
      probabilities = op_.cast(probabilities, 4);
      probabilities = op_.softmax(probabilities, 4);
    } else {
      if (code_.relative_terms > 0)
        probabilities = op_.add(probabilities, by_relative_position(heads, scores));
      else if (!code_.bounds_scores)
        probabilities = op_.scale(probabilities);
      if (code_.caps_scores) probabilities = op_.scale(op_.activation_of_result(op_.scale(probabilities)));
      // The mask, or what takes its place.
      if (!code_.bidirectional || !code_.softmax_in_fp32) probabilities = op_.scale(probabilities);
      if (code_.bounds_scores) probabilities = bounded(probabilities);
      if (code_.sinks) {
        // They are as wide as weights are, and the maximum of all is taken off.
        if (op_.autocast()) probabilities = op_.cast(probabilities, 4);
        const double wide = probabilities.element;
        probabilities = op_.concatenate(probabilities, tape_.make(scores / sequence_, wide));
        probabilities = op_.softmax(op_.scale(probabilities), wide);
        probabilities = op_.slice(probabilities, scores);
      } else {
        const bool in_fp32 = code_.softmax_in_fp32 || op_.autocast() ||
                             (code_.bounds_scores && run_.training.precision == Precision::kFp16);
        probabilities = op_.softmax(probabilities, in_fp32 ? 4 : element);
      }
    }
    probabilities = op_.cast(probabilities, element);
  }
  probabilities = dropped(probabilities, code_.attention_dropout);
  const bool is_checkpointed = code_.reentrant && run_.training.recompute == Recompute::kFull;
  const std::vector<Tower>& towers = run_.model.towers;
  const bool is_encoder = towers.size() > 1 && &tower_ == &towers.front();
  if (is_checkpointed && (code_.returns_scores || (is_encoder && code_.encoder_returns_scores)))
    tape_.return_beside(probabilities);
  const bool copies =
      path == AttentionPath::kEager && (batch_ > 1 || code_.copies_heads) && !code_.eager_attention;
  Tensor out = op_.product(probabilities, copies ? op_.copy(heads.value) : heads.value,
                           tokens_ * count * value_width(block));
  tape_.set_purpose(Purpose::kAttention);
  // transpose(1, 2).contiguous()
  return op_.copy(op_.cast(out, element));
}

}  // namespace spillway::estimator
