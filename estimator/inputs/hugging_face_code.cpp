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
  bool joined = false;          // gate and up are one matrix
  bool copies_rotated = false;  // as in ModelCode
  bool conv1d = false;          // matrices are kept transposed
  bool scales_embedding = false;
  bool caps = false;           // scores and logits, where the file does not say otherwise
  bool only_windowed = false;  // layers without a window do not rotate
  bool embedding_norm = false;
  bool masked_language_head = false;
  bool layer_scale = false;
  bool two_stacks = false;  // BART and its like: no cache beside labels, and a loss of logits as they are
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
    .embedding_norm = true,
    .masked_language_head = true,
    .names = {
        .query = "query", .key = "key", .value = "value", .output = "dense", .up = "dense", .down = "dense"}};
constexpr CodeRow kDistilBertCode{.type = "distilbert",
                                  .norm = NormCode::kLayerNorm,
                                  .activation = "gelu",
                                  .residual = ResidualCode::kBehind,
                                  .rotary = 0,
                                  .dropout = 0.1,
                                  .encoder = true,
                                  .embedding_norm = true,
                                  .masked_language_head = true,
                                  .names = {.query = "q_lin",
                                            .key = "k_lin",
                                            .value = "v_lin",
                                            .output = "out_lin",
                                            .up = "lin1",
                                            .down = "lin2"}};
constexpr CodeRow kGpt2Code{
    .type = "gpt2",
    .norm = NormCode::kLayerNorm,
    .projection = ProjectionCode::kSplit,
    .activation = "gelu_new",
    .rotary = 0,
    .dropout = 0.1,
    .conv1d = true,
    .names = {.joined = "c_attn", .output = "c_proj", .up = "c_fc", .down = "c_proj"}};
constexpr CodeRow kT5Code{
    .type = "t5",
    .norm = NormCode::kT5,
    .activation = "relu",
    .rotary = 0,
    .dropout = 0.1,
    .names = {
        .query = "q", .key = "k", .value = "v", .output = "o", .gate = "wi_0", .up = "wi_1", .down = "wo"}};
constexpr CodeRow kMt5Code{.type = "mt5",
                           .norm = NormCode::kT5,
                           .activation = "gelu_new",
                           .rotary = 0,
                           .dropout = 0.1,
                           .names = kT5Code.names};
constexpr CodeRow kGlmCode{
    .type = "glm", .rotary = 0.5, .joined = true, .copies_rotated = true, .names = {.gate = "gate_up_proj"}};
constexpr CodeRow kGlm4Code{.type = "glm4",
                            .residual = ResidualCode::kBoth,
                            .rotary = 0.5,
                            .joined = true,
                            .copies_rotated = true,
                            .names = kGlmCode.names};
constexpr CodeRow kVitCode{.type = "vit",
                           .norm = NormCode::kLayerNorm,
                           .activation = "gelu",
                           .rotary = 0,
                           .encoder = true,
                           .names = kBertCode.names};

constexpr CodeRow kDinoCode{.type = "dinov2",
                            .norm = NormCode::kLayerNorm,
                            .activation = "gelu",
                            .rotary = 0,
                            .encoder = true,
                            .layer_scale = true,
                            .names = kBertCode.names};

constexpr CodeRow kBartCode{.type = "bart",
                            .norm = NormCode::kLayerNorm,
                            .activation = "gelu",
                            .residual = ResidualCode::kBehind,
                            .rotary = 0,
                            .dropout = 0.1,
                            .embedding_norm = true,
                            .two_stacks = true,
                            .names = {.output = "out_proj", .up = "fc1", .down = "fc2"}};
// The same with norms before blocks.
constexpr CodeRow kMbartCode{.type = "mbart",
                             .norm = NormCode::kLayerNorm,
                             .activation = "gelu",
                             .rotary = 0,
                             .dropout = 0.1,
                             .embedding_norm = true,
                             .two_stacks = true,
                             .names = kBartCode.names};
constexpr CodeRow kPegasusCode{.type = "pegasus",
                               .norm = NormCode::kLayerNorm,
                               .activation = "gelu",
                               .rotary = 0,
                               .dropout = 0.1,
                               .two_stacks = true,
                               .names = kBartCode.names};

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

constexpr CodeRow kQwenTowerCode{.type = "qwen2_5_vl_tower",
                                 .projection = ProjectionCode::kSplit,
                                 .encoder = true,
                                 .names = {.joined = "qkv", .output = "proj"}};
