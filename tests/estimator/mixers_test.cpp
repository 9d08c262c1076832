// Models whose layers mix tokens by other means than attention: linear attention, state spaces, convolutions.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

struct Type {
  const char* name;
  const char* config;
  std::vector<const char*> modules;  // that adapters may name
};

// Each has layers of its mixer.
const std::vector<Type>& types() {
  static const std::vector<Type> kAll = {
      {"qwen3_next",
       R"("num_hidden_layers": 2, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "num_experts": 4,
          "linear_key_head_dim": 32, "linear_value_head_dim": 64, "moe_intermediate_size": 128,
          "num_experts_per_tok": 2, "shared_expert_intermediate_size": 128, "num_key_value_heads": 4,
          "num_attention_heads": 8, "head_dim": 64)",
       {"in_proj_qkvz", "in_proj_ba", "out_proj"}},
      {"qwen3_5_text",
       R"("num_hidden_layers": 2, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
          "linear_key_head_dim": 32, "linear_value_head_dim": 64, "intermediate_size": 1024,
          "num_key_value_heads": 4, "num_attention_heads": 8, "head_dim": 64)",
       {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"}},
      {"mamba2",
       R"("num_hidden_layers": 2, "num_heads": 16, "head_dim": 64, "state_size": 64, "n_groups": 2,
          "chunk_size": 64)",
       {"in_proj"}},
      {"bamba",
       R"("num_hidden_layers": 2, "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 64,
          "mamba_n_groups": 1, "mamba_chunk_size": 64, "attn_layer_indices": [1], "intermediate_size": 1024,
          "num_attention_heads": 8, "num_key_value_heads": 4)",
       {"q_proj", "in_proj", "out_proj"}},
      {"jamba",
       R"("num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1,
          "mamba_d_state": 16, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4,
          "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1)",
       {"in_proj", "x_proj", "dt_proj", "out_proj"}},
      {"lfm2",
       R"("num_hidden_layers": 2, "layer_types": ["full_attention", "conv"], "intermediate_size": 1024,
          "num_attention_heads": 8, "num_key_value_heads": 4)",
       {"in_proj", "out_proj", "w1"}},
      {"minimax",
       R"("num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "block_size": 128,
          "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 4,
          "num_experts_per_tok": 2)",
       {"qkv_proj", "output_gate", "out_proj"}},
      {"zamba2",
       R"("num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid", "hybrid", "hybrid"],
          "num_mem_blocks": 2, "adapter_rank": 16, "n_mamba_heads": 16, "mamba_d_state": 64,
          "chunk_size": 64, "intermediate_size": 1024, "num_attention_heads": 8)",
       {"gate_up_proj", "linear", "in_proj", "out_proj"}}};
  return kAll;
}

const Type& zamba2() {
  return *std::find_if(types().begin(), types().end(),
                       [](const Type& type) { return std::string_view(type.name) == "zamba2"; });
}

RunKeys keys_of(const Type& type) {
  const std::string config =
      std::string(R"({"model_type": ")") + type.name +
      R"(", "hidden_size": 512, "vocab_size": 1000, "transformers_version": "5.17.0", )" + type.config + "}";
  Result<RunKeys> keys = read_model_json(config);
  EXPECT_TRUE(keys.ok()) << type.name << ": " << keys.status().text();
  RunKeys out = keys.ok() ? std::move(keys.value()) : RunKeys{};
  out["model.is_config_json"] = "true";
  out["train.sequence"] = "1024";
  return out;
}

TrainingRun must_read(const RunKeys& keys) {
  Result<TrainingRun> run = read_run(keys);
  EXPECT_TRUE(run.ok()) << run.status().text();
  return run.ok() ? std::move(run.value()) : TrainingRun{};
}

double peak_of(const TrainingRun& run) {
  const Result<Estimate> found = estimate(run);
  EXPECT_TRUE(found.ok()) << found.status().text();
  return found.ok() ? found.value().peak().peak_bytes : 0;
}

TEST(Mixers, AreCountedAsPyTorchsOperatorsKeepThemUnlessKernelsAreNamed) {
  for (const Type& type : types()) {
    SCOPED_TRACE(type.name);
    RunKeys keys = keys_of(type);
    const TrainingRun torch = must_read(keys);
    EXPECT_EQ(torch.framework, Framework::kTransformers);
    EXPECT_THAT(torch.notes.warnings, Contains(HasSubstr("train.linear_attention = kernels")));
    keys["train.linear_attention"] = "kernels";
    const TrainingRun kernels = must_read(keys);
    EXPECT_EQ(kernels.framework, Framework::kPytorch);
    EXPECT_THAT(kernels.notes.warnings, Each(Not(HasSubstr("train.linear_attention = kernels"))));
    EXPECT_LT(peak_of(kernels), peak_of(torch));
    keys["train.linear_attention"] = "triton";
    EXPECT_THAT(read_run(keys).status().text(),
                HasSubstr("train.linear_attention: 'triton' is not allowed; allowed: torch, kernels"));
  }
}

