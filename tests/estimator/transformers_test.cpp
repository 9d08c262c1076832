// Peaks of models of transformers against those of `spillway dryrun`, to the byte what PyTorch was asked for.
// bench/estimator/transformers_peaks.py wrote the lines.
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

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;

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
  if (config["model_type"] != "vit") out["train.sequence"] = row["sequence"].dump();
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
    adapter["peft_type"] = "LORA";
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

class DryrunPeaks : public testing::TestWithParam<const char*> {};

TEST_P(DryrunPeaks, AreWithinOneAndAHalfPercentInTheMedianAndFiveAtTheNinetyFifth) {
  std::ifstream lines(std::string(SPILLWAY_PARAMETERS) + "/" + GetParam());
  ASSERT_TRUE(lines) << GetParam();
  std::vector<double> errors;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    errors.push_back(std::abs(error_percent(row)));
  }
  ASSERT_GT(errors.size(), 30u);
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(errors[errors.size() / 2], 1.5);
  EXPECT_LE(errors[errors.size() * 95 / 100], 5);
}

INSTANTIATE_TEST_SUITE_P(Rows, DryrunPeaks,
                         testing::Values("transformers-4.57.jsonl", "transformers-5.17.jsonl",
                                         "transformers-adapters.jsonl", "transformers-images.jsonl",
                                         "transformers-optimizers.jsonl"),
                         [](const auto& rows) {
                           const std::string name = rows.param;
                           return name.find("4.57") != std::string::npos       ? "Old"
                                  : name.find("5.17") != std::string::npos     ? "New"
                                  : name.find("adapters") != std::string::npos ? "Adapters"
                                  : name.find("images") != std::string::npos   ? "Images"
                                                                               : "Optimizers";
                         });

}  // namespace
}  // namespace spillway::estimator
