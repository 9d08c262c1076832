// Models that make images, as diffusers keeps them. bench/estimator/diffusion_models.py wrote the lines.
#include "estimator/diffusion/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "estimator/diffusion/step.h"
#include "estimator/estimate.h"
#include "estimator/inputs/diffusers.h"
#include "estimator/inputs/known_models.h"
#include "estimator/verdict.h"
#include "tests/support/folder.h"

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// A folder as diffusers writes it.
class Diffusion : public testing::Test {
 protected:
  // Its keys, with a denoiser and an autoencoder.
  Result<RunKeys> keys_of(const Json& denoiser, const Json& vae) {
    const std::string type = denoiser["_class_name"];
    const bool is_unet = type == "UNet2DConditionModel";
    Json index = {{"_class_name", is_unet          ? "StableDiffusionPipeline"
                                  : type[0] == 'F' ? "FluxPipeline"
                                                   : "StableDiffusion3Pipeline"},
                  {"_diffusers_version", "0.42.1"},
                  {"scheduler", {"diffusers", "DDPMScheduler"}},
                  {"text_encoder", {nullptr, nullptr}},
                  {"vae", {"diffusers", "AutoencoderKL"}}};
    const std::string part = is_unet ? "unet" : "transformer";
    index[part] = {"diffusers", type};
    folder_.write(part + "/config.json", denoiser.dump());
    folder_.write("vae/config.json", vae.dump());
    return read_diffusers_json(index.dump(), folder_.path());
  }

  TrainingRun must_read(const RunKeys& keys) {
    Result<TrainingRun> run = read_run(keys);
    EXPECT_TRUE(run.ok()) << run.status().text();
    return run.ok() ? std::move(run.value()) : TrainingRun{};
  }

  test::Folder folder_;
};

RunKeys known(const char* name, const RunKeys& more = {}) {
  RunKeys out = known_model_keys(*find_known_model(name));
  for (const auto& [key, value] : more) out[key] = value;
  return out;
}

RankClass rank_of(const TrainingRun& run) {
  Result<Estimate> found = estimate(run);
  EXPECT_TRUE(found.ok()) << found.status().text();
  return found.value().peak();
}

std::vector<Json> rows_of(const char* file) {
  std::ifstream lines(std::string(SPILLWAY_PARAMETERS) + "/" + file);
  EXPECT_TRUE(lines) << file;
  std::vector<Json> out;
  for (std::string line; std::getline(lines, line);) out.push_back(Json::parse(line));
  return out;
}

TEST_F(Diffusion, ParametersAreThoseOfTheMetaDevice) {
  const std::vector<Json> rows = rows_of("diffusion-parameters.jsonl");
  ASSERT_GT(rows.size(), 50u);
  for (const Json& row : rows) {
    const Result<RunKeys> keys = keys_of(row["denoiser"], row["vae"]);
    ASSERT_TRUE(keys.ok()) << keys.status().text();
    const TrainingRun run = must_read(keys.value());
    ASSERT_TRUE(run.model.pipeline) << row;
    EXPECT_EQ(denoiser_parameters(*run.model.pipeline), row["parameters"]["denoiser"]) << row["denoiser"];
    EXPECT_EQ(coder_parameters(*run.model.pipeline->coder), row["parameters"]["vae"]) << row["vae"];
  }
}

TEST_F(Diffusion, ParametersAreThoseOfThePublishedModels) {
  struct Published {
    const char* name;
    int64_t denoiser, encoders;
  };
  // Of the checkpoints' safetensors.
  for (const Published& published :
       {Published{"sd-1.5", 859520964, 123060480}, Published{"sdxl", 2567463684, 123060480 + 694659840},
        Published{"flux.1-dev", 11901408320, 123060480 + 4762310656}}) {
    const TrainingRun run = must_read(known(published.name));
    EXPECT_EQ(denoiser_parameters(*run.model.pipeline), published.denoiser) << published.name;
    EXPECT_EQ(encoder_parameters(*run.model.pipeline), published.encoders) << published.name;
  }
  EXPECT_EQ(coder_parameters(*must_read(known("sd-1.5")).model.pipeline->coder), 83653863);
}