TEST(Mixers, ChangeNothingForModelsThatHaveNone) {
  Result<RunKeys> keys = read_model_json(
      R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
          "num_attention_heads": 8, "vocab_size": 1000})");
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  keys.value()["model.is_config_json"] = "true";
  const TrainingRun run = must_read(keys.value());
  EXPECT_THAT(run.notes.warnings, Each(Not(HasSubstr("linear attention"))));
  keys.value()["train.linear_attention"] = "kernels";
  const TrainingRun kernels = must_read(keys.value());
  EXPECT_EQ(kernels.framework, Framework::kTransformers);
  EXPECT_EQ(peak_of(kernels), peak_of(run));
}

// ALBERT's layers are one, and Gemma 3n's have several hidden states: neither mixes tokens so.
TEST(Mixers, AreNotWhatOtherTypesHaveBesideAttention) {
  for (
      const char* config :
      {R"({"model_type": "albert", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3,
            "num_attention_heads": 8, "vocab_size": 1000, "transformers_version": "4.57.6"})",
       R"({"model_type": "gemma3n_text", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
            "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000,
            "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 1000, "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "full_attention"]})"}) {
    Result<RunKeys> keys = read_model_json(config);
    ASSERT_TRUE(keys.ok()) << keys.status().text();
    keys.value()["model.is_config_json"] = "true";
    keys.value()["train.sequence"] = "256";
    const TrainingRun run = must_read(keys.value());
    EXPECT_EQ(run.framework, Framework::kTransformers);
    EXPECT_THAT(run.notes.warnings, Each(Not(HasSubstr("linear attention"))));
  }
}

TEST(Mixers, ThatFallBackToLeanCodeAreCountedWithKernelsAndSaySo) {
  RunKeys keys = keys_of(types()[2]);
  keys["train.loss"] = "chunked";
  EXPECT_THAT(must_read(keys).notes.warnings, Contains(HasSubstr("as their kernels do")));
}

TEST(Mixers, OfNoSizeAreRefused) {
  RunKeys keys = keys_of(types()[2]);
  keys["model.num_heads"] = "0";
  EXPECT_THAT(read_run(keys).status().text(), HasSubstr("model.num_heads: '0'"));
  keys = keys_of(types()[4]);
  keys["model.mamba_d_state"] = "0";
  EXPECT_THAT(read_run(keys).status().text(), HasSubstr("model.mamba_d_state: '0'"));
  for (const char* key : {"num_attention_heads", "num_key_value_heads", "chunk_size", "mamba_d_conv",
                          "num_mem_blocks", "adapter_rank", "n_mamba_heads"}) {
    keys = keys_of(zamba2());
    keys["model." + std::string(key)] = "0";
    EXPECT_THAT(read_run(keys).status().text(), HasSubstr("model." + std::string(key) + ": '0'"));
  }
}

// Without its kernels Jamba of transformers 4 raises an error, unless it is told to do without.
TEST(Jamba, HasItsKernelsInTransformersFour) {
  RunKeys keys = keys_of(types()[4]);
  keys["model.transformers_version"] = "4.57.6";
  EXPECT_THAT(must_read(keys).notes.warnings, Contains(HasSubstr("use_mamba_kernels")));
  keys["model.use_mamba_kernels"] = "false";
  EXPECT_THAT(must_read(keys).notes.warnings, Each(Not(HasSubstr("use_mamba_kernels"))));
}

int64_t parameters_of(const std::string& config) {
  const Result<RunKeys> keys = read_model_json(config);
  EXPECT_TRUE(keys.ok()) << keys.status().text();
  KeyValues values(keys.value());
  Notes notes;
  const Result<Model> model = read_hugging_face(values, "model.", notes);
  EXPECT_TRUE(model.ok()) << model.status().text();
  return model.ok() ? total_parameters(model.value()) : 0;
}

