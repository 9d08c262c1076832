#include "estimator/inputs/hugging_face_code.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "estimator/inputs/code_rows.h"

namespace spillway::estimator {
namespace {

ActivationCode activation_code(std::string_view name) {
  if (name == "relu" || name == "tanh" || name == "sigmoid") return ActivationCode::kOfResult;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_accurate") return ActivationCode::kGeluNew;
  if (name == "quick_gelu") return ActivationCode::kGeluQuick;
  if (name == "xielu") return ActivationCode::kXielu;
  if (name == "relu2") return ActivationCode::kSquaredRelu;
  return ActivationCode::kOfInput;
}

class CodeReader {
 public:
  CodeReader(KeyValues& values, const std::string& prefix) : values_(values), prefix_(prefix) {}

  bool has(std::string_view key) {
    return values_.has(prefix_ + std::string(key)) && values_.text(prefix_ + std::string(key), "") != "null";
  }
  bool is_null(std::string_view key) {
    return values_.has(prefix_ + std::string(key)) && values_.text(prefix_ + std::string(key), "") == "null";
  }
  std::string text(std::initializer_list<std::string_view> keys, std::string_view otherwise) {
    for (const std::string_view key : keys) {
      if (has(key)) return values_.text(prefix_ + std::string(key), "");
    }
    return std::string(otherwise);
  }
  double number(std::initializer_list<std::string_view> keys, double otherwise, double most) {
    for (const std::string_view key : keys) {
      if (has(key)) return values_.number(prefix_ + std::string(key), otherwise, 0, most);
    }
    return otherwise;
  }
  // A flag, or a number that is one (Llama 4's published files).
  bool is_on(std::string_view key, bool otherwise) {
    if (!has(key)) return otherwise;
    const std::string said = values_.text(prefix_ + std::string(key), "");
    return said != "false" && said != "False" && said != "0";
  }
  bool flag(std::string_view key, bool otherwise) {
    return has(key) ? values_.truth(prefix_ + std::string(key), otherwise) : otherwise;
  }

