#include "estimator/inputs/hugging_face_code.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace spillway::estimator {
namespace {

// Says what a type's code does where its file does not say otherwise. Sources: transformers 4.57 and 5.17,
// models/<type>/modeling_<type>.py and configuration_<type>.py.
struct CodeRow {
  std::string_view type;
  NormCode norm = NormCode::kLlama;
  ProjectionCode projection = ProjectionCode::kSeparate;
  std::string_view activation = "silu";
  ResidualCode residual = ResidualCode::kBefore;
  double rotary = 1;
  double dropout = 0;  // hidden, of attention and of the embedding
  bool encoder = false;
  int64_t window = 0;
  int64_t window_pattern = 0;  // each n-th layer has none
  bool caches_in_training = true;
  ModuleNames names = {};
};

constexpr CodeRow kBertCode{
    .type = "bert",
    .norm = NormCode::kLayerNorm,
    .activation = "gelu",
    .residual = ResidualCode::kBehind,
    .rotary = 0,
    .dropout = 0.1,
    .encoder = true,
    .names = {
        .query = "query", .key = "key", .value = "value", .output = "dense", .up = "dense", .down = "dense"}};
constexpr CodeRow kGpt2Code{
    .type = "gpt2",
    .norm = NormCode::kLayerNorm,
    .projection = ProjectionCode::kSplit,
    .activation = "gelu_new",
    .rotary = 0,
    .dropout = 0.1,
    .names = {.joined = "c_attn", .output = "c_proj", .up = "c_fc", .down = "c_proj"}};
constexpr CodeRow kT5Code{
    .type = "t5",
    .norm = NormCode::kT5,
    .activation = "relu",
    .rotary = 0,
    .dropout = 0.1,
    .names = {
        .query = "q", .key = "k", .value = "v", .output = "o", .gate = "wi_0", .up = "wi_1", .down = "wo"}};
constexpr CodeRow kVitCode{.type = "vit",
                           .norm = NormCode::kLayerNorm,
                           .activation = "gelu",
                           .rotary = 0,
                           .encoder = true,
                           .names = kBertCode.names};

constexpr CodeRow kClipCode{.type = "clip_vision_model",
                            .norm = NormCode::kLayerNorm,
                            .activation = "quick_gelu",
                            .rotary = 0,
                            .encoder = true,
                            .names = {.output = "out_proj", .up = "fc1", .down = "fc2"}};
constexpr CodeRow kSiglipCode{.type = "siglip_vision_model",
                              .norm = NormCode::kLayerNorm,
                              .activation = "gelu_pytorch_tanh",
                              .rotary = 0,
                              .encoder = true,
                              .names = kClipCode.names};

constexpr CodeRow code_named(std::string_view type, CodeRow row) {
  row.type = type;
  return row;
}

constexpr std::array kCodeRows = {
    CodeRow{.type = "llama"},
    CodeRow{.type = "mistral", .window = 4096},
    CodeRow{.type = "ministral"},
    CodeRow{.type = "mixtral"},
    CodeRow{.type = "qwen2"},
    CodeRow{.type = "qwen2_vl"},
    CodeRow{.type = "qwen2_vl_text"},
    CodeRow{.type = "qwen2_5_vl"},
    CodeRow{.type = "qwen2_5_vl_text"},
    CodeRow{.type = "qwen2_moe"},
    CodeRow{.type = "qwen3"},
    CodeRow{.type = "qwen3_vl_text"},
    CodeRow{.type = "qwen3_moe"},
    CodeRow{.type = "smollm3"},
    CodeRow{.type = "granite"},
    CodeRow{.type = "ernie4_5"},
    CodeRow{.type = "seed_oss"},
    CodeRow{.type = "cwm"},
    CodeRow{.type = "arcee", .activation = "relu2"},
    CodeRow{.type = "olmo", .norm = NormCode::kLayerNorm},
    CodeRow{.type = "olmoe"},
    CodeRow{.type = "phi3", .projection = ProjectionCode::kSliced, .names = {.gate = "gate_up_proj"}},
    CodeRow{.type = "gemma", .norm = NormCode::kGemma, .activation = "gelu_pytorch_tanh"},
    CodeRow{.type = "gemma2",
            .norm = NormCode::kGemma,
            .activation = "gelu_pytorch_tanh",
            .residual = ResidualCode::kBoth,
            .window = 4096,
            .window_pattern = 2,
            .caches_in_training = false},
    CodeRow{.type = "gemma3_text",
            .norm = NormCode::kGemma,
            .activation = "gelu_pytorch_tanh",
            .residual = ResidualCode::kBoth,
            .window = 4096,
            .window_pattern = 6,
            .caches_in_training = false},
    kGpt2Code,
    code_named("gpt-sw3", kGpt2Code),
    CodeRow{.type = "gpt_neox",
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSplit,
            .activation = "gelu",
            .residual = ResidualCode::kParallel,
            .rotary = 0.25,
            .names = {.joined = "query_key_value",
                      .output = "dense",
                      .up = "dense_h_to_4h",
                      .down = "dense_4h_to_h"}},
    CodeRow{.type = "phi",
            .norm = NormCode::kLayerNorm,
            .activation = "gelu_new",
            .residual = ResidualCode::kParallel,
            .rotary = 0.5,
            .names = {.output = "dense", .up = "fc1", .down = "fc2"}},
    CodeRow{.type = "starcoder2",
            .norm = NormCode::kLayerNorm,
            .activation = "gelu_pytorch_tanh",
            .names = {.up = "c_fc", .down = "c_proj"}},
    CodeRow{.type = "stablelm", .norm = NormCode::kLayerNorm, .rotary = 0.25},
    CodeRow{.type = "nemotron", .norm = NormCode::kLayerNorm, .activation = "relu2", .rotary = 0.5},
    CodeRow{.type = "opt",
            .norm = NormCode::kLayerNorm,
            .activation = "relu",
            .rotary = 0,
            .dropout = 0.1,
            .names = {.output = "out_proj", .up = "fc1", .down = "fc2"}},
    kBertCode,
    code_named("roberta", kBertCode),
    code_named("xlm-roberta", kBertCode),
    code_named("camembert", kBertCode),
    kT5Code,
    code_named("mt5", kT5Code),
    kVitCode,
    code_named("deit", kVitCode),
    code_named("vit_msn", kVitCode),
    kClipCode,
    kSiglipCode,
    code_named("idefics3_vision", kSiglipCode),
    code_named("smolvlm_vision", kSiglipCode),
    // Images of a batch are one sequence with a mask of blocks.
    CodeRow{.type = "pixtral", .activation = "gelu", .encoder = true, .window = 1},
    CodeRow{.type = "qwen2_vl_tower",
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSplit,
            .activation = "quick_gelu",
            .encoder = true,
            .names = {.joined = "qkv", .output = "proj", .up = "fc1", .down = "fc2"}},
    CodeRow{.type = "qwen2_5_vl_tower",
            .projection = ProjectionCode::kSplit,
            .encoder = true,
            .names = {.joined = "qkv", .output = "proj"}},
    CodeRow{.type = "qwen3_vl_tower",
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSplit,
            .activation = "gelu_pytorch_tanh",
            .encoder = true,
            .names = {.joined = "qkv", .output = "proj", .up = "linear_fc1", .down = "linear_fc2"}},
    CodeRow{.type = "internvl_vision",
            .norm = NormCode::kLayerNorm,
            .activation = "gelu",
            .rotary = 0,
            .encoder = true,
            .names = {.output = "projection_layer", .up = "fc1", .down = "fc2"}},
};

ActivationCode activation_code(std::string_view name) {
  if (name == "relu" || name == "tanh" || name == "sigmoid") return ActivationCode::kOfResult;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_accurate") return ActivationCode::kGeluNew;
  if (name == "quick_gelu") return ActivationCode::kGeluQuick;
  if (name == "relu2") return ActivationCode::kSquaredRelu;
  return ActivationCode::kOfInput;
}

class CodeReader {
 public:
  CodeReader(KeyValues& values, const std::string& prefix) : values_(values), prefix_(prefix) {}

