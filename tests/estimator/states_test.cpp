// Model states against the published tables of ZeRO and of DeepSpeed.
#include "estimator/buckets/states.h"

#include <gtest/gtest.h>

#include "tests/support/training_runs.h"

namespace spillway::estimator {
namespace {

using test::kGB;
using test::states_gb;

// Rajbhandari et al., "ZeRO", table 1: gigabytes per device, 16 bytes a parameter.
struct ZeroRow {
  double parameters;
  int64_t ranks;
  double optimizer, gradients, weights;
  double rounding;  // of the table's last digit
};
class ZeroTable : public testing::TestWithParam<ZeroRow> {};

TEST_P(ZeroTable, IsReproduced) {
  const ZeroRow& row = GetParam();
  EXPECT_NEAR(states_gb(row.parameters, row.ranks, DataSharding::kOptimizer), row.optimizer, row.rounding);
  EXPECT_NEAR(states_gb(row.parameters, row.ranks, DataSharding::kGradients), row.gradients, row.rounding);
  EXPECT_NEAR(states_gb(row.parameters, row.ranks, DataSharding::kParameters), row.weights, row.rounding);
}

INSTANTIATE_TEST_SUITE_P(
    Published, ZeroTable,
    testing::Values(ZeroRow{7.5e9, 1, 120, 120, 120, 0.1}, ZeroRow{7.5e9, 4, 52.5, 41.3, 30, 0.1},
                    ZeroRow{7.5e9, 16, 35.6, 21.6, 7.5, 0.1}, ZeroRow{7.5e9, 64, 31.4, 16.6, 1.88, 0.1},
                    ZeroRow{7.5e9, 256, 30.4, 15.4, 0.47, 0.1}, ZeroRow{7.5e9, 1024, 30.1, 15.1, 0.12, 0.1},
                    ZeroRow{128e9, 64, 536, 284, 32, 1}, ZeroRow{1e12, 1024, 4012, 2014, 15.6, 1}));

// DeepSpeed's documentation, t5-3b on 8 GPUs: its ZeRO-2 counts gradients whole and 16 bytes a parameter
// beside 4.
TEST(DeepSpeed, CountsMoreThanIsHeldAtStage2) {
  constexpr double kParameters = 2851e6;
  constexpr double kGiB = 1 << 30;
  const double published = 15.93 * kGiB / kGB;
  const double ours = states_gb(kParameters, 8, DataSharding::kGradients);
  EXPECT_NEAR(ours, kParameters * (2 + 14.0 / 8) / kGB, 1e-6);
  const double counted_more = kParameters * (4 - 2 + (16 - 14) / 8.0) / kGB;
  EXPECT_NEAR(published - ours, counted_more, 0.02);
}

TEST(DeepSpeed, CountsFp32GradientsAndALargestLayerAtStage3) {
  constexpr double kParameters = 2851e6;
  constexpr double kGiB = 1 << 30;
  const double published = 6.09 * kGiB / kGB;
  const double ours = states_gb(kParameters, 8, DataSharding::kParameters);
  const double counted_more = (kParameters * 2 / 8 + 4 * 32e6) / kGB;
  EXPECT_NEAR(published - ours, counted_more, 0.02);
}

struct Regime {
  const char* name;
  Framework framework;
  Precision precision;
  bool mixed, fp32_gradients, autocast;
  OptimizerKind optimizer;
  double bytes;  // weight, gradient, master and moments
};
class BytesPerParameter : public testing::TestWithParam<Regime> {};

TEST_P(BytesPerParameter, AreAsDocumented) {
  const Regime& regime = GetParam();
  Training training;
  training.precision = regime.precision;
  training.mixed = regime.mixed;
  training.fp32_gradients = regime.fp32_gradients;
  training.autocast = regime.autocast;
  training.optimizer = regime.optimizer;
  const ElementBytes bytes = element_bytes(training, regime.framework);
  EXPECT_DOUBLE_EQ(bytes.weight + bytes.gradient + bytes.master + bytes.moments + bytes.master_gradient,
                   regime.bytes);
}

using enum Framework;
using enum Precision;
using enum OptimizerKind;
INSTANTIATE_TEST_SUITE_P(
    Regimes, BytesPerParameter,
    testing::Values(Regime{"fp32", kPytorch, kFp32, true, false, false, kAdam, 16},
                    Regime{"zero", kPytorch, kFp16, true, false, false, kAdam, 16},
                    Regime{"autocast", kPytorch, kBf16, true, false, true, kAdam, 16},
                    Regime{"pure_bf16", kPytorch, kBf16, false, false, false, kAdam, 8},
                    Regime{"megatron_bf16", kMegatron, kBf16, true, true, false, kAdam, 18},
                    Regime{"megatron_fp16", kMegatron, kFp16, true, false, false, kAdam, 20},
                    Regime{"adam8bit", kPytorch, kBf16, true, false, false, kAdam8bit, 8 + 2.03125},
                    Regime{"adam4bit", kPytorch, kBf16, true, false, false, kAdam4bit, 8 + 1.0625},
                    Regime{"lion", kPytorch, kFp32, true, false, false, kLion, 12},
                    Regime{"adam_mini", kPytorch, kFp32, true, false, false, kAdamMini, 12},
                    Regime{"sgd", kPytorch, kFp32, true, false, false, kSgd, 8}),
    [](const testing::TestParamInfo<Regime>& info) { return info.param.name; });

// Experts are sharded over their own ranks: N / (etp e p).
TEST(Sharding, OfExpertsUsesTheirOwnDataParallelSize) {
  TrainingRun run;
  run.parallel.world = 8;
  run.parallel.expert = 4;
  run.parallel.sharding = DataSharding::kOptimizer;
  const StateBytes states = state_bytes(run, {800, 400});
  EXPECT_DOUBLE_EQ(states.moments, 8 * (800 / 8.0 + 400 / 2.0));
  EXPECT_DOUBLE_EQ(states.gradients, 4 * (800 + 400));
}

}  // namespace
}  // namespace spillway::estimator