// A third layer with the first one's weights adds its projection, its adapter and its state space alone.
TEST(Zamba2, CountsSharedWeightsOnce) {
  const std::string rest = zamba2().config;
  const auto with = [&](const std::string& kinds, int layers, const char* more) {
    return parameters_of(
        R"({"model_type": "zamba2", "hidden_size": 512, "vocab_size": 1000, )" + rest +
        fmt::format(R"(, "num_hidden_layers": {}, "layers_block_type": [{}]{}}})", layers, kinds, more));
  };
  const std::string two = R"("hybrid", "hybrid")", three = two + R"(, "hybrid")",
                    mamba = two + R"(, "mamba")";
  const int64_t adapter = 16 * (512 + 2 * 1024), projection = 512 * 512;
  EXPECT_EQ(with(three, 3, "") - with(mamba, 3, ""), projection + adapter);
  const char* adapts = R"(, "use_shared_attention_adapter": true)";
  EXPECT_EQ(with(three, 3, adapts) - with(mamba, 3, adapts), projection + adapter + 3 * 16 * (1024 + 1024));
}

// transformers 5 ties what layers share only where it ties the table.
TEST(Zamba2, SharesWithTheTableAlone) {
  RunKeys keys = keys_of(zamba2());
  keys["model.tie_word_embeddings"] = "false";
  EXPECT_THAT(
      read_run(keys).status().text(),
      HasSubstr("model.tie_word_embeddings: 'false' is not allowed; allowed: true since transformers 5"));
  keys["model.transformers_version"] = "4.57.6";
  EXPECT_TRUE(read_run(keys).ok()) << read_run(keys).status().text();
}

TEST(Zamba2, HasAWordThatIsKnownForEachLayer) {
  for (const char* list : {R"(["mamba", "hybrid"])", R"(["m", "g", "g", "g"])"}) {
    RunKeys keys = keys_of(zamba2());
    keys["model.layers_block_type"] = list;
    EXPECT_THAT(read_run(keys).status().text(), HasSubstr("model.layers_block_type: '[")) << list;
  }
}

// A stage would have to hold the weights of another's layers.
TEST(Zamba2, HasOnePipelineStage) {
  RunKeys keys = keys_of(zamba2());
  keys["parallel.gpus"] = keys["parallel.pipeline"] = "2";
  EXPECT_THAT(contradiction(must_read(keys)), HasSubstr("allowed: 1 for a model whose layers share weights"));
}

// Modules of each layer's own have adapters of their own, though transformers 5 ties their weights.
TEST(Zamba2, HasAnAdapterForEachModule) {
  const auto adapters = [](const char* version) {
    RunKeys keys = keys_of(zamba2());
    keys["model.transformers_version"] = version;
    keys["adapter.kind"] = "lora";
    keys["adapter.rank"] = "512";
    keys["adapter.targets"] = "q_proj";
    const Result<Estimate> found = estimate(must_read(keys));
    double bytes = 0;
    for (const Bucket& bucket : found.value().peak().steady) {
      if (std::string_view(bucket.name) == "adapters") bytes += bucket.bytes;
    }
    return bytes;
  };
  // Three layers of two sets of weights.
  EXPECT_EQ(adapters("5.24.0") / 3, adapters("4.57.6") / 2);
}

// Published files name layers by a letter each.
TEST(NemotronH, IsReadFromItsPattern) {
  const std::string rest =
      R"({"model_type": "nemotron_h", "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1000,
          "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "mamba_num_heads": 16,
          "mamba_head_dim": 64, "ssm_state_size": 64, "n_groups": 2, "n_routed_experts": 4,
          "num_experts_per_tok": 2, "moe_intermediate_size": 256, "num_hidden_layers": 4, )";
  EXPECT_EQ(parameters_of(rest + R"("hybrid_override_pattern": "M-*E"})"),
            parameters_of(rest + R"("layers_block_type": ["mamba", "mlp", "attention", "moe"]})"));
  const Result<RunKeys> keys = read_model_json(rest + R"("hybrid_override_pattern": "M-X"})");
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  EXPECT_THAT(read_run(keys.value()).status().text(),
              HasSubstr("model.hybrid_override_pattern: 'X' is not allowed; allowed: M, E, * and -"));
  const std::string list = R"("layer_types": ["mamba", "mlp"], )";
  EXPECT_EQ(parameters_of(rest + list + R"("hybrid_override_pattern": "M-*E"})"),
            parameters_of(rest + R"("hybrid_override_pattern": "M-", "layers_block_type": null})"));
}

