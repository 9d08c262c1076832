// Holds what a step costs to what papers say of each change.
#include "estimator/advice/step_cost.h"

#include <gtest/gtest.h>

#include "estimator/inputs/known_models.h"

namespace spillway::estimator::test {
namespace {

class StepCost : public ::testing::Test {
 protected:
  static TrainingRun run_of(const char* model, const RunKeys& more = {}) {
    RunKeys keys = known_model_keys(*find_known_model(model));
    for (const auto& [key, value] : more) keys[key] = value;
    return read_run(keys).value();
  }

  static StepWork work_of(const TrainingRun& run) {
    return step_work(model_work(run.model), {run.parallel, run.training, run.offload});
  }
};

// Six operations for each parameter and token, but for the table of tokens and with the scores.
TEST_F(StepCost, ArithmeticIsSixTimesParametersAndTokens) {
  const TrainingRun run = run_of("llama-2-7b");
  const double tokens = 4096;
  const double products = 6 * (6.738e9 - 32000.0 * 4096) * tokens;
  const double scores = 6 * tokens * 4096 * 4096 * 32;
  EXPECT_NEAR(work_of(run).flops, products + scores, 0.01 * products);
}

TEST_F(StepCost, FullRecomputationIsAThirdMore) {
  const double kept = work_of(run_of("llama-2-7b")).flops;
  EXPECT_NEAR(work_of(run_of("llama-2-7b", {{"train.recompute", "full"}})).flops / kept, 4.0 / 3, 0.001);
}

// "ZeRO", section 7: stages 1 and 2 send what an all-reduce does, stage 3 half as much again.
TEST_F(StepCost, ThirdStageSendsHalfAsMuchAgain) {
  const auto sent = [](const char* stage) {
    return work_of(run_of("llama-2-7b", {{"parallel.gpus", "8"}, {"parallel.zero", stage}})).link_bytes;
  };
  EXPECT_EQ(sent("1"), sent("0"));
  EXPECT_EQ(sent("2"), sent("0"));
  EXPECT_NEAR(sent("3"), 1.5 * sent("0"), 1);
}

// Of an expert model only those that a token passes count: 3.3 of 30.5e9 parameters.
TEST_F(StepCost, OnlyActiveExpertsCount) {
  EXPECT_NEAR(model_work(run_of("qwen3-30b-a3b").model).active_parameters, 3.0e9, 0.1e9);
}

TEST_F(StepCost, APipelineIsIdleForItsStages) {
  const RunKeys stages = {
      {"parallel.gpus", "4"}, {"parallel.pipeline", "4"}, {"train.gradient_accumulation", "12"}};
  EXPECT_NEAR(work_of(run_of("llama-2-7b", stages)).idle_share, 3.0 / 12, 1e-9);
}

TEST_F(StepCost, MachinesAreFoundByTheLongestName) {
  EXPECT_STREQ(machine_of("l40s").name, "l40s");
  EXPECT_STREQ(machine_of("h200").name, "h200");
  EXPECT_STREQ(machine_of("a100-40").name, "a100");
  EXPECT_STREQ(machine_of("24GiB").name, "a100");
}

}  // namespace
}  // namespace spillway::estimator::test