 private:
  KeyValues& values_;
  const std::string& prefix_;
};

// The files of GPT-J and CodeGen say how many elements of a head are rotated.
double rotated_share(CodeReader& in, const Model& model) {
  const auto* attention = std::get_if<Attention>(&model.towers.back().layers.front().front());
  const double head = attention == nullptr ? 1 : static_cast<double>(attention->head_dim);
  return std::min(1.0, in.number({"rotary_dim"}, 64, 1e6) / head);
}

// DebertaV2's attention by contents and relative positions (DisentangledSelfAttention).
void read_relative_attention(CodeReader& in, ModelCode& code) {
  code.copies_heads = true;
  if (!in.flag("relative_attention", false)) return;
  const std::string kinds = in.text({"pos_att_type"}, "");
  for (const char* kind : {"c2p", "p2c"})
    code.relative_terms += kinds.find(kind) != std::string::npos ? 1 : 0;
  // -1 is written where there are none, or no more than positions.
  for (const char* key : {"position_buckets", "max_relative_positions", "max_position_embeddings"}) {
    const double span = std::min(1e6, std::strtod(in.text({key}, "0").c_str(), nullptr));
    if (code.relative_span <= 0) code.relative_span = static_cast<int64_t>(span);
  }
  if (code.relative_span <= 0) code.relative_span = 512;
}

void read_dropouts(CodeReader& in, const CodeRow& row, ModelCode& code) {
  const double of_scores = row.attention_dropout < 0 ? row.dropout : row.attention_dropout;
  code.hidden_dropout = in.number({"resid_pdrop", "resid_dropout", "residual_dropout", "hidden_dropout_prob",
                                   "hidden_dropout", "dropout_rate", "dropout"},
                                  row.dropout, 1);
  code.attention_dropout = in.number(
      {"attn_pdrop", "attention_probs_dropout_prob", "attention_dropout", "dropout_rate"}, of_scores, 1);
  code.embedding_dropout = in.number(
      {"embd_pdrop", "embed_dropout", "hidden_dropout_prob", "dropout_rate", "dropout"}, row.dropout, 1);
  if (row.type == "opt" || row.type == "seed_oss") code.embedding_dropout = 0;
  if (row.norm == NormCode::kT5) code.inner_dropout = code.hidden_dropout;
  if (row.two_stacks || row.type == "biogpt" || row.type == "xglm")
    code.inner_dropout = in.number({"activation_dropout"}, 0, 1);
}

void read_windows(CodeReader& in, const CodeRow& row, const Model& model, ModelCode& code) {
  const bool used = row.type.substr(0, 4) != "qwen" || in.flag("use_sliding_window", false);
  if (!used) return;
  code.window = static_cast<int64_t>(in.number({"sliding_window"}, static_cast<double>(row.window), 1e12));
  if (in.is_null("sliding_window")) code.window = 0;
  const std::string types = in.text({"layer_types"}, "");
  const size_t layers = model.towers.back().layers.size();
  for (size_t at = 0; at < types.size() && code.windowed.size() < layers;) {
    const size_t next = types.find("_attention", at);
    if (next == std::string::npos) break;
    code.windowed.push_back(types.substr(at, next - at).find("sliding") != std::string::npos);
    at = next + 1;
  }
  // The last layer of Gemma 4 has none whatever the list says (Gemma4TextConfig.__post_init__).
  const bool last_has_none = row.type == "gemma4_text";
  if (!code.windowed.empty() && last_has_none) code.windowed.back() = false;
  if (!code.windowed.empty() || row.window_pattern == 0) return;
  const auto pattern = static_cast<size_t>(
      in.number({"sliding_window_pattern"}, static_cast<double>(row.window_pattern), 1e6));
  for (size_t i = 0; i < layers; ++i)
    code.windowed.push_back((row.first_has_no_window ? i : i + 1) % std::max<size_t>(1, pattern) != 0);
  if (last_has_none) code.windowed.back() = false;
}

void read_version(CodeReader& in, const CodeRow& row, int release, ModelCode& code) {
  const bool old = release < kFive;
  const bool is_granite = row.type == "granitemoe" || row.type == "granitemoehybrid";
  code.reentrant = old;
  code.returns_scores = old && row.returns_scores;
  code.encoder_returns_scores = old && row.encoder_returns_scores;
  code.nests_checkpoints = code.shares_tensors = !old && row.type == "zamba2";
  code.experts = row.type == "llama4_text"   ? ExpertsCode::kEvery
                 : !old                      ? ExpertsCode::kGrouped
                 : row.type == "deepseek_v2" ? ExpertsCode::kSorted
                 : is_granite                ? ExpertsCode::kParallel
                                             : ExpertsCode::kLoop;
  code.caches_latent = !old;
  code.repeats_wide = !old;
  code.expands_masks = !old && !row.encoder;
  code.repeats_keys = old && row.repeats_keys;
  if (old && code.rotation == RotationCode::kPairs) code.rotation = RotationCode::kPairsCopied;
  code.uses_cache = !row.encoder && in.flag("use_cache", true) && (row.caches_in_training || !old) &&
                    (!row.two_stacks || row.type == "whisper") && !row.never_caches;
  code.caches_by_name = old && row.caches_by_name;
  code.unrolled_mixers = old;
  code.contracts_states = release >= 518;
  code.caches_values_apart = release >= 524;
  code.norms_groups = code.norms_groups || release >= 523;
  // GPT-J and CodeGen since they have SDPA.
  code.rotates_by_tokens =
      code.rotates_by_tokens || (row.scores_in_fp32 && code.rotary > 0 && release >= 524);
  if (!old && row.norm == NormCode::kT5) code.bias = release >= 520 ? BiasCode::kEfficient : BiasCode::kMath;
  code.masks_numbers = code.makes_states_first = old && row.type == "zamba2";
  // Falcon of transformers 5 makes its mask for biases by positions, which it may not have.
  code.always_masked =
      row.type == (old ? "modernbert" : "falcon") || (old && row.type == "jamba") || code.masks_numbers;
  code.masks_without_cache = old && row.norm != NormCode::kT5 && !row.unmasked && !row.two_stacks;
}

// Older Falcons have their blocks one after the other, or biases by positions, whose code is not written
// down.
void read_falcon(CodeReader& in, ModelCode& code) {
  code.known = !in.flag("alibi", false);
  code.repeats_first = in.flag("new_decoder_architecture", false);
  code.broadcasts_heads = !code.repeats_first;
  if (!code.repeats_first && !in.flag("parallel_attn", true)) code.residual = ResidualCode::kBefore;
}

// Gemma4TextModel and its layers.
void read_gemma4(CodeReader& in, ModelCode& code) {
  code.caps_logits = in.has("final_logit_softcapping");
  code.rotates_by_tokens = code.norms_values = code.keeps_last_keys = true;
  code.experts_beside = code.layer_scalar = true;
}

// Blocks of state spaces and what stands around them.
void read_mixers(CodeReader& in, const CodeRow& row, ModelCode& code) {
  code.wide_residual = row.never_caches && in.flag("residual_in_fp32", true);
  code.norms_groups = row.type == "nemotron_h" || row.type == "falcon_h1" || row.type == "zamba2";
  code.multiplies = code.mixes_beside = row.type == "falcon_h1";
  code.gates_behind = row.type == "falcon_h1" && in.flag("mamba_norm_before_gate", true);
  if (row.type == "zamba2" && in.flag("use_mem_rope", false)) code.rotary = 1;
  if (row.type == "granitemoehybrid" && in.text({"position_embedding_type"}, "") != "rope") code.rotary = 0;
}

// Each fourth layer sees all tokens and rotates none, the others a chunk of them (Llama4TextConfig).
void read_llama4(CodeReader& in, const Model& model, ModelCode& code) {
  code.window = static_cast<int64_t>(in.number({"attention_chunk_size"}, 8192, 1e12));
  code.windowed.clear();  // layers with a chunk are those that rotate
  code.norms_rotated = in.flag("use_qk_norm", true);
  code.scales_query = in.is_on("attn_temperature_tuning", true);
  const std::string listed = in.text({"no_rope_layers"}, "");
  const auto interval = static_cast<size_t>(std::max(1.0, in.number({"no_rope_layer_interval"}, 4, 1e6)));
  std::vector<bool> given;
  for (const char each : listed) {
    if (each == '0' || each == '1') given.push_back(each == '1');
  }
  const size_t layers = model.towers.back().layers.size();
  for (size_t i = 0; i < layers; ++i)
    code.windowed.push_back(given.size() == layers ? given[i] : (i + 1) % interval != 0);
}

// Gemma3nTextModel and its layers: of more than ten the first ten keep their largest activations alone where
// the file does not say which do.
void read_gemma3n(CodeReader& in, const Model& model, ModelCode& code) {
  code.caps_logits = !in.is_null("final_logit_softcapping");
  code.rotates_by_tokens = code.norms_values = true;
  code.keeps_last_keys = any_block(model, [](const Block& block) {
    const auto* attention = std::get_if<Attention>(&block);
    return attention != nullptr && reuses_keys(*attention);
  });
  const size_t layers = model.towers.back().layers.size();
  const std::string listed = in.text({"activation_sparsity_pattern"}, "");
  for (const char* at = listed.c_str(); *at != '\0' && code.sparse.size() < layers; ++at) {
    char* end = nullptr;
    const double share = std::strtod(at, &end);
    if (end == at) continue;
    code.sparse.push_back(share > 0);
    at = end - 1;
  }
  for (size_t i = code.sparse.size(); i < layers; ++i)
    code.sparse.push_back(listed.empty() && layers > 10 && i < 10);
}

// What a row says as it stands.
void copy_row(const CodeRow& row, ModelCode& code) {
  code.known = true;
  code.names = row.names;
  code.norm = row.norm;
  code.projection = row.projection;
  code.residual = row.residual;
  code.copies_rotated = row.copies_rotated;
  code.rotates_in_fp32 = row.norm == NormCode::kCohere;
  code.rotates_windowed = row.only_windowed;
  code.rotation = row.rotation;
  code.router_in_fp32 = row.router_in_fp32;
  code.experts_in_fp32 = row.weighs_in_fp32;
  code.joined_feed_forward = row.joins_gate_and_up;
  code.transposed_matrices = row.conv1d;
  code.views_matrices = row.type == "falcon";
  code.scores_in_fp32 = row.scores_in_fp32;
  code.softmax_in_fp32 = !row.conv1d && !row.softmax_as_is && !row.two_stacks;
  code.eager_attention = row.norm == NormCode::kT5;
  code.biases_in_layers = row.type == "umt5";
  code.bidirectional = row.encoder;
  code.embedding_norm = row.embedding_norm;
  code.layer_scale = row.layer_scale;
  code.norms_inside = row.norms_inside;
  code.scales_query = row.scales_query;
  code.masked_language_head = row.masked_language_head;
  code.loss_in_fp32 =
      !row.two_stacks && (!row.encoder || row.type == "modernbert") && row.norm != NormCode::kT5;
  code.bounds_scores = row.type == "xglm";
  code.shares_layers = row.type == "albert";
  code.sinks = code.rotates_halves = code.clamps_gates = row.type == "gpt_oss";
}

void read_activation(CodeReader& in, const CodeRow& row, ModelCode& code) {
  std::string name = in.text({"hidden_activation", "activation_function", "hidden_act", "dense_act_fn",
                              "feed_forward_proj", "activation", "mlp_hidden_act"},
                             row.activation);
  if (name.rfind("gated-", 0) == 0) name = name == "gated-gelu" ? "gelu_new" : name.substr(6);
  code.activation = activation_code(name);
}

// What the keys of single types change.
void read_own_keys(CodeReader& in, const CodeRow& row, const Model& model, ModelCode& code) {
  if (row.type == "gpt_neox" && !in.flag("use_parallel_residual", true))
    code.residual = ResidualCode::kBefore;
  code.rotary =
      row.rotary > 0
          ? in.number({"rope_parameters.partial_rotary_factor", "rotary_pct", "partial_rotary_factor"},
                      row.rotary, 1)
          : 0;
  if (row.type == "gptj" || row.type == "codegen") code.rotary = rotated_share(in, model);
  // Latent attention's heads have a part of their own that is rotated.
  if (row.rotation == RotationCode::kPairs && !in.flag("rope_interleave", true))
    code.rotation = RotationCode::kHalves;
  if (in.has("kv_lora_rank")) code.rotary = 1;
  if (row.type == "minimax_m2" && in.has("rotary_dim")) code.rotary = rotated_share(in, model);
  if (row.type == "deberta-v2") read_relative_attention(in, code);
  if (row.type == "falcon") read_falcon(in, code);
  code.scales_embedding = row.scales_embedding || row.multiplied ||
                          (row.two_stacks && in.flag("scale_embedding", row.type == "m2m_100"));
  code.caps_logits = row.caps && !in.is_null("final_logit_softcapping");
  if (row.type == "gemma4_text") read_gemma4(in, code);
  read_mixers(in, row, code);
  code.caps_scores = row.caps && !in.is_null("attn_logit_softcapping");
  const bool hears = row.type == "whisper";
  code.puts_heads_first = hears;
  if (hears) code.sound_channels = static_cast<int64_t>(in.number({"num_mel_bins"}, 80, 1e6));
  code.scales_logits = row.norm == NormCode::kCohere || row.multiplied;
  code.scales_blocks = row.multiplied;
  code.adds_to_logits = row.two_stacks && !hears && row.type != "m2m_100";
}

// Elements of tables that are no weights: XGLM's sines by position, MiniMax's decays.
double kept_tables(CodeReader& in, const CodeRow& row, const Model& model) {
  if (row.type == "xglm")
    return (in.number({"max_position_embeddings"}, 2048, 1e9) + 2) * static_cast<double>(model.hidden);
  double out = 0;
  for (const Layer& layer : model.towers.back().layers) {
    const auto* mixer = std::get_if<Mixer>(&layer.front());
    const auto* lightning = mixer == nullptr ? nullptr : std::get_if<LightningAttention>(&mixer->kind);
    if (lightning == nullptr) continue;
    const auto block = static_cast<double>(lightning->block);
    out += static_cast<double>(lightning->heads) * (block * (block + 2) + 1);
  }
  return out;
}

// A number, or height and width.
double image_elements(CodeReader& in) {
  const std::string size = in.text({"image_size"}, "");
  const double side = !size.empty() && size.front() == '[' ? std::strtod(size.c_str() + 1, nullptr)
                                                           : in.number({"image_size"}, 224, 1e6);
  return side * side * in.number({"num_channels"}, 3, 1e6);
}

}  // namespace

ModelCode read_code(KeyValues& values, const std::string& prefix, const Model& model) {
  ModelCode code;
  const std::string as = values.text(prefix + "read_as", "");
  const std::string type = as.empty() ? model.type : as;
  CodeReader in(values, prefix);
  const CodeRow* row = find_code_row(type == "gemma3" ? "gemma3_text" : std::string_view(type));
  const int said = transformers_release(values, prefix);
  const bool is_newer = row != nullptr && row->since_five && said < kFive;
  const int release = is_newer ? kNewest : said;
  const bool old = release < kFive;
  code.own_attention = !sdpa_of(type).has(release);
  const Checkpoints checkpoints = checkpoints_of(type);
  code.refuses_checkpoints = checkpoints == Checkpoints::kRefused;
  code.ignores_checkpoints = checkpoints == Checkpoints::kIgnoredBeforeFive && old;
  if (row == nullptr) return code;
  copy_row(*row, code);
  if (row->only_five && old) code.known = false;
  code.needs_kernels = old && type == "jamba" && in.flag("use_mamba_kernels", true);
  read_activation(in, *row, code);
  read_own_keys(in, *row, model, code);
  read_dropouts(in, *row, code);
  read_windows(in, *row, model, code);
  if (row->type == "llama4_text") read_llama4(in, model, code);
  if (row->type == "gemma3n_text") read_gemma3n(in, model, code);
  read_version(in, *row, release, code);
  if (row->norm == NormCode::kLayerNorm && in.has("patch_size")) code.sample_elements = image_elements(in);
  code.buffer_elements = kept_tables(in, *row, model);
  // A mask of truth values for each layer: modeling_gpt2.py of 4.57, and GPT-Neo's (register_buffer).
  if ((code.reentrant && row->conv1d) || row->type == "gpt_neo")
    code.buffers_bytes = static_cast<double>(model.positions) * static_cast<double>(model.positions) *
                         static_cast<double>(model.towers.back().layers.size());
  return code;
}

// A pixel has three colours; of videos two images are one patch, which an image is repeated for.
ModelCode read_vision_code(KeyValues& values, const std::string& prefix, const Tower& tower) {
  Model model;
  model.type = tower.type;
  model.towers = {tower};
  ModelCode code = read_code(values, prefix, model);
  const double frames = values.has(prefix + "temporal_patch_size") || tower.type.rfind("qwen", 0) == 0 ||
                                tower.type.rfind("glm", 0) == 0 || tower.type.rfind("exaone", 0) == 0
                            ? 2
                            : 1;
  if (tower.patch_pixels > 0)
    code.sample_elements = 3 * frames * static_cast<double>(tower.sequence * tower.patch_pixels);
  return code;
}

}  // namespace spillway::estimator
