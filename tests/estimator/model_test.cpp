// Parameter counts as the models' own cards and checkpoints give them.
#include "estimator/model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/known_models.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;

struct Published {
  const char* name;
  int64_t parameters;
  const char* config;
};

class PublishedModel : public testing::TestWithParam<Published> {};

TEST_P(PublishedModel, HasItsParameters) {
  Result<RunKeys> keys = read_model_json(GetParam().config);
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  KeyValues values(keys.value());
  Notes notes;
  Result<Model> model = read_hugging_face(values, "model.", notes);
  ASSERT_TRUE(model.ok()) << model.status().text();
  EXPECT_EQ(total_parameters(model.value()), GetParam().parameters);
  EXPECT_TRUE(notes.assumptions.empty());
  EXPECT_TRUE(notes.warnings.empty());
}

constexpr Published
    kModels[] =
        {
            {"Llama27b", 6738415616,
             R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "tie_word_embeddings": false})"},
            {"Llama38b", 8030261248,
             R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16"})"},
            {"Llama370b", 70553706496,
             R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256})"},
            {"Llama3405b", 405853388800,
             R"({"model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256})"},
            {"Llama323b", 3212749824,
             R"({"model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": true})"},
            {"Llama321b", 1235814400,
             R"({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": true})"},
            {"Mistral7b", 7241732096,
             R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000})"},
            {"Mixtral", 46702792704,
             R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2})"},
            {"Qwen27b", 7615616512,
             R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064})"},
            {"Qwen38b", 8190735360,
             R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936})"},
            {"Qwen330bA3b", 30532122624,
             R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8})"},
            {"Qwen15Moe", 14315784192,
             R"({"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936, "num_experts": 60, "num_experts_per_tok": 4})"},
            {"Gemma2b", 2506172416,
             R"({"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000})"},
            {"Gemma7b", 8537680896,
             R"({"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000})"},
            {"Gemma29b", 9241705984,
             R"({"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000})"},
            {"Gemma31b", 999885952,
             R"({"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144})"},
            {"Gpt2", 124439808,
             R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257, "n_inner": null})"},
            {"Neox20b", 20554567680,
             R"({"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44, "num_attention_heads": 64, "vocab_size": 50432})"},
            {"Phi2", 2779683840,
             R"({"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 51200})"},
            {"Phi3Mini", 3821079552,
             R"({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064})"},
            {"DeepseekV3", 671026404352,
             R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128})"},
            {"GptOss20b", 20914757184,
             R"({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": true})"},
            {"BertBase", 109482240,
             R"({"model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2})"},
            {"T5Base", 222903552,
             R"({"model_type": "t5", "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12, "vocab_size": 32128, "feed_forward_proj": "relu"})"},
            {"Qwen205b", 494032768, R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": true, "mlp_only_layers": []})"},
            {"Mixtral8x22b", 140620634112,
             R"({"model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56, "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2})"},
            {"DeepseekV2", 235741434880,
             R"({"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 60, "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 102400, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128})"},
            {"GptOss120b", 116829156672,
             R"({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "num_local_experts": 128, "num_experts_per_tok": 4, "attention_bias": true})"},
            {"Gpt2Xl", 1557611200,
             R"({"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "vocab_size": 50257})"},
            {"T5V11Base", 247577856,
             R"({"model_type": "t5", "d_model": 768, "d_ff": 2048, "d_kv": 64, "num_layers": 12, "num_heads": 12, "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false})"},
            {"Olmo27b", 7298617344,
             R"({"model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100352})"},
            {"NullsAreAbsent", 7241732096,
             R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "head_dim": null, "attention_bias": null, "tie_word_embeddings": null})"},
            {"Bloom", 176247271424,
             R"({"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880})"},
};

INSTANTIATE_TEST_SUITE_P(Models, PublishedModel, testing::ValuesIn(kModels),
                         [](const testing::TestParamInfo<Published>& info) { return info.param.name; });

