// Models by their names: each has the parameters that its owner publishes.
#include "estimator/inputs/known_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "estimator/model.h"
#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

TEST(KnownModels, HaveTheirPublishedParameters) {
  EXPECT_GE(known_models().size(), 100u);
  for (const KnownModel& model : known_models()) {
    const Result<TrainingRun> run = read_run(known_model_keys(model));
    ASSERT_TRUE(run.ok()) << model.name << ": " << run.status().text();
    const double billions = static_cast<double>(total_parameters(run.value().model)) / 1e9;
    EXPECT_NEAR(billions, model.billions, 0.005 * model.billions) << model.name;
  }
}

TEST(KnownModels, HaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (const KnownModel& model : known_models()) {
    EXPECT_TRUE(names.insert(model.name).second) << model.name;
    EXPECT_EQ(find_known_model(model.name), &model) << model.name;
    EXPECT_NE(find_known_model(model.repository), nullptr) << model.repository;
  }
}

// Where nothing was found that the sizes could be compared with, every answer says so.
TEST(KnownModels, SayWhereTheirSizesWereNotChecked) {
  size_t checked = 0;
  for (const KnownModel& model : known_models()) {
    const Result<TrainingRun> run = read_run(known_model_keys(model));
    ASSERT_TRUE(run.ok()) << model.name;
    const std::vector<std::string>& warnings = run.value().notes.warnings;
    const bool warned = std::any_of(warnings.begin(), warnings.end(), [](const std::string& warning) {
      return warning.find("were not checked against its config.json") != std::string::npos;
    });
    EXPECT_EQ(warned, model.source == SizesSource::kNone) << model.name;
    checked += warned ? 0 : 1;
  }
  EXPECT_GE(checked, 124u);
}

// Base models of Qwen2.5 have four times the positions of those that were tuned.
TEST(KnownModels, AnEndingThatChangesASizeHasItsOwnRow) {
  EXPECT_EQ(find_known_model("Qwen/Qwen2.5-7B-Instruct")->name, "qwen2.5-7b-instruct");
  EXPECT_EQ(find_known_model("qwen2.5-7b")->name, "qwen2.5-7b");
  const auto positions = [](const char* name) {
    return known_model_keys(*find_known_model(name))["model.max_position_embeddings"];
  };
  EXPECT_EQ(positions("Qwen2.5-7B"), "131072");
  EXPECT_EQ(positions("Qwen2.5-7B-Instruct"), "32768");
}

TEST(KnownModels, AreFoundAsPeopleWriteThem) {
  const auto found = [](const char* name) {
    const KnownModel* model = find_known_model(name);
    return model == nullptr ? std::string() : std::string(model->name);
  };
  EXPECT_EQ(found("Llama-3.1-8B-Instruct"), "llama-3.1-8b");
  EXPECT_EQ(found("meta-llama/Meta-Llama-3-8B-Instruct"), "llama-3-8b");
  EXPECT_EQ(found("Qwen/Qwen3-30B-A3B-Instruct-2507"), "qwen3-30b-a3b");
  EXPECT_EQ(found("google/gemma-3-27b-it"), "gemma-3-27b");
  EXPECT_EQ(found("google/gemma-4-26B-A4B-it"), "gemma-4-26b-a4b");
  EXPECT_EQ(found("Qwen/Qwen3.6-27B"), "qwen3.6-27b");
  EXPECT_EQ(found("mistralai/Mistral-7B-v0.3"), "mistral-7b-v0.3");
  EXPECT_EQ(found("mistralai/Mistral-7B-Instruct-v0.1"), "mistral-7b");
  EXPECT_EQ(found("mistralai/Mistral-7B-Instruct-v0.3"), "mistral-7b-v0.3");
  EXPECT_EQ(found("llama-9-8b"), "");
  EXPECT_EQ(found(""), "");
  EXPECT_NE(meant_model("lama-3.1-8b").find("llama-3.1-8b"), std::string::npos);
}

}  // namespace
}  // namespace spillway::estimator::test