constexpr CodeRow kTurnedSiglipCode{.type = "video_llama_3_tower",
                                    .norm = NormCode::kLayerNorm,
                                    .activation = "gelu_pytorch_tanh",
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
    CodeRow{.type = "paddleocr_vl_text"},
    CodeRow{.type = "seed_oss"},
    CodeRow{.type = "cwm"},
    CodeRow{.type = "arcee", .activation = "relu2"},
    CodeRow{.type = "olmo", .norm = NormCode::kOlmo},
    CodeRow{.type = "olmoe"},
    CodeRow{.type = "phi3",
            .projection = ProjectionCode::kSliced,
            .joined = true,
            .copies_rotated = true,
            .names = {.gate = "gate_up_proj"}},
    CodeRow{.type = "gemma",
            .norm = NormCode::kGemma,
            .activation = "gelu_pytorch_tanh",
            .scales_embedding = true},
    CodeRow{.type = "gemma2",
            .norm = NormCode::kGemma,
            .activation = "gelu_pytorch_tanh",
            .residual = ResidualCode::kBoth,
            .window = 4096,
            .window_pattern = 2,
            .caches_in_training = false,
            .scales_embedding = true,
            .caps = true},
    CodeRow{.type = "vaultgemma",
            .norm = NormCode::kGemma,
            .activation = "gelu_pytorch_tanh",
            .window = 4096,
            .window_pattern = 2,
            .caches_in_training = false,
            .scales_embedding = true,
            .caps = true},
    CodeRow{.type = "gemma3_text",
            .norm = NormCode::kGemma,
            .activation = "gelu_pytorch_tanh",
            .residual = ResidualCode::kBoth,
            .window = 4096,
            .window_pattern = 6,
            .caches_in_training = false,
            .scales_embedding = true},
    CodeRow{.type = "olmo2", .norm = NormCode::kGemma, .residual = ResidualCode::kAfter},
    CodeRow{.type = "olmo3",
            .norm = NormCode::kGemma,
            .residual = ResidualCode::kAfter,
            .window = 4096,
            .window_pattern = 4},
    CodeRow{.type = "exaone4",
            .residual = ResidualCode::kAfter,
            .window = 4096,
            .window_pattern = 4,
            .only_windowed = true},
    CodeRow{.type = "helium", .norm = NormCode::kGemma},
    CodeRow{.type = "cohere", .norm = NormCode::kCohere, .residual = ResidualCode::kParallel},
    CodeRow{.type = "cohere2",
            .norm = NormCode::kCohere,
            .residual = ResidualCode::kParallel,
            .window = 4096,
            .window_pattern = 4,
            .only_windowed = true},
    kGlmCode,
    kGlm4Code,
    code_named("glm4v_text", kGlm4Code),
    code_named("glm_ocr_text", kGlm4Code),
    CodeRow{.type = "phimoe", .norm = NormCode::kLayerNorm},
    CodeRow{.type = "ernie4_5_moe"},
    CodeRow{.type = "glm4_moe", .rotary = 0.5, .copies_rotated = true},
    CodeRow{.type = "gptj",
            .norm = NormCode::kLayerNorm,
            .activation = "gelu_new",
            .residual = ResidualCode::kParallel,
            .names = {.output = "out_proj", .up = "fc_in", .down = "fc_out"}},
    CodeRow{.type = "codegen",
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSplit,
            .activation = "gelu_new",
            .residual = ResidualCode::kParallel,
            .names = {.output = "out_proj", .up = "fc_in", .down = "fc_out"}},
    CodeRow{.type = "gpt_neo",
            .norm = NormCode::kLayerNorm,
            .activation = "gelu_new",
            .rotary = 0,
            .names = {.output = "out_proj", .up = "c_fc", .down = "c_proj"}},
    CodeRow{.type = "bloom",
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSliced,
            .activation = "gelu",
            .rotary = 0,
            .embedding_norm = true,
            .names = {.joined = "query_key_value",
                      .output = "dense",
                      .up = "dense_h_to_4h",
                      .down = "dense_4h_to_h"}},
    CodeRow{.type = "falcon",
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSliced,
            .activation = "gelu",
            .residual = ResidualCode::kParallel,
            .names = {.joined = "query_key_value",
                      .output = "dense",
                      .up = "dense_h_to_4h",
                      .down = "dense_4h_to_h"}},
    CodeRow{.type = "gpt_oss", .norm = NormCode::kGemma, .window = 128, .window_pattern = 2},
    CodeRow{.type = "modernbert",
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSplit,
            .activation = "gelu",
            .encoder = true,
            .window = 128,
            .window_pattern = 3,
            .joined = true,
            .embedding_norm = true,
            .masked_language_head = true,
            .names = {.joined = "Wqkv", .output = "Wo", .gate = "Wi", .down = "Wo"}},
    CodeRow{.type = "gpt_bigcode",
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSplit,
            .activation = "gelu_pytorch_tanh",
            .rotary = 0,
            .dropout = 0.1,
            .names = kGpt2Code.names},
    kGpt2Code,
    code_named("gpt-sw3", kGpt2Code),
    CodeRow{.type = "gpt_neox",
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSplit,
            .activation = "gelu",
            .residual = ResidualCode::kParallel,
            .rotary = 0.25,
            .copies_rotated = true,
            .names = {.joined = "query_key_value",
                      .output = "dense",
                      .up = "dense_h_to_4h",
                      .down = "dense_4h_to_h"}},
    CodeRow{.type = "phi",
            .norm = NormCode::kLayerNorm,
            .activation = "gelu_new",
            .residual = ResidualCode::kParallel,
            .rotary = 0.5,
            .copies_rotated = true,
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
    code_named("data2vec-text", kBertCode),
    code_named("deberta-v2", kBertCode),
    code_named("electra", kBertCode),
    code_named("mpnet", kBertCode),
    kDistilBertCode,
    kT5Code,
    kMt5Code,
    code_named("umt5", kMt5Code),
    kBartCode,
    code_named("plbart", kBartCode),
    code_named("blenderbot-small", kBartCode),
    kMbartCode,
    kPegasusCode,
    code_named("blenderbot", kPegasusCode),
    code_named("m2m_100", kPegasusCode),
    code_named("whisper", kPegasusCode),
    CodeRow{.type = "marian",
            .norm = NormCode::kLayerNorm,
            .activation = "gelu",
            .residual = ResidualCode::kBehind,
            .rotary = 0,
            .dropout = 0.1,
            .two_stacks = true,
            .names = kBartCode.names},
    kVitCode,
    code_named("deit", kVitCode),
    code_named("vit_msn", kVitCode),
    kDinoCode,
    code_named("dinov2_with_registers", kDinoCode),
    kClipCode,
    kSiglipCode,
    code_named("idefics3_vision", kSiglipCode),
    code_named("smolvlm_vision", kSiglipCode),
    code_named("siglip2_vision_model", kSiglipCode),
    kTurnedSiglipCode,
    code_named("paddleocr_tower", kTurnedSiglipCode),
    CodeRow{.type = "moonvit_tower",
            .norm = NormCode::kLayerNorm,
            .activation = "gelu_pytorch_tanh",
            .encoder = true,
            .names = {.output = "proj", .up = "fc1", .down = "fc2"}},
    // Images of a batch are one sequence with a mask of blocks.
    CodeRow{.type = "pixtral", .activation = "gelu", .encoder = true, .window = 1},
    CodeRow{.type = "qwen2_vl_tower",
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSplit,
            .activation = "quick_gelu",
            .encoder = true,
            .names = {.joined = "qkv", .output = "proj", .up = "fc1", .down = "fc2"}},
    kQwenTowerCode,
    code_named("exaone4_5_tower", kQwenTowerCode),
    code_named("glm4v_tower", kQwenTowerCode),
    code_named("glm_ocr_tower", kQwenTowerCode),
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
            .layer_scale = true,
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
  const double otherwise = row.dropout;
  code.hidden_dropout = in.number(
      {"resid_pdrop", "hidden_dropout_prob", "hidden_dropout", "dropout_rate", "dropout"}, otherwise, 1);
  code.attention_dropout = in.number(
      {"attn_pdrop", "attention_probs_dropout_prob", "attention_dropout", "dropout_rate"}, otherwise, 1);
  code.embedding_dropout =
      in.number({"embd_pdrop", "hidden_dropout_prob", "dropout_rate", "dropout"}, otherwise, 1);
  // OPT's and BART's is of hidden states, and attention scores have none unless the file says so. OPT's
  // embedding has none either.
  if (row.type == "opt" || row.two_stacks) code.attention_dropout = in.number({"attention_dropout"}, 0, 1);
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
  code.experts_in_fp32 = old && row.type == "glm4_moe";
  code.experts = old ? ExpertsCode::kLoop : ExpertsCode::kGrouped;
  code.uses_cache = !row.encoder && in.flag("use_cache", true) && (row.caches_in_training || !old) &&
                    (!row.two_stacks || row.type == "whisper");
  code.biased_attention = !old && row.norm == NormCode::kT5;
  // Positions of three dimensions say nothing of packed sequences (Qwen's models of images).
  const bool three = (row.type.find("_vl") != std::string_view::npos || row.type == "glm4v_text" ||
                      row.type == "glm_ocr_text") &&
                     !row.encoder;
  // Falcon of transformers 5 makes its mask for biases by positions, which it may not have.
  code.always_masked = row.type == (old ? "modernbert" : "falcon");
  code.masks_without_cache = old && row.norm != NormCode::kT5 && !three && !row.two_stacks;
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
  std::string activation = in.text({"hidden_activation", "activation_function", "hidden_act", "dense_act_fn",
                                    "feed_forward_proj", "activation"},
                                   row->activation);
  if (activation.rfind("gated-", 0) == 0)
    activation = activation == "gated-gelu" ? "gelu_new" : activation.substr(6);
  code.activation = activation_code(activation);
  code.residual = row->residual;
  if (row->type == "gpt_neox" && !in.flag("use_parallel_residual", true))
    code.residual = ResidualCode::kBefore;
  code.rotary = row->rotary > 0 ? in.number({"rotary_pct", "partial_rotary_factor"}, row->rotary, 1) : 0;
  code.copies_rotated = row->copies_rotated;
  code.rotates_in_fp32 = row->norm == NormCode::kCohere;
  code.rotates_windowed = row->only_windowed;
  code.joined_feed_forward = row->joined;
  code.transposed_matrices = row->conv1d;
  code.scores_in_fp32 = row->type == "gptj" || row->type == "codegen" || row->type == "gpt_neo";
  code.sinks = code.rotates_halves = code.clamps_gates = row->type == "gpt_oss";
  code.softmax_in_fp32 =
      !code.transposed_matrices && row->residual != ResidualCode::kBehind && !row->two_stacks;
  code.eager_attention = row->norm == NormCode::kT5;
  code.bidirectional = row->encoder;
  code.scales_embedding = row->scales_embedding || (row->two_stacks && in.flag("scale_embedding", false));
  code.embedding_norm = row->embedding_norm;
  code.layer_scale = row->layer_scale;
  code.caps_logits = row->caps && in.text({"final_logit_softcapping"}, "30") != "null";
  code.caps_scores = row->caps && in.text({"attn_logit_softcapping"}, "50") != "null";
  const bool hears = row->type == "whisper";
  code.scales_logits = row->norm == NormCode::kCohere || (row->two_stacks && !hears);
  if (hears) code.sound_channels = static_cast<int64_t>(in.number({"num_mel_bins"}, 80, 1e6));
  code.masked_language_head = row->masked_language_head;
  code.loss_in_fp32 =
      !row->two_stacks && (!row->encoder || row->type == "modernbert") && row->norm != NormCode::kT5;
  code.repeats_first = row->type == "falcon" && in.flag("new_decoder_architecture", false);
  code.broadcasts_heads = row->type == "falcon" && !code.repeats_first;
  if (row->type == "gptj" || row->type == "codegen") code.rotary = rotated_share(in, model);
  if (row->type == "deberta-v2") read_relative_attention(in, code);
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
  if (code.reentrant && row->conv1d)
    code.buffers_bytes = static_cast<double>(model.positions) * static_cast<double>(model.positions) *
                         static_cast<double>(model.towers.back().layers.size());
  return code;
}

// GPTBigCodeBlock of transformers 4 is no GradientCheckpointingLayer, nor does its model call checkpoint().
bool recomputes_nothing(KeyValues& values, const std::string& prefix, const Model& model) {
  return model.type == "gpt_bigcode" &&
         values.text(prefix + "transformers_version", "4.57").rfind("4.", 0) == 0;
}

// Types whose classes do not say _supports_sdpa: in both versions, and in transformers 4 alone.
bool computes_all_scores(KeyValues& values, const std::string& prefix, const Model& model) {
  constexpr std::array kTypes = {std::string_view("bloom"),   std::string_view("codegen"),
                                 std::string_view("deberta"), std::string_view("deberta-v2"),
                                 std::string_view("gpt_neo"), std::string_view("gpt_oss"),
                                 std::string_view("gptj"),    std::string_view("megatron-bert"),
                                 std::string_view("mpnet"),   std::string_view("xglm")};
  constexpr std::array kOldTypes = {std::string_view("data2vec-text"), std::string_view("electra"),
                                    std::string_view("roberta-prelayernorm"), std::string_view("umt5")};
  const bool old = values.text(prefix + "transformers_version", "4.57").rfind("4.", 0) == 0;
  return std::find(kTypes.begin(), kTypes.end(), model.type) != kTypes.end() ||
         (old && std::find(kOldTypes.begin(), kOldTypes.end(), model.type) != kOldTypes.end());
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
