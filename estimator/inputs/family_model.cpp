#include "estimator/inputs/family_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "estimator/inputs/hugging_face_heads.h"
#include "estimator/inputs/transformers_release.h"

namespace spillway::estimator {
namespace {

// A key under any of the names that types have given it.
class Reader {
 public:
  Reader(KeyValues& values, std::string prefix) : values_(values), prefix_(std::move(prefix)) {}

  std::string name(std::initializer_list<const char*> names) const {
    for (const char* key : names) {
      if (values_.has(prefix_ + key)) return prefix_ + key;
    }
    return prefix_ + *names.begin();
  }
  bool has(const char* key) const { return values_.has(prefix_ + key); }
  int release() { return transformers_release(values_, prefix_); }
  bool is_nested() const { return has("text_config"); }
  // `nested`: what a part of a composite model has without saying so; 0 where nothing is known.
  int64_t required(std::initializer_list<const char*> names, int64_t nested = 0,
                   int64_t most = KeyValues::kMost) {
    const std::string key = name(names);
    return is_nested() && nested > 0 ? values_.whole(key, nested, 1, most) : values_.required(key, 1, most);
  }
  int64_t whole(std::initializer_list<const char*> names, int64_t otherwise, int64_t least = 0,
                int64_t most = KeyValues::kMost) {
    const std::string key = name(names);
    if (values_.text(key, "null") == "null") {
      // None of something is no default.
      if (otherwise != 0) values_.assume(key, std::to_string(otherwise));
      return otherwise;
    }
    return values_.whole(key, otherwise, least, most);
  }
  // Returns what the file says, or what the type has without saying so.
  bool flag(const char* key, bool otherwise) {
    return key == nullptr || is_null(key) ? otherwise : values_.flag(prefix_ + key, otherwise);
  }
  bool truth(const char* key, bool otherwise) {
    return is_null(key) ? otherwise : values_.truth(prefix_ + key, otherwise);
  }
  std::string text(const char* key, const char* otherwise) { return values_.text(prefix_ + key, otherwise); }
  void pass(const char* key) { values_.pass(prefix_ + key); }
  void complain(std::string text) { values_.complain(std::move(text)); }

 private:
  // A key that is there but empty says the same as none.
  bool is_null(const char* key) { return has(key) && values_.text(prefix_ + key, "") == "null"; }

  KeyValues& values_;
  std::string prefix_;
};

class Builder {
 public:
  Builder(Reader reader, const Family& family) : in_(std::move(reader)), family_(family) {
    const Widths& nested = family_.nested;
    hidden_ = in_.required({"hidden_size", "n_embd", "d_model", "n_embed"}, nested.hidden);
    heads_ = in_.required({"num_attention_heads", "n_head", "num_heads", "attention_heads"}, nested.heads,
                          1 << 20);
    norm_ = family_.norm_vectors * hidden_;
    ffn_ = in_.whole({"intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size"},
                     in_.is_nested() && nested.ffn > 0 ? nested.ffn : 4 * hidden_, 1);
    const int64_t head_dim = in_.is_nested() ? nested.head_dim : 0;
    if (!in_.has("head_dim") && !in_.has("d_kv") && !in_.has("kv_lora_rank") && head_dim == 0 &&
        hidden_ % heads_ != 0) {
      in_.complain(fmt::format("{}: '{}' is not allowed; allowed: a divisor of hidden_size {}",
                               in_.name({"num_attention_heads", "n_head", "num_heads"}), heads_, hidden_));
    }
    head_dim_ = head_dim > 0 ? head_dim : std::max<int64_t>(1, hidden_ / heads_);
    // Latent attention's heads have two sizes, whatever `head_dim` says of one of them.
    if (in_.has("kv_lora_rank")) {
      in_.pass("head_dim");
    } else {
      head_dim_ = in_.whole({"head_dim", "d_kv"}, head_dim_, 1);
    }
    const char* usual = family_.gated ? "gated-gelu" : "relu";
    const bool named_gated = in_.text("feed_forward_proj", usual).rfind("gated", 0) == 0;
    gated_ = family_.has_encoder ? in_.flag("is_gated_act", named_gated) : family_.gated;
    norms_per_layer_ = norms_per_layer();
    if (const int64_t width = in_.whole({"word_embed_proj_dim"}, 0); width != 0 && width != hidden_) {
      in_.complain(fmt::format("{}: '{}' is not modelled; allowed: hidden_size {}",
                               in_.name({"word_embed_proj_dim"}), width, hidden_));
    }
  }

