#include "estimator/inputs/code_rows.h"

#include <algorithm>
#include <array>

namespace spillway::estimator {
namespace {

constexpr Releases kSinceFive{kFive};
constexpr Releases kNever{kNoRelease};

constexpr CodeRow code_named(std::string_view type, CodeRow row) {
  row.type = type;
  return row;
}

// The row of another type, which `change` makes this one's.
template <typename Change>
constexpr CodeRow changed(std::string_view type, CodeRow row, Change change) {
  change(row);
  return code_named(type, row);
}

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
    .softmax_as_is = true,
    .returns_scores = true,
    .names = {
        .query = "query", .key = "key", .value = "value", .output = "dense", .up = "dense", .down = "dense"}};
// Norms stand before blocks; the first one's takes the place of the embedding's.
constexpr CodeRow kBertNormedBeforeCode = changed("xlm-roberta-xl", kBertCode, [](CodeRow& row) {
  row.residual = ResidualCode::kBefore;
  row.embedding_norm = false;
});
constexpr CodeRow kDistilBertCode = changed("distilbert", kBertCode, [](CodeRow& row) {
  row.returns_scores = false;
  row.names = {
      .query = "q_lin", .key = "k_lin", .value = "v_lin", .output = "out_lin", .up = "lin1", .down = "lin2"};
});
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
    .sdpa = kSinceFive,
    .norm = NormCode::kT5,
    .activation = "relu",
    .rotary = 0,
    .dropout = 0.1,
    .names = {
        .query = "q", .key = "k", .value = "v", .output = "o", .gate = "wi_0", .up = "wi_1", .down = "wo"}};
constexpr CodeRow kMt5Code = changed("mt5", kT5Code, [](CodeRow& row) { row.activation = "gelu_new"; });
constexpr CodeRow kGlmCode{.type = "glm",
                           .rotary = 0.5,
                           .joins_gate_and_up = true,
                           .copies_rotated = true,
                           .names = {.gate = "gate_up_proj"}};
constexpr CodeRow kGlm4Code =
    changed("glm4", kGlmCode, [](CodeRow& row) { row.residual = ResidualCode::kBoth; });
constexpr CodeRow kVitCode{.type = "vit",
                           .norm = NormCode::kLayerNorm,
                           .activation = "gelu",
                           .rotary = 0,
                           .encoder = true,
                           .names = kBertCode.names};

constexpr CodeRow kDinoCode = changed("dinov2", kVitCode, [](CodeRow& row) {
  row.layer_scale = true;
  row.names = {.query = "query",
               .key = "key",
               .value = "value",
               .output = "dense",
               .gate = "weights_in",
               .up = "fc1",
               .down = "fc2"};
});

constexpr CodeRow kBartCode{.type = "bart",
                            .norm = NormCode::kLayerNorm,
                            .activation = "gelu",
                            .residual = ResidualCode::kBehind,
                            .rotary = 0,
                            .dropout = 0.1,
                            .attention_dropout = 0,
                            .embedding_norm = true,
                            .two_stacks = true,
                            .names = {.output = "out_proj", .up = "fc1", .down = "fc2"}};
constexpr CodeRow kMbartCode = changed("mbart", kBartCode, [](CodeRow& row) {
  row.residual = ResidualCode::kBefore;
  row.encoder_returns_scores = true;
});
constexpr CodeRow kPegasusCode =
    changed("pegasus", kMbartCode, [](CodeRow& row) { row.embedding_norm = false; });

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
constexpr CodeRow kTurnedSiglipCode =
    changed("video_llama_3_tower", kSiglipCode, [](CodeRow& row) { row.rotary = 1; });

constexpr CodeRow kExaone4Code{.type = "exaone4",
                               .residual = ResidualCode::kAfter,
                               .window = 4096,
                               .window_pattern = 4,
                               .only_windowed = true};
