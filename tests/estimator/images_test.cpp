// Models with a tower of images before the language part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "estimator/buckets/states.h"
#include "estimator/estimate.h"
#include "estimator/inputs/run_file.h"
#include "estimator/inputs/serving.h"
#include "estimator/serving/serving.h"
#include "estimator/stages.h"

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;

// As their files say it.
const Json kGemma4b = Json::parse(
    R"({"model_type": "gemma3", "transformers_version": "4.50.0", "mm_tokens_per_image": 256,
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
          "num_hidden_layers": 34, "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
          "head_dim": 256, "sliding_window": 1024, "max_position_embeddings": 131072},
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 896,
          "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
          "vision_use_head": false}})");
const Json kQwen7b = Json::parse(
    R"({"model_type": "qwen2_5_vl", "transformers_version": "4.41.2", "hidden_size": 3584,
        "intermediate_size": 18944, "num_hidden_layers": 28, "vocab_size": 152064, "num_attention_heads": 28,
        "num_key_value_heads": 4, "max_position_embeddings": 128000, "tie_word_embeddings": false,
        "vision_config": {"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420,
          "num_heads": 16, "in_chans": 3, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
          "temporal_patch_size": 2, "window_size": 112}})");

RunKeys keys_of(const Json& config, const RunKeys& more = {}) {
  Result<RunKeys> keys = read_model_json(config.dump());
  EXPECT_TRUE(keys.ok()) << keys.status().text();
  RunKeys out = keys.value();
  out["train.framework"] = "transformers";
  for (const auto& [key, value] : more) out[key] = value;
  return out;
}

TrainingRun must_read(const Json& config, const RunKeys& more = {}) {
  Result<TrainingRun> run = read_run(keys_of(config, more));
  EXPECT_TRUE(run.ok()) << run.status().text();
  return run.ok() ? std::move(run.value()) : TrainingRun{};
}

std::string complaint(const Json& config, const RunKeys& more) {
  const Result<TrainingRun> run = read_run(keys_of(config, more));
  return run.ok() ? "" : run.status().text();
}

RankClass rank_of(const TrainingRun& run) {
  Result<Estimate> found = estimate(run);
  EXPECT_TRUE(found.ok()) << found.status().text();
  return found.value().peak();
}

TEST(Images, ParametersAreThoseOfThePublishedModels) {
  // Of the checkpoints' safetensors, as their cards show them.
  EXPECT_EQ(total_parameters(must_read(kGemma4b).model), 4300079472);
  EXPECT_EQ(total_parameters(must_read(kQwen7b).model), 8292166656);
}

// Of transformers 5.17 on the meta device, without and with a tower of sounds.
TEST(Images, BesideSoundsAreCountedWithTheTowerOfBoth) {
  Json config = Json::parse(
      R"({"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"],
          "transformers_version": "5.17.0", "tie_word_embeddings": true, "audio_config": null,
          "text_config": {"model_type": "gemma4_text", "head_dim": 256, "hidden_size": 2304,
            "hidden_size_per_layer_input": 256, "intermediate_size": 9216, "num_attention_heads": 8,
            "num_hidden_layers": 4, "num_key_value_heads": 4, "num_kv_shared_layers": 0, "vocab_size": 262144,
            "vocab_size_per_layer_input": 262144, "per_layer_config": {"3": {"head_dim": 512}},
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]},
          "vision_config": {"model_type": "gemma4_vision", "num_hidden_layers": 4}})");
  const RunKeys lean = {{"train.framework", "pytorch"}};
  const TrainingRun silent = must_read(config, lean);
  EXPECT_EQ(total_parameters(silent.model), 1260976640);
  EXPECT_THAT(silent.notes.warnings, testing::Each(testing::Not(testing::HasSubstr("audio_config"))));
  config["audio_config"] = {{"model_type", "gemma4_audio"}, {"hidden_size", 512},
                            {"num_hidden_layers", 3},       {"num_attention_heads", 8},
                            {"conv_kernel_size", 5},        {"output_proj_dims", 640}};
  const TrainingRun hears = must_read(config, lean);
  EXPECT_EQ(total_parameters(hears.model), 1282238048);
  EXPECT_THAT(hears.notes.warnings, testing::Contains(testing::HasSubstr("taken to have no sounds")));
  EXPECT_THAT(hears.notes.warnings, testing::Each(testing::Not(testing::HasSubstr("architectures"))));
}