// A row as a run's keys.
RunKeys with_training(RunKeys keys, const Json& row) {
  const std::string optimizer = row["optimizer"];
  keys["train.micro_batch"] = row["batch"].dump();
  keys["train.resolution"] = row["width"].dump() + "x" + row["height"].dump();
  keys["train.precision"] =
      row["precision"] == "bf16" && !row.contains("adapter") ? "bf16" : row["precision"];
  keys["train.recompute"] = row["recompute"] ? "full" : "none";
  keys["train.encodes"] = row["encodes"] ? "true" : "false";
  keys["train.optimizer"] = optimizer == "sgd" ? "sgd" : "adamw";
  keys["train.optimizer_step"] = optimizer == "adamw_foreach" ? "foreach" : "fused";
  if (!row.contains("adapter")) return keys;
  keys["adapter.kind"] = "lora";
  keys["adapter.rank"] = row["adapter"]["r"].dump();
  keys["adapter.targets"] = "to_k,to_q,to_v,to_out.0";
  return keys;
}

TEST_F(Diffusion, PeaksAreThoseOfDryRuns) {
  const std::vector<Json> rows = rows_of("diffusion-peaks.jsonl");
  ASSERT_GT(rows.size(), 30u);
  std::vector<double> errors;
  for (const Json& row : rows) {
    const Result<RunKeys> keys = keys_of(row["denoiser"], row["vae"]);
    ASSERT_TRUE(keys.ok()) << keys.status().text();
    const RankClass rank = rank_of(must_read(with_training(keys.value(), row)));
    errors.push_back(std::abs(100 * (rank.peak_bytes / row["peak"].get<double>() - 1)));
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(errors[errors.size() / 2], 1.5);
  EXPECT_LE(errors[errors.size() * 95 / 100], 5);
}

// diffusers' own benchmark: one call of the denoiser alone, in bf16, of 1024 x 1024 pixels
// (huggingface.co/datasets/diffusers/benchmarks, mem_plain_GB, in GiB).
TEST_F(Diffusion, OneCallIsAsPublished) {
  struct Published {
    const char* name;
    double gib;
  };
  for (const Published& published : {Published{"flux.1-dev", 22.61}, Published{"sdxl", 5.05}}) {
    const TrainingRun run =
        must_read(known(published.name, {{"serve.dtype", "bfloat16"}, {"serve.guidance", "false"}}));
    for (const GenerationPhase& phase : play_generation(run)) {
      if (std::string(phase.name) != "denoising") continue;
      EXPECT_NEAR((phase.part_bytes + phase.peak_bytes) / (1 << 30), published.gib, 0.04 * published.gib)
          << published.name;
    }
  }
}

TEST_F(Diffusion, ImagesAreMadeInPhases) {
  const RankClass all = rank_of(must_read(known("flux.1-dev", {{"serve.images", "1"}})));
  ASSERT_EQ(all.phases.size(), 5u) << "two encoders, the denoiser, the autoencoder, and between images";
  EXPECT_STREQ(all.phases[2].name, "denoising");
  EXPECT_STREQ(all.phases[3].name, "decoding");
  const RankClass one =
      rank_of(must_read(known("flux.1-dev", {{"serve.images", "1"}, {"serve.offload", "model"}})));
  EXPECT_LT(one.peak_bytes, all.peak_bytes - 9e9) << "the text encoders have left";
  EXPECT_GT(one.peak_bytes, 11901408320 * 2.0);
}

TEST_F(Diffusion, OddMapsComeBackAsTheyWere) {
  // 75 latents are halved to 38, 19 and 10; twice those would be 80.
  const auto peak = [&](const char* pixels) {
    return rank_of(must_read(known("sd-1.5", {{"train.resolution", pixels},
                                              {"train.encodes", "false"},
                                              {"train.micro_batch", "16"},
                                              {"train.optimizer", "sgd"}})))
        .peak_bytes;
  };
  EXPECT_NEAR((peak("600") - peak("512")) / (peak("768") - peak("512")),
              (75.0 * 75 - 64 * 64) / (96 * 96 - 64 * 64), 0.03);
}

TEST_F(Diffusion, LoraIsOfWhatTheExamplesAdapt) {
  const auto adapters = [&](const char* name) {
    const RankClass rank = rank_of(must_read(known(name, {{"adapter.kind", "lora"}, {"adapter.rank", "4"}})));
    for (const Bucket& bucket : rank.steady) {
      if (std::string(bucket.name) == "adapters") return bucket.bytes / 4;
    }
    return 0.0;
  };
  // 140 attentions of 640 and 1280 channels, half of them over texts of 2048.
  EXPECT_EQ(adapters("sdxl"), 5806080);
  // 19 joint layers: 8 products of attention and 4 of feed-forward; of the 38 others 3 of attention.
  EXPECT_EQ(adapters("flux.1-dev"), 4.0 * (19 * (8 * 2 * 3072 + 4 * 5 * 3072) + 38 * 3 * 2 * 3072));
}

TEST_F(Diffusion, FilesOfOthersDoNotPassForOnesOfDiffusers) {
  EXPECT_THAT(read_run({{"pipeline.class", "x"}}).status().text(), HasSubstr("_class_name"));
  Result<RunKeys> keys = read_model_json(R"({"model_type": "llama", "pipeline": "x"})");
  ASSERT_TRUE(keys.ok());
  EXPECT_FALSE(has_pipeline(keys.value()));
  const Json index = {{"_class_name", "UnCLIPPipeline"},
                      {"_diffusers_version", "0.42.1"},
                      {"", {"diffusers", "x"}},
                      {"decoder", {"diffusers", "UNet2DConditionModel"}}};
  EXPECT_THAT(read_diffusers_json(index.dump(), "").status().text(),
              HasSubstr("UnCLIPPipeline of diffusers"));
}

TEST_F(Diffusion, WhatHelpsIsOfImages) {
  std::string changes;
  for (const Mitigation& change : mitigations(must_read(known("sdxl", {{"serve.images", "4"}}))))
    changes += std::string(change.change) + "\n";
  EXPECT_THAT(changes, AllOf(HasSubstr("serve.vae_slicing = true"), HasSubstr("serve.offload = model")));
  changes.clear();
  for (const Mitigation& change : mitigations(must_read(known("sdxl", {{"train.micro_batch", "4"}}))))
    changes += std::string(change.change) + "\n";
  EXPECT_THAT(changes, AllOf(HasSubstr("train.recompute = full"), HasSubstr("train.optimizer = adamw8bit"),
                             HasSubstr("train.encodes = false")));
  EXPECT_THAT(changes, testing::Not(HasSubstr("train.loss")));
}

TEST_F(Diffusion, WhatIsNotModelledIsNamed) {
  const auto refusal = [](const Result<RunKeys>& keys) {
    if (!keys.ok()) return keys.status().text();
    const Result<TrainingRun> run = read_run(keys.value());
    return run.ok() ? std::string() : run.status().text();
  };
  const Json unet = {{"_class_name", "UNet2DConditionModel"}, {"_diffusers_version", "0.42.1"}};
  const auto with = [&](const char* key, const Json& value) {
    Json changed = unet;
    changed[key] = value;
    return refusal(read_diffusers_json(changed.dump(), ""));
  };
  EXPECT_EQ(refusal(read_diffusers_json(unet.dump(), "")), "");
  EXPECT_THAT(with("class_embed_type", "timestep"),
              HasSubstr("unet.class_embed_type: 'timestep' is not modelled"));
  EXPECT_THAT(with("block_out_channels", "many"),
              HasSubstr("unet.block_out_channels: 'many' is not allowed"));
  EXPECT_THAT(with("block_out_channels", {320, 640}), HasSubstr("unet.down_block_types"));
  EXPECT_THAT(with("attention_head_dim", {5, 10}), HasSubstr("4 numbers, one for each level"));
  EXPECT_THAT(with("attention_head_dim", 7), HasSubstr("divisors of 320 channels"));
  EXPECT_THAT(with("transformer_layers_per_block", 1000), HasSubstr("up to 10000 layers together"));
  EXPECT_THAT(with("layers_per_block", -1), HasSubstr("whole numbers from 1"));
  EXPECT_THAT(with("down_block_types", {"DownBlock2D", "DownBlock2D", "DownBlock2D", "AttnDownBlock2D"}),
              HasSubstr("allowed: DownBlock2D, CrossAttnDownBlock2D"));
  const Json other = {{"_class_name", "PixArtTransformer2DModel"}, {"_diffusers_version", "0.42.1"}};
  EXPECT_THAT(refusal(read_diffusers_json(other.dump(), "")),
              AllOf(HasSubstr("PixArtTransformer2DModel of diffusers is not modelled"),
                    HasSubstr("UNet2DConditionModel"), HasSubstr("spillway dryrun")));
  Json index = {{"_class_name", "CogVideoXPipeline"},
                {"_diffusers_version", "0.42.1"},
                {"transformer", {"diffusers", "CogVideoXTransformer3DModel"}}};
  EXPECT_THAT(refusal(read_diffusers_json(index.dump(), folder_.path())),
              HasSubstr("CogVideoXTransformer3DModel of diffusers is not modelled"));
  index["transformer"] = {"diffusers", "FluxTransformer2DModel"};
  EXPECT_THAT(refusal(read_diffusers_json(index.dump(), folder_.path())),
              HasSubstr("transformer/config.json: cannot be read"));
  EXPECT_THAT(refusal(read_diffusers_json("{\"_class_name\"", "")), HasSubstr("JSON"));
}

TEST_F(Diffusion, ADenoiserAloneSaysWhatIsMissing) {
  const Json unet = {{"_class_name", "FlaxUNet2DConditionModel"}, {"_diffusers_version", "0.10.0"}};
  const TrainingRun run = must_read(read_diffusers_json(unet.dump(), "").value());
  EXPECT_THAT(run.notes.warnings, testing::ElementsAre(HasSubstr("no autoencoder is named")));
  EXPECT_GT(rank_of(run).peak_bytes, 0);
}

TEST_F(Diffusion, KeysOfOthersAreRefused) {
  const auto complaint = [](const RunKeys& more) {
    const Result<TrainingRun> run = read_run(known("sdxl", more));
    return run.ok() ? std::string() : run.status().text();
  };
  EXPECT_THAT(complaint({{"train.resolution", "1000x1001"}}), HasSubstr("multiples of 8 pixels"));
  EXPECT_THAT(complaint({{"train.resolution", "big"}}), HasSubstr("such as 1024 or 1024x768"));
  EXPECT_THAT(complaint({{"train.sequence", "77"}}),
              HasSubstr("train.sequence: not allowed; a model of images"));
  EXPECT_THAT(complaint({{"parallel.zero", "3"}}),
              HasSubstr("parallel.zero: not allowed; a model of images"));
  EXPECT_THAT(complaint({{"adapter.kind", "lora"}, {"adapter.targets", "q_proj"}}),
              HasSubstr("no module of this model is called 'q_proj'"));
  EXPECT_THAT(complaint({{"serve.images", "1"}, {"adapter.kind", "lora"}}),
              HasSubstr("adapter.kind: not modelled"));
  EXPECT_THAT(complaint({{"model.read_as", "llama"}}), HasSubstr("model.read_as: not allowed"));
  EXPECT_THAT(complaint({{"model.weights", "nf4"}}), HasSubstr("model.weights: 'nf4' is not modelled"));
  EXPECT_THAT(complaint({{"serve.images", "1"}, {"parallel.gpus", "2"}}), HasSubstr("made on one GPU"));
  EXPECT_THAT(complaint({{"serve.images", "0"}}), HasSubstr("serve.images: '0' is not allowed"));
  EXPECT_THAT(complaint({{"serve.max_model_len", "10"}}), HasSubstr("serve.max_model_len: not known"));
}

}  // namespace
}  // namespace spillway::estimator
