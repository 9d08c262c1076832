// Peaks of models of transformers against those of `spillway dryrun`, to the byte what PyTorch was asked for.
// bench/estimator/transformers_peaks.py wrote the lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/inputs/adapter.h"
#include "estimator/inputs/run_file.h"
#include "estimator/inputs/transformers_release.h"

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;
using testing::Contains;
using testing::HasSubstr;

// A row as a run's keys.
RunKeys keys_of(const Json& row) {
  Json config = row["config"];
  config["architectures"] = {row["class"]};
  config["transformers_version"] = row["transformers"];
  Result<RunKeys> keys = read_model_json(config.dump());
  EXPECT_TRUE(keys.ok()) << keys.status().text();
  const std::string optimizer = row["optimizer"];
  RunKeys out = keys.value();
  out["train.framework"] = "transformers";
  out["train.micro_batch"] = row["batch"].dump();
  const std::string type = config["model_type"];
  const bool of_images = type == "vit" || type == "deit" || type.starts_with("dinov2");
  if (!of_images) out["train.sequence"] = row["sequence"].dump();
  out["train.precision"] = row["precision"];
  out["train.gradient_accumulation"] = row["accumulation"].dump();
  out["train.recompute"] = row["recompute"] ? "full" : "none";
  out["train.attention"] = row["attention"] == "sdpa" ? "flash" : "materialised";
  const std::map<std::string, std::string> names = {
      {"adamw_foreach", "adamw"}, {"sgd_momentum", "sgd-momentum"}, {"lisa", "adamw"}};
  const auto name = names.find(optimizer);
  out["train.optimizer"] = name == names.end() ? optimizer : name->second;
  out["train.optimizer_step"] = optimizer == "adamw_foreach" ? "foreach" : "fused";
  for (const char* key : {"optimizer_rank", "layers_at_a_time"}) {
    if (row.contains(key)) out[std::string("train.") + key] = row[key].dump();
  }
  if (row.contains("method")) {
    out["train.method"] = row["method"];
    out["train.prompt"] = std::to_string(row["sequence"].get<int64_t>() / 4);
  }
  if (row.contains("rollout_batch")) out["rollout.batch"] = row["rollout_batch"].dump();
  if (row.contains("images")) {
    out["train.images"] = row["images"].dump();
    out["train.freeze_vision"] = row["freeze_vision"].dump();
  }
  if (row.contains("grid")) {
    const int64_t patch = config["model_type"] == "qwen3_vl" ? 16 : 14;
    out["train.image_pixels"] =
        std::to_string(row["grid"][0].get<int64_t>() * row["grid"][1].get<int64_t>() * patch * patch);
  }
  if (row.contains("adapter")) {
    Json adapter = row["adapter"];
    if (!adapter.contains("peft_type")) adapter["peft_type"] = "LORA";
    const Result<RunKeys> given = read_adapter_json(adapter.dump());
    EXPECT_TRUE(given.ok()) << given.status().text();
    for (const auto& [key, value] : given.value()) out[key] = value;
  }
  return out;
}

double error_percent(const Json& row) {
  const Result<TrainingRun> run = read_run(keys_of(row));
  EXPECT_TRUE(run.ok()) << run.status().text() << row;
  if (!run.ok()) return 100;
  const Result<Estimate> found = estimate(run.value());
  EXPECT_TRUE(found.ok()) << found.status().text();
  return 100 * (found.value().peak().peak_bytes / row["peak"].get<double>() - 1);
}

Json config_of(const char* type, const char* version) {
  return {{"model_type", type},
          {"hidden_size", 768},
          {"intermediate_size", 1536},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 12},
          {"num_key_value_heads", 12},
          {"num_local_experts", 4},
          {"n_embd", 768},
          {"n_head", 12},
          {"n_layer", 4},
          {"n_positions", 8192},
          {"vocab_size", 32000},
          {"num_experts_per_tok", 2},
          {"head_dim", 64},
          {"d_model", 768},
          {"d_ff", 1536},
          {"num_layers", 4},
          {"num_heads", 12},
          {"d_kv", 64},
          {"n_groups", 1},
          {"transformers_version", version}};
}