  bool has(std::string_view key) {
    return values_.has(prefix_ + std::string(key)) && values_.text(prefix_ + std::string(key), "") != "null";
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
  bool flag(std::string_view key, bool otherwise) {
    return has(key) ? values_.truth(prefix_ + std::string(key), otherwise) : otherwise;
  }

 private:
  KeyValues& values_;
  const std::string& prefix_;
};

void read_dropouts(CodeReader& in, const CodeRow& row, ModelCode& code) {
  const double otherwise = row.dropout;
  code.hidden_dropout = in.number(
      {"resid_pdrop", "hidden_dropout_prob", "hidden_dropout", "dropout_rate", "dropout"}, otherwise, 1);
  code.attention_dropout = in.number(
      {"attn_pdrop", "attention_probs_dropout_prob", "attention_dropout", "dropout_rate"}, otherwise, 1);
  code.embedding_dropout =
      in.number({"embd_pdrop", "hidden_dropout_prob", "dropout_rate", "dropout"}, otherwise, 1);
  // OPT's is of hidden states; its embedding has none, nor do attention scores unless the file says so.
  if (row.type == "opt") code.attention_dropout = in.number({"attention_dropout"}, 0, 1);
  if (row.type == "opt") code.embedding_dropout = 0;
}

void read_windows(CodeReader& in, const CodeRow& row, const Model& model, ModelCode& code) {
  const bool used = row.type.substr(0, 4) != "qwen" || in.flag("use_sliding_window", false);
  if (!used) return;
  code.window = static_cast<int64_t>(in.number({"sliding_window"}, static_cast<double>(row.window), 1e12));
  if (in.text({"sliding_window"}, "") == "null") code.window = 0;
  const std::string types = in.text({"layer_types"}, "");
  const size_t layers = model.towers.back().layers.size();
  for (size_t at = 0; at < types.size() && code.windowed.size() < layers;) {
    const size_t next = types.find("_attention", at);
    if (next == std::string::npos) break;
    code.windowed.push_back(types.substr(at, next - at).find("sliding") != std::string::npos);
    at = next + 1;
  }
  if (!code.windowed.empty() || row.window_pattern == 0) return;
  const auto pattern = static_cast<size_t>(
      in.number({"sliding_window_pattern"}, static_cast<double>(row.window_pattern), 1e6));
  for (size_t i = 0; i < layers; ++i) code.windowed.push_back((i + 1) % std::max<size_t>(1, pattern) != 0);
}

void read_version(CodeReader& in, const CodeRow& row, ModelCode& code) {
  const std::string version = in.text({"transformers_version"}, "4.57");
  const bool old = version.rfind("4.", 0) == 0;
  code.reentrant = old;
  code.experts = old ? ExpertsCode::kLoop : ExpertsCode::kGrouped;
  code.uses_cache = !row.encoder && in.flag("use_cache", true) && (row.caches_in_training || !old);
  code.biased_attention = !old && row.norm == NormCode::kT5;
  // Positions of three dimensions say nothing of packed sequences (Qwen's models of images).
  const bool three = row.type.find("_vl") != std::string_view::npos && !row.encoder;
  code.masks_without_cache = old && row.norm != NormCode::kT5 && !three;
}

}  // namespace

ModelCode read_code(KeyValues& values, const std::string& prefix, const Model& model) {
  ModelCode code;
  const std::string as = values.text(prefix + "read_as", "");
  const std::string type = as.empty() ? model.type : as;
  const std::string_view wanted = type == "gemma3" ? "gemma3_text" : std::string_view(type);
  const auto* row = std::find_if(kCodeRows.begin(), kCodeRows.end(),
                                 [&](const CodeRow& each) { return each.type == wanted; });
  if (row == kCodeRows.end()) return code;
  CodeReader in(values, prefix);
  code.known = true;
  code.names = row->names;
  code.norm = row->norm;
  code.projection = row->projection;
  std::string activation =
      in.text({"hidden_activation", "activation_function", "hidden_act", "dense_act_fn", "feed_forward_proj"},
              row->activation);
  if (activation.rfind("gated-", 0) == 0)
    activation = activation == "gated-gelu" ? "gelu_new" : activation.substr(6);
  code.activation = activation_code(activation);
  code.residual = row->residual;
  if (row->type == "gpt_neox" && !in.flag("use_parallel_residual", true))
    code.residual = ResidualCode::kBefore;
  code.rotary = row->rotary > 0 ? in.number({"rotary_pct", "partial_rotary_factor"}, row->rotary, 1) : 0;
  code.copies_rotated = row->type == "gpt_neox" || row->type == "phi3" || row->type == "phi";
  code.joined_feed_forward = row->type == "phi3";
  code.transposed_matrices = row->projection == ProjectionCode::kSplit && row->rotary == 0;
  code.softmax_in_fp32 = !code.transposed_matrices && row->residual != ResidualCode::kBehind;
  code.eager_attention = row->norm == NormCode::kT5;
  code.bidirectional = row->encoder;
  code.scales_embedding = row->type.substr(0, 5) == "gemma";
  code.embedding_norm = row->residual == ResidualCode::kBehind;
  code.layer_scale = row->type == "internvl_vision";
  code.caps_logits = row->type == "gemma2" && in.text({"final_logit_softcapping"}, "30") != "null";
  code.caps_scores = row->type == "gemma2" && in.text({"attn_logit_softcapping"}, "50") != "null";
  code.masked_language_head = row->residual == ResidualCode::kBehind;
  code.loss_in_fp32 = !row->encoder && row->norm != NormCode::kT5;
  read_dropouts(in, *row, code);
  read_windows(in, *row, model, code);
  read_version(in, *row, code);
  if (row->norm == NormCode::kLayerNorm && in.has("patch_size")) {
    // A number, or height and width.
    const std::string size = in.text({"image_size"}, "");
    const double side = !size.empty() && size.front() == '[' ? std::strtod(size.c_str() + 1, nullptr)
                                                             : in.number({"image_size"}, 224, 1e6);
    code.sample_elements = side * side * in.number({"num_channels"}, 3, 1e6);
  }
  // A mask of truth values for each layer (modeling_gpt2.py of 4.57, register_buffer).
  if (code.reentrant && row->projection == ProjectionCode::kSplit && row->rotary == 0)
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
  const double frames =
      values.has(prefix + "temporal_patch_size") || tower.type.rfind("qwen", 0) == 0 ? 2 : 1;
  if (tower.patch_pixels > 0)
    code.sample_elements = 3 * frames * static_cast<double>(tower.sequence * tower.patch_pixels);
  return code;
}

}  // namespace spillway::estimator