// DeepSeek-V3's card: 11.5e9 parameters of the prediction module that the model does not share.
TEST(PredictionLayers, AreCountedWhereTheyAreTrained) {
  const auto* published = std::find_if(std::begin(kModels), std::end(kModels), [](const Published& model) {
    return std::string_view(model.name) == "DeepseekV3";
  });
  Result<RunKeys> keys = read_model_json(published->config);
  ASSERT_TRUE(keys.ok());
  keys.value()["model.num_nextn_predict_layers"] = "1";
  Notes notes;
  const auto total = [&] {
    KeyValues values(keys.value());
    Result<Model> model = read_hugging_face(values, "model.", notes);
    EXPECT_TRUE(model.ok()) << model.status().text();
    return total_parameters(model.value());
  };
  EXPECT_EQ(total(), published->parameters);
  EXPECT_EQ(notes.assumptions.size(), 1u);
  keys.value()["model.train_prediction_layers"] = "true";
  const int64_t h = 7168;
  const int64_t attention =
      1536 * (h + 128 * 192 + 1) + h * (512 + 64) + 512 * (128 * 256 + 1) + 128 * 128 * h;
  const int64_t experts = 257 * 3 * h * 2048 + 256 * h;
  EXPECT_EQ(total() - published->parameters, attention + experts + 2 * h + 2 * h * h + 3 * h);
  EXPECT_NEAR(static_cast<double>(total() - published->parameters), 11.5e9, 0.2e9);
}

// Of transformers 5.17 on the meta device. It writes what layers have for themselves where the published file
// has a size for all layers without a window.
TEST(Gemma4, IsCountedFromThePublishedFileAndFromOneThatTransformersSaves) {
  RunKeys keys = known_model_keys(*find_known_model("gemma-4-31b"));
  const auto total = [&] {
    KeyValues values(keys);
    Notes notes;
    const Result<Model> model = read_hugging_face(values, "model.", notes);
    EXPECT_TRUE(model.ok()) << model.status().text();
    EXPECT_THAT(notes.warnings, testing::IsEmpty());
    return total_parameters(model.value());
  };
  EXPECT_EQ(total(), 30697345280);
  keys.erase("model.num_global_key_value_heads");
  for (int layer = 5; layer < 60; layer += 6) {
    const std::string own = fmt::format("model.per_layer_config.{:02}.", layer);
    keys[own + "head_dim"] = "512";
    keys[own + "num_key_value_heads"] = "4";
  }
  EXPECT_EQ(total(), 30697345280);
  // A layer that the section leaves out has heads as those with a window have, and as many keys.
  keys.erase("model.per_layer_config.59.head_dim");
  keys.erase("model.per_layer_config.59.num_key_value_heads");
  const int64_t h = 5376, wide = h * 512 * (2 * 32 + 4) + 2 * 512, narrow = h * 256 * (2 * 32 + 16) + 2 * 256;
  EXPECT_EQ(total(), 30697345280 - wide + narrow);
  keys = known_model_keys(*find_known_model("gemma-4-26b-a4b"));
  EXPECT_EQ(total(), 25233141760);
  keys = known_model_keys(*find_known_model("gemma-4-e2b"));
  EXPECT_EQ(total(), 4628569344);
}

// {} is what transformers writes where all heads are as wide.
TEST(Gemma4, HasNoDefaultsForLayersBesideASectionForThem) {
  Json config = Json::parse(
      R"({"model_type": "gemma4_text", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000,
          "hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention", "sliding_attention"]})");
  const auto head_dims = [&] {
    Result<RunKeys> keys = read_model_json(config.dump());
    KeyValues values(keys.value());
    Notes notes;
    const Model model = read_hugging_face(values, "model.", notes).value();
    std::vector<int64_t> out;
    for (const Layer& layer : model.towers.back().layers)
      out.push_back(std::get<Attention>(layer.front()).head_dim);
    return out;
  };
  // The last layer sees all tokens whatever the list says.
  EXPECT_THAT(head_dims(), testing::ElementsAre(64, 512));
  config["per_layer_config"] = Json::object();
  EXPECT_THAT(head_dims(), testing::ElementsAre(64, 64));
}

TEST(Gemma4, NeedsALayerOfEachKindBeforeThoseThatShareItsKeys) {
  RunKeys keys = known_model_keys(*find_known_model("gemma-4-e4b"));
  keys["model.num_kv_shared_layers"] = "37";
  KeyValues values(keys);
  Notes notes;
  EXPECT_THAT(read_hugging_face(values, "model.", notes).status().text(),
              testing::StartsWith("model.num_kv_shared_layers: '37' is not allowed; allowed:"));
}

TEST(CompositeModel, SaysThatItsLanguagePartIsCounted) {
  Result<RunKeys> keys = read_model_json(
      R"({"model_type": "gemma4_unified", "text_config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}, "vision_config": {"hidden_size": 32}})");
  ASSERT_TRUE(keys.ok());
  KeyValues values(keys.value());
  Notes notes;
  ASSERT_TRUE(read_hugging_face(values, "model.", notes).ok());
  EXPECT_EQ(notes.assumptions,
            std::vector<std::string>{"text_config: the language part is counted and no other"});
}