  const std::vector<std::string>& notes() const { return notes_; }

  Model build() {
    Model model;
    model.type = family_.type;
    model.hidden = hidden_;
    model.vocabulary = in_.required({"vocab_size"}, family_.nested.vocabulary, KeyValues::kMostEntries);
    // transformers 5 ties those of encoder and decoder whatever the file says (T5Config).
    const bool ties = family_.has_encoder && in_.release() >= kFive;
    model.tied = in_.truth("tie_word_embeddings", family_.tied) || ties;
    Tower decoder;
    decoder.sequence = in_.whole({"max_position_embeddings", "n_positions", "n_ctx"}, family_.positions, 1,
                                 KeyValues::kMostEntries);
    if (family_.learned_positions) model.positions = decoder.sequence + family_.more_positions;
    if (family_.input_norm) decoder.input_parameters = norm_;
    const int64_t layers =
        in_.required({"num_hidden_layers", "n_layer", "num_layers"}, family_.nested.layers, 10000);
    for (int64_t i = 0; i < layers; ++i) decoder.layers.push_back(layer(i));
    const int64_t predictions = in_.whole({"num_nextn_predict_layers"}, 0, 0, 100);
    if (predictions > 0 && in_.truth("train_prediction_layers", false)) {
      add_prediction_layers(predictions, decoder);
      model.prediction_layers = predictions;
    } else if (predictions > 0) {
      notes_.push_back(
          "num_nextn_predict_layers: not trained and not counted; model.train_prediction_layers = true "
          "counts them");
    }
    decoder.final_norm_parameters = has_final_norm() ? norm_ : 0;
    model.towers = {std::move(decoder)};
    if (family_.only_encoder) finish_bert(model);
    if (family_.has_encoder) finish_t5(model, layers);
    model.output_bias = in_.flag("lm_head_bias", family_.output_bias);
    return model;
  }

 private:
  Layer layer(int64_t index) {
    // It is that of dense layers where a type has both.
    in_.text("intermediate_size_mlp", "");
    const bool experts = has_experts(index);
    if (experts) return {attention(), routed()};
    return {attention(), dense()};
  }

  // Like the last layer, behind a projection of two norms' outputs; the tables are the model's own.
  void add_prediction_layers(int64_t count, Tower& tower) const {
    for (int64_t i = 0; i < count; ++i) {
      Layer layer = tower.layers.back();
      if (i == 0) layer.insert(layer.begin(), PredictionInput{3 * norm_});
      tower.layers.push_back(std::move(layer));
    }
  }

  bool has_experts(int64_t index) {
    const int64_t count = expert_count();
    if (count <= 1) return false;
    if (index < in_.whole({"first_k_dense_replace"}, 0)) return false;
    return (index + 1) %
               in_.whole({"decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"}, 1, 1) ==
           0;
  }

  int64_t expert_count() { return in_.whole({"num_local_experts", "n_routed_experts", "num_experts"}, 0); }

  // OPT's, where norms stand behind blocks.
  bool has_final_norm() {
    const bool behind = !in_.flag("do_layer_norm_before", true);
    return !behind && !in_.flag("_remove_final_layer_norm", false);
  }

  int norms_per_layer() {
    switch (family_.shared_norms) {
      case SharedNorms::kParallelResidual:
        return in_.flag("use_parallel_residual", false) ? 1 : family_.norms_per_layer;
      case SharedNorms::kParallelAttention:
        if (in_.flag("new_decoder_architecture", false))
          return static_cast<int>(in_.whole({"num_ln_in_parallel_attn"}, 2, 1, 2));
        return in_.flag("parallel_attn", true) ? 1 : family_.norms_per_layer;
      case SharedNorms::kNever:
        break;
    }
    return family_.norms_per_layer;
  }

  int64_t key_value_heads() {
    if (family_.may_share_keys && !in_.flag("new_decoder_architecture", false)) {
      in_.text("num_kv_heads", "");
      in_.text("num_key_value_heads", "");
      return in_.flag("multi_query", true) ? 1 : heads_;
    }
    const int64_t nested = in_.is_nested() ? family_.nested.key_value_heads : 0;
    return in_.whole({"num_key_value_heads", "num_kv_heads"}, nested > 0 ? nested : heads_, 1);
  }