TrainingRun run_of(const Json& config, const char* recompute) {
  Result<RunKeys> keys = read_model_json(config.dump());
  EXPECT_TRUE(keys.ok()) << keys.status().text();
  keys.value()["train.sequence"] = "4096";
  keys.value()["train.recompute"] = recompute;
  keys.value()["train.framework"] = "transformers";
  Result<TrainingRun> run = read_run(keys.value());
  EXPECT_TRUE(run.ok()) << run.status().text();
  return run.ok() ? std::move(run.value()) : TrainingRun{};
}

double peak_of(const TrainingRun& run) {
  const Result<Estimate> found = estimate(run);
  EXPECT_TRUE(found.ok()) << found.status().text();
  return found.value().peak().peak_bytes;
}

TEST(TransformersCode, WithoutSdpaKeepsAllScoresAndSaysSo) {
  const TrainingRun own = run_of(config_of("gpt_oss", "5.17.0"), "none");
  EXPECT_THAT(own.notes.warnings, Contains(HasSubstr("no scaled_dot_product_attention")));
  // Four layers of 12 heads, 4096 x 4096 scores each, of two bytes or more.
  EXPECT_GT(peak_of(own), 4 * 12 * 4096.0 * 4096 * 2);
  const TrainingRun kernel = run_of(config_of("mixtral", "5.17.0"), "none");
  EXPECT_THAT(kernel.notes.warnings, testing::Each(testing::Not(HasSubstr("scaled_dot_product_attention"))));
  EXPECT_LT(peak_of(kernel), peak_of(own) - 2 * 12 * 4096.0 * 4096 * 2);
}

TEST(TransformersCode, IsThatOfTheTypeThatAFileIsReadAs) {
  Json config = config_of("gpt_oss", "5.17.0");
  config["read_as"] = "mixtral";
  const TrainingRun run = run_of(config, "none");
  EXPECT_THAT(run.notes.warnings, testing::Each(testing::Not(HasSubstr("scaled_dot_product_attention"))));
  EXPECT_FALSE(run.code.own_attention);
  EXPECT_FALSE(run.code.sinks);
}

TEST(TransformersCode, HasNoWindowAndNoCapsWhereTheFileSaysNull) {
  Json config = config_of("mistral", "4.57.6");
  const double usual = peak_of(run_of(config, "none"));
  config["sliding_window"] = 1 << 20;
  const double wide = peak_of(run_of(config, "none"));
  EXPECT_LT(wide, usual);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(peak_of(run_of(config, "none")), wide);
  Json gemma = config_of("gemma2", "5.17.0");
  EXPECT_TRUE(run_of(gemma, "none").code.caps_logits);
  gemma["final_logit_softcapping"] = nullptr;
  EXPECT_FALSE(run_of(gemma, "none").code.caps_logits);
}

TEST(TransformersCode, DropsOutBetweenTheMatricesOfABlockWhereTheFileSaysSo) {
  Json config = {{"model_type", "bart"},          {"d_model", 768},
                 {"encoder_layers", 4},           {"decoder_layers", 4},
                 {"encoder_ffn_dim", 3072},       {"decoder_ffn_dim", 3072},
                 {"encoder_attention_heads", 12}, {"vocab_size", 32000},
                 {"decoder_attention_heads", 12}, {"max_position_embeddings", 4096}};
  const double usual = peak_of(run_of(config, "none"));
  config["activation_dropout"] = 0.1;
  // A mask of a byte for each of eight blocks.
  EXPECT_EQ(peak_of(run_of(config, "none")), usual + 8 * 4096.0 * 3072);
}