// As the published file of Scout writes it: a number for a flag, and layers' types beside it.
TEST(Llama4, IsReadFromThePublishedFile) {
  Json config = Json::parse(
      R"({"model_type": "llama4_text", "hidden_size": 512, "intermediate_size": 512, "intermediate_size_mlp": 1024,
          "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64,
          "vocab_size": 1000, "num_local_experts": 2, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
          "attention_chunk_size": 256, "attn_temperature_tuning": 4, "use_qk_norm": true})");
  const auto windows = [&] {
    Result<RunKeys> keys = read_model_json(config.dump());
    EXPECT_TRUE(keys.ok()) << keys.status().text();
    keys.value()["model.is_config_json"] = "true";
    keys.value()["train.sequence"] = "1024";
    return must_read(keys.value()).code.windowed;
  };
  const std::vector<bool> usual = {true, true, true, false};
  EXPECT_EQ(windows(), usual);
  config["layer_types"] = {"chunked_attention", "chunked_attention", "chunked_attention", "full_attention"};
  EXPECT_EQ(windows(), usual);
}

TEST(Mixers, HaveModulesThatAdaptersName) {
  for (const Type& type : types()) {
    for (const char* module : type.modules) {
      SCOPED_TRACE(std::string(type.name) + " " + module);
      RunKeys keys = keys_of(type);
      keys["adapter.kind"] = "lora";
      keys["adapter.rank"] = "8";
      keys["adapter.targets"] = module;
      const TrainingRun run = must_read(keys);
      const Result<Estimate> found = estimate(run);
      ASSERT_TRUE(found.ok()) << found.status().text();
      const std::vector<Bucket>& steady = found.value().peak().steady;
      EXPECT_TRUE(std::any_of(steady.begin(), steady.end(), [](const Bucket& bucket) {
        return std::string_view(bucket.name) == "adapters";
      }));
    }
    RunKeys keys = keys_of(type);
    keys["adapter.kind"] = "lora";
    keys["adapter.targets"] = "nothing_of_it";
    for (const char* module : type.modules)
      EXPECT_THAT(read_run(keys).status().text(), HasSubstr(module)) << type.name;
  }
}

TEST(Mixers, HaveMatricesOfAllTheirParameters) {
  for (const Type& type : types()) {
    const TrainingRun run = must_read(keys_of(type));
    size_t mixers = 0;
    for (const Layer& layer : run.model.towers.back().layers) {
      for (const Block& block : layer) {
        const auto* mixer = std::get_if<Mixer>(&block);
        if (mixer == nullptr) continue;
        ++mixers;
        std::vector<MatrixShape> matrices;
        append_matrices(block, run.model.hidden, {}, matrices);
        int64_t elements = 0;
        for (const MatrixShape& each : matrices) elements += each.rows * each.columns * each.count;
        EXPECT_EQ(elements, mixer->matrix_parameters) << type.name;
      }
    }
    EXPECT_GT(mixers, 0U) << type.name;
  }
}

TEST(DeltaNets, WithoutHeadsAreRefusedByTheKeysName) {
  for (const char* key :
       {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"}) {
    RunKeys keys = keys_of(types()[1]);
    keys["model." + std::string(key)] = "0";
    EXPECT_THAT(read_run(keys).status().text(), HasSubstr("model." + std::string(key) + ": '0'"));
  }
  RunKeys keys = keys_of(types()[1]);
  keys["model.linear_num_value_heads"] = "7";
  EXPECT_THAT(read_run(keys).status().text(), HasSubstr("model.linear_num_value_heads: '7'"));
}

// Before transformers 5 layers that share keys had matrices for their own all the same.
TEST(Gemma3n, HasKeysOfItsOwnInEachLayerBeforeTransformersFive) {
  Json config = Json::parse(
      R"({"model_type": "gemma3n_text", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
          "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000,
          "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 1000, "num_kv_shared_layers": 2,
          "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]})");
  const auto parameters = [&](const char* version) {
    config["transformers_version"] = version;
    const Result<RunKeys> keys = read_model_json(config.dump());
    EXPECT_TRUE(keys.ok()) << keys.status().text();
    KeyValues values(keys.value());
    Notes notes;
    const Result<Model> model = read_hugging_face(values, "model.", notes);
    EXPECT_TRUE(model.ok()) << model.status().text();
    return total_parameters(model.value());
  };
  const int64_t keys_and_values = 2 * (2 * 512 * 2 * 64 + 64);
  EXPECT_EQ(parameters("4.57.6") - parameters("5.17.0"), keys_and_values);
}

}  // namespace
}  // namespace spillway::estimator