  Attention attention() {
    Attention out{heads_, key_value_heads(), head_dim_};
    out.query_key_value_bias = in_.flag(family_.query_key_value_bias_key, family_.query_key_value_bias);
    out.output_bias = in_.flag(family_.attention_output_bias_key, family_.attention_output_bias);
    out.norm_parameters = norm_ * std::max(1, norms_per_layer_ / 2);
    if (has_head_norms()) {
      out.head_norm_parameters = family_.head_norms == HeadNorms::kWholeWidth
                                     ? head_dim_ * (heads_ + out.key_value_heads)
                                     : 2 * head_dim_ * family_.norm_vectors;
    }
    if (family_.sinks) out.extra_parameters = heads_;
    if (in_.has("kv_lora_rank")) {
      out.latent = LatentAttention{in_.whole({"q_lora_rank"}, 0), in_.required({"kv_lora_rank"}),
                                   in_.required({"qk_nope_head_dim"}), in_.required({"qk_rope_head_dim"}),
                                   in_.required({"v_head_dim"})};
      out.key_value_heads = heads_;
      out.head_norm_parameters = out.latent->query_rank + out.latent->key_value_rank;
      // Only the narrow projections have one.
      if (out.query_key_value_bias)
        out.extra_parameters += out.latent->query_rank + out.latent->key_value_rank + out.latent->rotary_dim;
    }
    return out;
  }

  bool has_head_norms() {
    const bool said = family_.head_norms_key == nullptr || in_.flag(family_.head_norms_key, false);
    return said && family_.head_norms != HeadNorms::kNone;
  }

  Mlp dense() {
    const int64_t ffn = in_.has("intermediate_size_mlp") ? in_.required({"intermediate_size_mlp"}) : ffn_;
    return {ffn, gated_, in_.flag(family_.feed_forward_bias_key, family_.feed_forward_bias),
            norm_ * (norms_per_layer_ / 2)};
  }

  Experts routed() {
    Experts out;
    out.count = expert_count();
    out.top_k = in_.whole({"num_experts_per_tok", "experts_per_token"}, 2, 1);
    out.ffn = in_.whole({"moe_intermediate_size", "intermediate_size"}, ffn_, 1);
    out.shared_ffn = in_.has("n_shared_experts") ? in_.whole({"n_shared_experts"}, 0) * out.ffn
                                                 : in_.whole({"shared_expert_intermediate_size"}, 0);
    out.gated = true;
    if (family_.shares_expert) out.shared_ffn = out.ffn;
    out.bias = family_.feed_forward_bias;
    out.router_bias = family_.feed_forward_bias;
    out.shared_gate = family_.shared_expert_gate;
    out.norm_parameters = norm_;
    return out;
  }

  // Embedding norm and pooler; no norm after the last layer.
  void finish_bert(Model& model) {
    model.token_types = in_.whole({"type_vocab_size"}, 2, 1);
    model.towers.back().input_parameters = norm_;
    model.towers.back().final_norm_parameters = 0;
    model.head_parameters = hidden_ * hidden_ + hidden_;
  }

  // Relative positions: one table in the first layer of each tower.
  void finish_t5(Model& model, int64_t layers) {
    in_.flag("is_encoder_decoder", true);
    const int64_t table = in_.whole({"relative_attention_num_buckets"}, 32, 1) * heads_;
    Tower encoder = model.towers.back();
    encoder.name = "encoder";
    encoder.input_parameters = table;
    Tower& decoder = model.towers.back();
    decoder.input_parameters = table;
    const int64_t decoders = in_.whole({"num_decoder_layers"}, layers, 1);
    decoder.layers.clear();
    Attention cross = attention();
    cross.cross = true;
    for (int64_t i = 0; i < decoders; ++i) decoder.layers.push_back({attention(), cross, dense()});
    model.towers.insert(model.towers.begin(), std::move(encoder));
  }

  Reader in_;
  const Family& family_;
  int64_t hidden_ = 1, heads_ = 1, norm_ = 1, ffn_ = 1, head_dim_ = 1;
  int norms_per_layer_ = 2;
  bool gated_ = true;
  std::vector<std::string> notes_ = {};  // what is not counted by default
};

}  // namespace

Model read_family(KeyValues& values, const std::string& prefix, const Family& family, Notes& notes) {
  Reader reader(values, prefix);
  if (const std::string dense = reader.text("mlp_only_layers", "[]"); dense != "[]" && dense != "null")
    values.complain(fmt::format("{}mlp_only_layers: '{}' is not modelled; allowed: []", prefix, dense));
  Builder builder(reader, family);
  Model model = builder.build();
  notes.assumptions.insert(notes.assumptions.end(), builder.notes().begin(), builder.notes().end());
  set_head(values, prefix, family, model, notes);
  return model;
}

}  // namespace spillway::estimator