TEST(TransformersCode, ThatCannotBeRecomputedIsRefused) {
  Json config = config_of("mpnet", "5.17.0");
  config["max_position_embeddings"] = 4096 + 2;
  Result<RunKeys> keys = read_model_json(config.dump());
  ASSERT_TRUE(keys.ok());
  keys.value()["train.recompute"] = "full";
  keys.value()["train.framework"] = "transformers";
  const Result<TrainingRun> run = read_run(keys.value());
  ASSERT_FALSE(run.ok());
  EXPECT_THAT(run.status().text(), HasSubstr("'mpnet' has no gradient checkpointing"));
}

TEST(TransformersCode, OfGptBigCodeRecomputesNothingBeforeFive) {
  const Json old = config_of("gpt_bigcode", "4.57.6"), current = config_of("gpt_bigcode", "5.17.0");
  EXPECT_EQ(peak_of(run_of(old, "full")), peak_of(run_of(old, "none")));
  EXPECT_THAT(run_of(old, "full").notes.warnings, Contains(HasSubstr("keeps all activations")));
  EXPECT_LT(peak_of(run_of(current, "full")), peak_of(run_of(current, "none")));
}

int release_of(const char* version) {
  const RunKeys keys = {{"model.transformers_version", version}};
  KeyValues values(keys);
  return transformers_release(values, "model.");
}

TEST(TransformersRelease, IsReadFromTheFile) {
  EXPECT_EQ(release_of("5.24.0"), 524);
  EXPECT_EQ(release_of("5.18.0.dev0"), 518);
  EXPECT_EQ(release_of("4.57.6"), 457);
  EXPECT_EQ(release_of("5"), 500);
  for (const char* text : {"", "null", "main", "-3.1", "1000000.2"}) EXPECT_EQ(release_of(text), 457) << text;
  for (const char* text : {"5.1000", "5.99999999999"}) EXPECT_EQ(release_of(text), 599) << text;
}

// Peaks of one model in two releases next to each other, between which its code was changed.
struct ChangedCode {
  const char* type;
  const char* before;
  const char* after;
  bool keeps_more;
};

class ReleasesOfTransformers : public testing::TestWithParam<ChangedCode> {};

TEST_P(ReleasesOfTransformers, KeepWhatTheirCodeKeeps) {
  const ChangedCode& code = GetParam();
  const double before = peak_of(run_of(config_of(code.type, code.before), "none"));
  const double after = peak_of(run_of(config_of(code.type, code.after), "none"));
  if (code.keeps_more)
    EXPECT_GT(after, before * 1.05);
  else
    EXPECT_LT(after, before / 1.05);
}

INSTANTIATE_TEST_SUITE_P(Types, ReleasesOfTransformers,
                         testing::Values(ChangedCode{"gptj", "5.23.0", "5.24.0", false},
                                         ChangedCode{"codegen", "5.23.0", "5.24.0", false},
                                         ChangedCode{"gemma2", "5.20.0", "5.21.0", true},
                                         ChangedCode{"mt5", "5.19.0", "5.20.0", false},
                                         ChangedCode{"mamba2", "5.17.0", "5.18.0", false}),
                         [](const auto& info) { return std::string(info.param.type); });

// Their files may name a release before they were there, or none.
TEST(TransformersRelease, OfTypesThatOnlyFiveHasIsTheNewest) {
  for (const char* type : {"cwm", "ministral3", "minimax_m2", "solar_open"}) {
    Json config = config_of(type, "4.57.6");
    const TrainingRun old = run_of(config, "none");
    EXPECT_EQ(peak_of(old), peak_of(run_of(config_of(type, "5.24.0"), "none"))) << type;
    EXPECT_THAT(old.notes.warnings, testing::Each(testing::Not(HasSubstr("scaled_dot_product_attention"))));
    config.erase("transformers_version");
    EXPECT_EQ(peak_of(run_of(config, "none")), peak_of(old)) << type;
  }
}