constexpr CodeRow kGlm4vCode = changed("glm4v_text", kGlm4Code, [](CodeRow& row) { row.unmasked = true; });
constexpr CodeRow kDebertaCode = changed("deberta-v2", kBertCode, [](CodeRow& row) {
  row.returns_scores = false;
  row.sdpa = kNever;
  row.names = {.query = "query_proj",
               .key = "key_proj",
               .value = "value_proj",
               .output = "dense",
               .up = "dense",
               .down = "dense"};
});
constexpr CodeRow kMpnetCode = changed("mpnet", kBertCode, [](CodeRow& row) {
  row.sdpa = kNever;
  row.checkpoints = Checkpoints::kRefused;
  row.names = {.query = "q", .key = "k", .value = "v", .output = "o", .up = "dense", .down = "dense"};
});
constexpr CodeRow kPlbartCode =
    changed("plbart", kBartCode, [](CodeRow& row) { row.attention_dropout = -1; });
constexpr CodeRow kM2mCode = changed("m2m_100", kPegasusCode, [](CodeRow& row) {
  row.activation = "relu";
  row.attention_dropout = -1;
});
constexpr CodeRow kWhisperCode = changed("whisper", kPegasusCode, [](CodeRow& row) { row.dropout = 0; });
constexpr CodeRow kGlm4MoeCode{.type = "glm4_moe",
                               .rotary = 0.5,
                               .copies_rotated = true,
                               .router_in_fp32 = true,
                               .weighs_in_fp32 = true};
constexpr CodeRow kDeepseekCode{
    .type = "deepseek_v3", .rotation = RotationCode::kPairs, .router_in_fp32 = true, .weighs_in_fp32 = true};
constexpr CodeRow kGlm4vMoeCode =
    changed("glm4v_moe_text", kGlm4MoeCode, [](CodeRow& row) { row.unmasked = true; });
constexpr CodeRow kYoutuCode = changed("youtu", kDeepseekCode, [](CodeRow& row) { row.since_five = true; });
constexpr CodeRow kGptjCode{.type = "gptj",
                            .sdpa = {524},
                            .scores_in_fp32 = true,
                            .norm = NormCode::kLayerNorm,
                            .activation = "gelu_new",
                            .residual = ResidualCode::kParallel,
                            .returns_scores = true,
                            .names = {.output = "out_proj", .up = "fc_in", .down = "fc_out"}};
constexpr CodeRow kGemma2Code{.type = "gemma2",
                              .sdpa = {0, 521},
                              .norm = NormCode::kGemma,
                              .activation = "gelu_pytorch_tanh",
                              .residual = ResidualCode::kBoth,
                              .window = 4096,
                              .window_pattern = 2,
                              .caches_in_training = false,
                              .scales_embedding = true,
                              .caps = true};

constexpr CodeRow kQwen35Code{.type = "qwen3_5_text",
                              .norm = NormCode::kGemma,
                              .rotary = 0.25,
                              .copies_rotated = true,
                              .since_five = true,
                              .unmasked = true};