TEST(Images, OfAnySizeHaveAsManyTokensAsTheyHavePatches) {
  const TrainingRun run = must_read(kQwen7b, {{"train.images", "3"}, {"train.image_pixels", "451584"}});
  const Tower& tower = run.model.towers.front();
  EXPECT_EQ(tower.sequences, 3);
  EXPECT_EQ(tower.sequence, 451584 / (14 * 14));
  EXPECT_EQ(tower.connector->merged, 4);
}

TEST(Images, OfAFrozenTowerTakeNoStatesAndKeepNothing) {
  const RunKeys usual = {{"train.optimizer", "adamw"}, {"train.sequence", "2048"}};
  RunKeys more = usual;
  more["train.freeze_vision"] = "true";
  for (const char* framework : {"transformers", "pytorch"}) {
    RunKeys trained = usual, frozen = more;
    trained["train.framework"] = frozen["train.framework"] = framework;
    const TrainingRun whole = must_read(kGemma4b, trained), part = must_read(kGemma4b, frozen);
    const auto states = [](const TrainingRun& run) {
      return state_bytes(run, rank_parameters(rank_weights(run, pipeline_stage(run, 0))));
    };
    const Tower& tower = part.model.towers.front();
    Model alone = part.model;
    alone.towers = {tower};
    const double elements =
        static_cast<double>(total_parameters(alone) - connector_parameters(*tower.connector)) -
        static_cast<double>(part.model.vocabulary * part.model.hidden);
    EXPECT_EQ(states(whole).weights, states(part).weights) << framework;
    const ElementBytes bytes = element_bytes(part.training, part.framework);
    EXPECT_EQ(states(whole).moments - states(part).moments, bytes.moments * elements) << framework;
    EXPECT_EQ(states(whole).gradients - states(part).gradients, bytes.gradient * elements) << framework;
    EXPECT_LT(rank_of(part).peak_bytes, rank_of(whole).peak_bytes - bytes.moments * elements) << framework;
  }
}

TEST(Images, TakeMoreTheMoreThereAre) {
  double before = 0;
  for (const char* count : {"0", "1", "4"}) {
    const double peak =
        rank_of(must_read(kGemma4b,
                          {{"train.images", count}, {"train.recompute", "full"}, {"train.optimizer", "sgd"}}))
            .peak_bytes;
    EXPECT_GT(peak, before) << count;
    before = peak;
  }
}

TEST(Images, ThatCannotBeAreOneLine) {
  const Json llama = Json::parse(
      R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 128, "vocab_size": 1000})");
  EXPECT_EQ(complaint(llama, {{"train.images", "2"}}),
            "train.images: not allowed; the model has no tower of images");
  EXPECT_EQ(complaint(kGemma4b, {{"train.images", "9"}, {"train.sequence", "2048"}}),
            "train.images: '9' have 2304 tokens; allowed: up to the 2048 of train.sequence");
  EXPECT_EQ(complaint(kGemma4b, {{"train.image_pixels", "10000"}}),
            "train.image_pixels: not allowed; an image of this type of model has 4096 patches");
  EXPECT_EQ(complaint(kQwen7b, {{"train.image_pixels", "100"}}),
            "train.image_pixels: '100' is not allowed; allowed: whole numbers from 196 to 268435456");
}

TEST(Images, OfSizesThatNoMachineHoldsAreOneLine) {
  for (const char* key : {"image_size", "hidden_size", "patch_size"}) {
    Json config = kGemma4b;
    config["vision_config"][key] = 16000000;
    const Result<TrainingRun> run = read_run(keys_of(config));
    EXPECT_FALSE(run.ok() && estimate(run.value()).ok()) << key;
  }
  Json config = kQwen7b;
  config["vision_config"]["spatial_merge_size"] = 100000;
  EXPECT_NE(complaint(config, {}), "");
  config["vision_config"]["spatial_merge_size"] = 0;
  EXPECT_NE(complaint(config, {}), "");
}

TEST(Images, HaveATowerThatAServerHoldsToo) {
  const auto weights = [](const Json& config) {
    RunKeys keys = keys_of(config, {{"serve.max_model_len", "4096"}});
    keys.erase("train.framework");
    const Result<ServingRun> run = read_serving(keys);
    EXPECT_TRUE(run.ok()) << run.status().text();
    return serving_weight_bytes(run.value(), 0);
  };
  Json text = kGemma4b;
  text.erase("vision_config");
  const TrainingRun run = must_read(kGemma4b);
  Model language = run.model;
  language.towers.erase(language.towers.begin());
  EXPECT_EQ(weights(kGemma4b) - weights(text),
            2 * static_cast<double>(total_parameters(run.model) - total_parameters(language)));
}

}  // namespace
}  // namespace spillway::estimator