TEST(TransformersRelease, SaysWhatCachesAndNormsAre) {
  const auto code_of = [](const char* version) { return run_of(config_of("mamba2", version), "none").code; };
  EXPECT_FALSE(code_of("5.22.0").norms_groups);
  EXPECT_TRUE(code_of("5.23.0").norms_groups);
  EXPECT_FALSE(code_of("5.23.0").caches_values_apart);
  EXPECT_TRUE(code_of("5.24.0").caches_values_apart);
}

// The published files of mT5 say that their tables are two. transformers 5 does not ask them.
TEST(TransformersRelease, TiesTheTablesOfEncodersAndDecodersSinceFive) {
  const auto tied = [](const char* type, const char* version) {
    Json config = config_of(type, version);
    config["tie_word_embeddings"] = false;
    return run_of(config, "none").model.tied;
  };
  for (const char* type : {"t5", "mt5", "umt5"}) {
    EXPECT_FALSE(tied(type, "4.57.6")) << type;
    EXPECT_TRUE(tied(type, "5.17.0")) << type;
  }
}

TEST(TransformersAdapters, NameTheMatricesOfLatentAttention) {
  Json config = config_of("deepseek_v3", "5.17.0");
  config.erase("head_dim");
  const auto with = [&](const char* targets) {
    Result<RunKeys> keys = read_model_json(config.dump());
    keys.value()["train.framework"] = "transformers";
    keys.value()["adapter.kind"] = "lora";
    keys.value()["adapter.targets"] = targets;
    return read_run(keys.value());
  };
  const Result<TrainingRun> run = with("q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj");
  EXPECT_TRUE(run.ok()) << run.status().text();
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) EXPECT_FALSE(with(name).ok()) << name;
}

// Rows of a file, and how far estimates of them may be off, in percent.
struct Rows {
  const char* file;
  const char* name;
  double median;
  double ninety_fifth;
  double worst;
};

class DryrunPeaks : public testing::TestWithParam<Rows> {};

TEST_P(DryrunPeaks, AreWithinTheBoundsOfTheirFile) {
  const Rows& rows = GetParam();
  std::ifstream lines(std::string(SPILLWAY_PARAMETERS) + "/" + rows.file);
  ASSERT_TRUE(lines) << rows.file;
  std::vector<double> errors;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    errors.push_back(std::abs(error_percent(row)));
    EXPECT_LE(errors.back(), rows.worst) << row["config"]["model_type"] << ", row " << row["number"];
  }
  ASSERT_GT(errors.size(), 30u);
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(errors[errors.size() / 2], rows.median);
  EXPECT_LE(errors[errors.size() * 95 / 100], rows.ninety_fifth);
}

INSTANTIATE_TEST_SUITE_P(Rows, DryrunPeaks,
                         testing::Values(Rows{"transformers-4.57.jsonl", "Old", 0.05, 0.8, 1.5},
                                         Rows{"transformers-5.17.jsonl", "New", 0.05, 0.8, 1.5},
                                         Rows{"transformers-5.24.jsonl", "Newest", 0.1, 0.8, 2.5},
                                         Rows{"transformers-adapters.jsonl", "Adapters", 0.05, 0.8, 1},
                                         Rows{"transformers-images.jsonl", "Images", 0.8, 4, 5},
                                         Rows{"transformers-more.jsonl", "More", 0.1, 1.3, 3.5},
                                         Rows{"transformers-optimizers.jsonl", "Optimizers", 0.05, 0.8, 1.5},
                                         Rows{"transformers-ppo.jsonl", "Ppo", 0.05, 0.3, 0.5},
                                         Rows{"transformers-preference.jsonl", "Preference", 0.1, 1.5, 3.5}),
                         [](const auto& rows) { return std::string(rows.param.name); });
}  // namespace
}  // namespace spillway::estimator