constexpr std::array kCodeRows = {
    CodeRow{.type = "llama"},
    CodeRow{.type = "mistral", .window = 4096},
    CodeRow{.type = "ministral"},
    CodeRow{.type = "mixtral"},
    CodeRow{.type = "qwen2"},
    CodeRow{.type = "qwen2_vl", .unmasked = true},
    CodeRow{.type = "qwen2_vl_text", .unmasked = true},
    CodeRow{.type = "qwen2_5_vl", .unmasked = true},
    CodeRow{.type = "qwen2_5_vl_text", .unmasked = true},
    CodeRow{.type = "qwen2_moe", .repeats_keys = true},
    CodeRow{.type = "qwen3"},
    CodeRow{.type = "qwen3_vl_text", .unmasked = true},
    CodeRow{.type = "qwen3_moe"},
    kQwen35Code,
    code_named("qwen3_5_moe_text", kQwen35Code),
    changed("qwen3_next", kQwen35Code,
            [](CodeRow& row) {
              row.since_five = row.unmasked = false;
              row.caches_by_name = true;
            }),
    CodeRow{.type = "lfm2",
            .caches_by_name = true,
            .names = {.output = "out_proj", .gate = "w1", .up = "w3", .down = "w2"}},
    CodeRow{.type = "llama4_text",
            .rotation = RotationCode::kComplex,
            .only_windowed = true,
            .softmax_as_is = true},
    CodeRow{.type = "xglm",
            .sdpa = kNever,
            .norm = NormCode::kLayerNorm,
            .activation = "gelu",
            .rotary = 0,
            .dropout = 0.1,
            .scales_embedding = true,
            .unmasked = true,
            .softmax_as_is = true,
            .names = {.output = "out_proj", .up = "fc1", .down = "fc2"}},
    changed("albert", kBertCode,
            [](CodeRow& row) {
              row.checkpoints = Checkpoints::kRefused;
              row.activation = "gelu_new";
              row.names.up = "ffn";
              row.names.down = "ffn_output";
            }),
    CodeRow{.type = "minimax", .residual = ResidualCode::kNormed},
    CodeRow{.type = "mamba2", .never_caches = true},
    CodeRow{.type = "mamba", .never_caches = true},
    CodeRow{.type = "falcon_mamba", .never_caches = true},
    CodeRow{
        .type = "jamba", .rotary = 0, .caches_in_training = false, .repeats_keys = true, .unmasked = true},
    CodeRow{.type = "bamba",
            .rotary = 0.5,
            .caches_in_training = false,
            .copies_rotated = true,
            .unmasked = true},
    CodeRow{.type = "falcon_h1", .caches_in_training = false, .unmasked = true, .multiplied = true},
    CodeRow{.type = "granitemoehybrid",
            .caches_in_training = false,
            .joins_gate_and_up = true,
            .unmasked = true,
            .multiplied = true,
            .names = {.gate = "input_linear", .down = "output_linear"}},
    CodeRow{.type = "nemotron_h",
            .norm = NormCode::kGemma,
            .activation = "relu2",
            .rotary = 0,
            .since_five = true,
            .router_in_fp32 = true,
            .weighs_in_fp32 = true},
    CodeRow{.type = "zamba2",
            .activation = "gelu",
            .rotary = 0,
            .joins_gate_and_up = true,
            .unmasked = true,
            .caches_by_name = true,
            .names = {.gate = "gate_up_proj"}},
    CodeRow{.type = "smollm3"},
    CodeRow{.type = "granite"},
    CodeRow{.type = "ernie4_5"},
    CodeRow{.type = "paddleocr_vl_text", .unmasked = true},
    CodeRow{.type = "paddleocr_vl", .unmasked = true},
    CodeRow{.type = "seed_oss", .dropout = 0.1},
    CodeRow{.type = "cwm", .since_five = true},
    CodeRow{.type = "arcee", .activation = "relu2"},
    CodeRow{.type = "olmo", .norm = NormCode::kOlmo},
    CodeRow{.type = "olmoe", .repeats_keys = true},
    CodeRow{.type = "phi3",
            .projection = ProjectionCode::kSliced,
            .joins_gate_and_up = true,
            .copies_rotated = true,
            .names = {.gate = "gate_up_proj"}},
    CodeRow{.type = "gemma",
            .norm = NormCode::kGemma,
            .activation = "gelu_pytorch_tanh",
            .scales_embedding = true},
    kGemma2Code,
    changed("vaultgemma", kGemma2Code, [](CodeRow& row) { row.residual = ResidualCode::kBefore; }),
    CodeRow{.type = "gemma3_text",
            .norm = NormCode::kGemma,
            .activation = "gelu_pytorch_tanh",
            .residual = ResidualCode::kBoth,
            .window = 4096,
            .window_pattern = 6,
            .caches_in_training = false,
            .scales_embedding = true},
    CodeRow{.type = "gemma3n_text",
            .norm = NormCode::kGemma3n,
            .activation = "gelu_pytorch_tanh",
            .window = 512,
            .window_pattern = 5,
            .caches_in_training = false,
            .scales_embedding = true},
    CodeRow{.type = "gemma4_text",
            .norm = NormCode::kGemma4,
            .activation = "gelu_pytorch_tanh",
            .residual = ResidualCode::kBoth,
            .window = 512,
            .window_pattern = 6,
            .scales_embedding = true,
            .since_five = true,
            .weighs_in_fp32 = true},
    CodeRow{.type = "olmo2", .norm = NormCode::kGemma, .residual = ResidualCode::kAfter},
    CodeRow{.type = "olmo3",
            .norm = NormCode::kGemma,
            .residual = ResidualCode::kAfter,
            .window = 4096,
            .window_pattern = 4},
    kExaone4Code,
    code_named("exaone4_5_text", kExaone4Code),
    CodeRow{.type = "helium", .norm = NormCode::kGemma},
    CodeRow{.type = "cohere", .norm = NormCode::kCohere, .residual = ResidualCode::kParallel},
    CodeRow{.type = "cohere2",
            .norm = NormCode::kCohere,
            .residual = ResidualCode::kParallel,
            .window = 4096,
            .window_pattern = 4,
            .caches_in_training = false,
            .only_windowed = true},
    kGlmCode,
    kGlm4Code,
    kGlm4vCode,
    code_named("glm_ocr_text", kGlm4vCode),
    CodeRow{.type = "phimoe", .norm = NormCode::kLayerNorm, .repeats_keys = true},
    CodeRow{.type = "ernie4_5_moe"},
    kGlm4MoeCode,
    kGlm4vMoeCode,
    code_named("Glm4vMoe_text", kGlm4vMoeCode),
    changed("solar_open", kGlm4MoeCode,
            [](CodeRow& row) {
              row.since_five = true;
              row.rotary = 1;
              row.copies_rotated = false;
            }),
    kDeepseekCode,
    code_named("kimi_k2", kDeepseekCode),
    kYoutuCode,
    code_named("glm4_moe_lite", kYoutuCode),
    changed("deepseek_v2", kDeepseekCode, [](CodeRow& row) { row.rotation = RotationCode::kComplex; }),
    changed("minicpm3", kYoutuCode, [](CodeRow& row) { row.rotation = RotationCode::kHalves; }),
    changed("mistral4", kYoutuCode,
            [](CodeRow& row) {
              row.scales_query = true;
              row.router_in_fp32 = row.weighs_in_fp32 = false;
            }),
    CodeRow{.type = "minimax_m2", .copies_rotated = true, .since_five = true, .weighs_in_fp32 = true},
    CodeRow{.type = "granitemoe"},
    CodeRow{.type = "ministral3", .since_five = true, .scales_query = true},
    CodeRow{.type = "apertus", .activation = "xielu"},
    CodeRow{.type = "bitnet", .activation = "relu2", .norms_inside = true},
    CodeRow{.type = "qwen3_vl_moe_text", .only_five = true, .unmasked = true},
    CodeRow{.type = "flex_olmo", .norm = NormCode::kGemma, .residual = ResidualCode::kAfter},
    CodeRow{.type = "biogpt",
            .norm = NormCode::kLayerNorm,
            .activation = "gelu",
            .rotary = 0,
            .dropout = 0.1,
            .scales_embedding = true,
            .softmax_as_is = true,
            .names = {.output = "out_proj", .up = "fc1", .down = "fc2"}},
    kGptjCode,
    changed("codegen", kGptjCode, [](CodeRow& row) { row.projection = ProjectionCode::kSplit; }),
    CodeRow{.type = "gpt_neo",
            .sdpa = kNever,
            .scores_in_fp32 = true,
            .norm = NormCode::kLayerNorm,
            .activation = "gelu_new",
            .rotary = 0,
            .returns_scores = true,
            .names = {.output = "out_proj", .up = "c_fc", .down = "c_proj"}},
    CodeRow{.type = "bloom",
            .sdpa = kNever,
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSliced,
            .activation = "gelu",
            .rotary = 0,
            .embedding_norm = true,
            .returns_scores = true,
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
    CodeRow{.type = "gpt_oss", .sdpa = kNever, .norm = NormCode::kGemma, .window = 128, .window_pattern = 2},
    CodeRow{.type = "modernbert",
            .first_has_no_window = true,
            .norm = NormCode::kLayerNorm,
            .projection = ProjectionCode::kSplit,
            .activation = "gelu",
            .encoder = true,
            .window = 128,
            .window_pattern = 3,
            .joins_gate_and_up = true,
            .embedding_norm = true,
            .masked_language_head = true,
            .names = {.joined = "Wqkv", .output = "Wo", .gate = "Wi", .down = "Wo"}},
    CodeRow{.type = "gpt_bigcode",
            .checkpoints = Checkpoints::kIgnoredBeforeFive,
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
    CodeRow{.type = "stablelm", .norm = NormCode::kLayerNorm, .rotary = 0.25, .repeats_keys = true},
    CodeRow{.type = "nemotron",
            .norm = NormCode::kNemotron,
            .activation = "relu2",
            .rotary = 0.5,
            .repeats_keys = true},
    CodeRow{.type = "opt",
            .norm = NormCode::kLayerNorm,
            .activation = "relu",
            .rotary = 0,
            .dropout = 0.1,
            .attention_dropout = 0,
            .names = {.output = "out_proj", .up = "fc1", .down = "fc2"}},
    kBertCode,
    code_named("roberta", kBertCode),
    code_named("xlm-roberta", kBertCode),
    code_named("camembert", kBertCode),
    changed("data2vec-text", kBertCode, [](CodeRow& row) { row.sdpa = kSinceFive; }),
    kBertNormedBeforeCode,
    changed("roberta-prelayernorm", kBertNormedBeforeCode,
            [](CodeRow& row) {
              row.embedding_norm = true;
              row.sdpa = kSinceFive;
            }),
    changed("megatron-bert", kBertNormedBeforeCode, [](CodeRow& row) { row.sdpa = kNever; }),
    kDebertaCode,
    changed("electra", kBertCode, [](CodeRow& row) { row.sdpa = kSinceFive; }),
    kMpnetCode,
    kDistilBertCode,
    kT5Code,
    kMt5Code,
    code_named("umt5", kMt5Code),
    kBartCode,
    kPlbartCode,
    code_named("blenderbot-small", kBartCode),
    kMbartCode,
    kPegasusCode,
    code_named("blenderbot", kPegasusCode),
    kM2mCode,
    kWhisperCode,
    changed("marian", kBartCode, [](CodeRow& row) { row.embedding_norm = false; }),
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

// Types whose code is not written down.
constexpr std::array kWithoutSdpa = {std::string_view("deberta")};
constexpr std::array kWithoutSdpaBeforeFive = {std::string_view("chinese_clip_vision_model")};

template <size_t kCount>
bool has(const std::array<std::string_view, kCount>& types, std::string_view type) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

}  // namespace

const CodeRow* find_code_row(std::string_view type) {
  const auto* found = std::find_if(kCodeRows.begin(), kCodeRows.end(),
                                   [&](const CodeRow& each) { return each.type == type; });
  return found == kCodeRows.end() ? nullptr : found;
}

Releases sdpa_of(std::string_view type) {
  if (const CodeRow* row = find_code_row(type)) return row->sdpa;
  if (has(kWithoutSdpaBeforeFive, type)) return kSinceFive;
  return has(kWithoutSdpa, type) ? kNever : Releases();
}

Checkpoints checkpoints_of(std::string_view type) {
  if (const CodeRow* row = find_code_row(type)) return row->checkpoints;
  return Checkpoints::kHas;
}

}  // namespace spillway::estimator
