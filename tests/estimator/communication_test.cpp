// Buffers of data parallelism, and what a step adds to the states: each key changes what its framework's
// source says it changes.
#include <gtest/gtest.h>

#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

constexpr double kParameters = 3212749824;

RankClass rank(const RunKeys& more) {
  return must_estimate(must_read(with(with(llama32_3b(), {{"parallel.gpus", "8"}}), more))).peak();
}

double bucket(const RankClass& rank, std::string_view name) {
  double bytes = 0;
  for (const Buckets* buckets : {&rank.steady, &rank.peak}) {
    for (const Bucket& bucket : *buckets) bytes += bucket.name == name ? bucket.bytes : 0;
  }
  return bytes;
}

double phase(const RankClass& rank, std::string_view name) {
  for (const Phase& phase : rank.phases) {
    if (phase.name == name) return phase.bytes;
  }
  ADD_FAILURE() << name;
  return 0;
}

// DDP's buckets hold all gradients; as views they are the gradients.
TEST(DataParallel, BucketsAreASecondCopyUnlessGradientsAreViews) {
  const RankClass copies = rank({});
  const RankClass views = rank({{"communication.gradient_as_bucket_view", "true"}});
  EXPECT_EQ(bucket(copies, "gradient buckets"), 2 * kParameters);
  EXPECT_EQ(bucket(views, "gradient buckets"), 0);
  EXPECT_DOUBLE_EQ(copies.steady_bytes, views.steady_bytes);
  EXPECT_DOUBLE_EQ(phase(copies, "optimizer step") - phase(views, "optimizer step"), 2 * kParameters);
  EXPECT_EQ(bucket(rank({{"parallel.gpus", "1"}}), "gradient buckets"), 0);
  EXPECT_EQ(bucket(rank({{"parallel.zero", "2"}}), "gradient buckets"), 0);
}

TEST(DeepSpeedBuckets, DoubleWhereCommunicationOverlaps) {
  const RunKeys stage2 = {{"communication.engine", "deepspeed"}, {"parallel.zero", "2"}};
  EXPECT_EQ(bucket(rank(stage2), "reduce buckets"), 2 * 5e8);
  EXPECT_EQ(bucket(rank(with(stage2, {{"communication.overlap_comm", "true"}})), "reduce buckets"), 4 * 5e8);
  EXPECT_EQ(bucket(rank(with(stage2, {{"communication.reduce_bucket_size", "2e8"}})), "reduce buckets"),
            2 * 2e8);
}

// Stage 3 keeps as many gathered weights as it is allowed to, and from the start one bucket and its
// gradients.
TEST(DeepSpeedBuckets, OfStage3FollowItsLimits) {
  const RunKeys stage3 = {{"communication.engine", "deepspeed"},
                          {"parallel.zero", "3"},
                          {"communication.keeps_gathered_weights", "false"}};
  EXPECT_EQ(bucket(rank(stage3), "gathered weights"), 2 * 1e9);
  EXPECT_EQ(bucket(rank(with(stage3, {{"communication.max_live_parameters", "1e10"}})), "gathered weights"),
            2 * kParameters);
  const double root = 2 * 128256.0 * 3072;
  EXPECT_EQ(bucket(rank(with(stage3, {{"communication.max_live_parameters", "0"},
                                      {"communication.prefetch_bucket_size", "1e7"}})),
                   "gathered weights"),
            root + 2 * 1e7);
  EXPECT_EQ(phase(rank(stage3), "between steps") - 2 * 5e8 - 2 * kParameters / 8,
            phase(rank({{"parallel.zero", "3"}}), "between steps"));
}

// DeepSpeed, issue 1465: a product keeps a view of its weight, unless its layer is recomputed.
TEST(DeepSpeedBuckets, OfStage3HoldWhatWasGatheredUntilTheBackwardPass) {
  const RunKeys stage3 = {{"communication.engine", "deepspeed"}, {"parallel.zero", "3"}};
  EXPECT_EQ(bucket(rank(stage3), "gathered weights"), 2 * kParameters);
  EXPECT_EQ(bucket(rank(with(stage3, {{"train.recompute", "full"}})), "gathered weights"), 2 * 1e9);
}

// The fp32 copy of 16-bit gradients, of the shard.
TEST(DeepSpeedBuckets, AStepCastsItsShardOfGradients) {
  const RankClass stage2 = rank({{"communication.engine", "deepspeed"}, {"parallel.zero", "2"}});
  EXPECT_NEAR(phase(stage2, "optimizer step") - stage2.steady_bytes, (2 + 4) * kParameters / 8, 1);
}