TEST(CompositeModel, WhoseLanguagePartIsAFractionIsRefused) {
  Result<RunKeys> keys = read_model_json(
      R"({"model_type": "blip-2", "text_config": {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4, "ffn_dim": 128, "vocab_size": 1000}})");
  ASSERT_TRUE(keys.ok());
  const auto read = [&] {
    KeyValues values(keys.value());
    Notes notes;
    return read_hugging_face(values, "model.", notes).status().text();
  };
  EXPECT_EQ(read(),
            "model_type 'blip-2' is not modelled; `spillway trace-model` or `spillway dryrun` take the "
            "figures from its "
            "own code, and --as opt counts its language part alone");
  keys.value()["model.read_as"] = "opt";
  EXPECT_EQ(read(), "");
}

TEST(MixedExperts, ByAListOfLayersAreRefused) {
  Result<RunKeys> keys = read_model_json(
      R"({"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 128, "vocab_size": 1000, "num_experts": 4, "mlp_only_layers": [0]})");
  ASSERT_TRUE(keys.ok());
  KeyValues values(keys.value());
  Notes notes;
  Result<Model> model = read_hugging_face(values, "model.", notes);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().text(), "model.mlp_only_layers: '[0]' is not modelled; allowed: []");
}

// transformers, GPT2Config and BertConfig: 1024 and 512 positions where the file does not say.
TEST(LearnedPositions, OfAFileThatDoesNotSayAreTheTypes) {
  const auto positions = [](const char* type) {
    const std::string config = std::string(R"({"model_type": ")") + type +
                               R"(", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                                  "vocab_size": 100})";
    Result<RunKeys> keys = read_model_json(config);
    KeyValues values(keys.value());
    Notes notes;
    return read_hugging_face(values, "model.", notes).value().positions;
  };
  EXPECT_EQ(positions("gpt2"), 1024);
  EXPECT_EQ(positions("bert"), 512);
}

constexpr const char* kNewcomer =
    R"({"model_type": "newcomer", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 1000, "mamba_d_state": 16, "moe_num_experts": 8,
        "is_encoder_decoder": false, "layer_types": ["full_attention", "sliding_attention"]})";

TEST(UnknownModel, IsRefusedByItsType) {
  const auto complaint = [](const char* config) {
    Result<RunKeys> keys = read_model_json(config);
    KeyValues values(keys.value());
    Notes notes;
    return read_hugging_face(values, "model.", notes).status().text();
  };
  EXPECT_EQ(complaint(kNewcomer),
            "model_type 'newcomer' is not modelled; `spillway trace-model` or `spillway dryrun` take the "
            "figures from "
            "its own code, and --as llama counts a Llama of its sizes");
  EXPECT_EQ(complaint(R"({"model_type": "lama"})")
                .rfind("model_type 'lama' is not modelled; did you mean 'llama'?", 0),
            0u);
  EXPECT_EQ(complaint(R"({"hidden_size": 4})").rfind("model.model_type: missing", 0), 0u);
}

TEST(UnknownModel, IsReadAsAnotherWhereThatIsAskedFor) {
  Result<RunKeys> keys = read_model_json(kNewcomer);
  ASSERT_TRUE(keys.ok());
  keys.value()["model.read_as"] = "llama";
  KeyValues values(keys.value());
  Notes notes;
  Result<Model> model = read_hugging_face(values, "model.", notes);
  ASSERT_TRUE(model.ok()) << model.status().text();
  // Two tables, two layers of 4 h^2 + 3 h f + 2 h, and the final norm.
  EXPECT_EQ(total_parameters(model.value()), 2 * 64'000 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64);
  EXPECT_EQ(notes.warnings,
            (std::vector<std::string>{
                "model_type 'newcomer' is read as 'llama': its parameters and activations are that type's",
                "model.mamba_d_state: not read: what it changes is not in the figures",
                "model.moe_num_experts: not read: what it changes is not in the figures"}));
}

// Megatron-LM's padded table and layer norms, counted by hand for 2 layers of 8 wide.
TEST(Weights, OfABiasedGptLayerAddUp) {
  std::vector<WeightTensors> weights;
  append_weights(Attention{.heads = 2,
                           .key_value_heads = 2,
                           .head_dim = 4,
                           .query_key_value_bias = true,
                           .output_bias = true,
                           .norm_parameters = 16},
                 8, weights);
  append_weights(Mlp{.ffn = 32, .gated = false, .bias = true, .norm_parameters = 16}, 8, weights);
  int64_t total = 0;
  for (const WeightTensors& tensors : weights) total += tensors.elements * tensors.count;
  // 12 h^2 + 13 h.
  EXPECT_EQ(total, 12 * 64 + 13 * 8);
}

}  // namespace
}  // namespace spillway::estimator