TEST(OptimizerStep, OfForeachMakesAStateOfTemporaries) {
  const RankClass fused = rank({{"train.precision", "fp32"}});
  const RankClass foreach = rank({{"train.precision", "fp32"}, {"train.optimizer_step", "foreach"}});
  EXPECT_DOUBLE_EQ(phase(foreach, "optimizer step") - phase(fused, "optimizer step"), 4 * kParameters);
  EXPECT_DOUBLE_EQ(phase(foreach, "end of forward"), phase(fused, "end of forward"));
}

TEST(OptimizerStep, InTheBackwardPassLeavesOneUnitsGradients) {
  const RankClass rank_class = rank({{"train.optimizer_step", "in-backward"}, {"parallel.gpus", "1"}});
  EXPECT_DOUBLE_EQ(phase(rank_class, "optimizer step") - rank_class.steady_bytes, 2 * 128256.0 * 3072);
}

// A captured step gives nothing back: the peak is there between steps, and gradients are static.
TEST(CapturedStep, KeepsItsPool) {
  const RankClass plain = rank({{"parallel.gpus", "1"}});
  const RankClass captured = rank({{"parallel.gpus", "1"}, {"train.cuda_graph", "step"}});
  EXPECT_DOUBLE_EQ(captured.steady_bytes, captured.peak_bytes);
  EXPECT_DOUBLE_EQ(captured.peak_bytes, plain.peak_bytes + 2 * kParameters);
}

// Autocast casts every matrix of a layer once for a step.
TEST(Autocast, HoldsCopiesOfMatrices) {
  const double copies = bucket(rank({{"train.precision", "autocast"}}), "16-bit copies of weights");
  const double norms = 28 * 2 * 3072 + 3072;
  EXPECT_DOUBLE_EQ(copies, 2 * (kParameters - norms - 128256.0 * 3072));
}

// torchtitan's policy on an eager Llama layer: the input, queries, values, attention's output and its fp32
// sums, the gate and the second projection.
TEST(OperatorRecomputation, KeepsEverySecondProduct) {
  const RankClass kept = rank({{"train.recompute", "operators"}, {"train.micro_batch", "2"}});
  const double tokens = 2 * 4096;
  const double layer = 2 * (3072 + 3072 + 1024 + 3072 + 8192 + 3072) + 4 * 24;
  EXPECT_NEAR(
      bucket(kept, "recomputed layers' inputs") + bucket(kept, "attention") + bucket(kept, "feed-forward"),
      28 * tokens * layer, 1);
}

// Two copies of each matrix and a byte less for each kept input of a product: norms' outputs, the second
// projection's input; a flash kernel keeps its output in 16 bits beside the copy.
TEST(Fp8, AddsCopiesAndHalvesInputs) {
  const RunKeys base = {{"parallel.gpus", "1"}, {"train.micro_batch", "2"}};
  const RankClass plain = rank(base);
  const RankClass fp8 = rank(with(base, {{"train.fp8", "tensorwise"}}));
  const double matrices = kParameters - 28 * 2 * 3072 - 3072 - 128256.0 * 3072;
  EXPECT_DOUBLE_EQ(bucket(fp8, "fp8 weights"), 2 * matrices);
  EXPECT_NEAR(plain.peak_bytes + 2 * matrices - fp8.peak_bytes, 28 * 2 * 4096 * (2 * 3072 + 8192 - 3072.0),
              1);
  // Five histories of 1024 steps, five scales and their inverses for each of seven matrices.
  const RankClass delayed = rank(with(base, {{"train.fp8", "delayed"}}));
  EXPECT_DOUBLE_EQ(delayed.steady_bytes - fp8.steady_bytes, 28 * 4 * 5 * 1026 * 4.0);
}

TEST(Checkpoints, AreDividedOrFewer) {
  const RunKeys full = {{"parallel.gpus", "4"},
                        {"parallel.tensor", "4"},
                        {"train.recompute", "full"},
                        {"train.micro_batch", "8"}};
  const double whole = bucket(rank(full), "recomputed layers' inputs");
  EXPECT_DOUBLE_EQ(
      bucket(rank(with(full, {{"train.partition_checkpoints", "true"}})), "recomputed layers' inputs"),
      whole / 4);
  EXPECT_DOUBLE_EQ(bucket(rank(with(full, {{"train.checkpoints", "7"}})), "recomputed layers' inputs"),
                   whole / 4);
}

}  // namespace
}  // namespace spillway::estimator::test
