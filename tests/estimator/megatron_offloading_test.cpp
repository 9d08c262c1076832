// Megatron-LM's saved tensors in host memory: which leave the device, which stay, and what is refused.
#include <gtest/gtest.h>

#include "estimator/inputs/megatron.h"
#include "tests/support/small_gpt.h"
#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

using Arguments = std::map<std::string, std::string>;

Result<TrainingRun> read(const Arguments& more) {
  MegatronRun given;
  given.gpu = "h100";
  given.environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True";
  given.arguments = small_gpt_arguments();
  given.arguments["attention-backend"] = "flash";
  for (const auto& [key, value] : more) given.arguments[key] = value;
  return read_megatron(given);
}

Arguments moving(const char* modules, Arguments more = {}) {
  more["fine-grained-activation-offloading"] = "true";
  more["offload-modules"] = modules;
  return more;
}

RankClass rank_of(const Arguments& more) {
  Result<TrainingRun> run = read(more);
  EXPECT_TRUE(run.ok()) << run.status().text();
  return run.ok() ? must_estimate(run.value()).peak() : RankClass{};
}

std::string complaint(const Arguments& more) {
  Result<TrainingRun> run = read(more);
  return run.ok() ? "" : run.status().text();
}

constexpr double kLayers = 12;
constexpr double kTensor = 2.0 * 4 * 1024 * 512;  // of a token's width

// Queries, keys and values of all layers but the last wait in host memory, and no more of them are there.
TEST(MegatronOffloading, TensorsOfAllLayersButTheLastLeave) {
  const RankClass without = rank_of({});
  const RankClass with = rank_of(moving("[core_attn]"));
  const double moved = (kLayers - 1) * 3 * kTensor;
  EXPECT_NEAR(total_bytes(with.host), moved, 1);
  EXPECT_NEAR(without.peak_bytes - with.peak_bytes, moved, 1);
  EXPECT_NEAR(total_bytes(with.steady) + total_bytes(with.peak), with.peak_bytes, 1);
  EXPECT_EQ(without.steady_bytes, with.steady_bytes);
}

// The attention's result is kept for its own backward pass and for the projection's; the norm is part of the
// projection of queries, keys and values, and what goes into it leaves with them.
TEST(MegatronOffloading, EachModuleMovesItsOwn) {
  EXPECT_NEAR(total_bytes(rank_of(moving("core_attn attn_proj")).host), (kLayers - 1) * 4 * kTensor, 1);
  EXPECT_NEAR(total_bytes(rank_of(moving("qkv_linear")).host), (kLayers - 1) * 2 * kTensor, 1);
  EXPECT_EQ(total_bytes(rank_of(moving("attn_norm")).host), 0);
  EXPECT_EQ(total_bytes(rank_of(moving("mlp_norm")).host), 0);
}

TEST(MegatronOffloading, SmallTensorsStay) {
  EXPECT_EQ(total_bytes(rank_of(moving("core_attn", {{"min-offloaded-tensor-size", "8388608"}})).host), 0);
  EXPECT_GT(total_bytes(rank_of(moving("core_attn", {{"min-offloaded-tensor-size", "6291456"}})).host), 0);
}

// Two tokens' worth of each sample's goes to experts; the products of groups move theirs, those of one expert
// after the other do not.
TEST(MegatronOffloading, ExpertsMoveInputsOfGroupedProducts) {
  const Arguments experts = {{"num-experts", "8"}, {"moe-router-topk", "2"}};
  EXPECT_EQ(total_bytes(rank_of(moving("expert_fc1", experts)).host), 0);
  Arguments grouped = experts;
  grouped["moe-grouped-gemm"] = "true";
  EXPECT_NEAR(total_bytes(rank_of(moving("expert_fc1", grouped)).host), (kLayers - 1) * 2 * kTensor, 1);
  EXPECT_NEAR(total_bytes(rank_of(moving("mlp_norm", grouped)).host), (kLayers - 1) * kTensor, 1);
  EXPECT_GT(total_bytes(rank_of(moving("moe_act", grouped)).host), (kLayers - 1) * 8 * kTensor - 1);
}

// Latent attention has a norm of its own before narrow projections.
TEST(MegatronOffloading, LatentAttentionsNormIsAModule) {
  const Arguments latent = {{"multi-latent-attention", "true"}, {"kv-lora-rank", "256"}};
  EXPECT_NEAR(total_bytes(rank_of(moving("attn_norm", latent)).host), (kLayers - 1) * kTensor, 1);
}

// Of several microbatches in flight, one keeps its last layer's tensors.
TEST(MegatronOffloading, EveryMicrobatchInFlightMoves) {
  Result<TrainingRun> run =
      read(moving("core_attn", {{"pipeline-model-parallel-size", "2"}, {"global-batch-size", "64"}}));
  ASSERT_TRUE(run.ok()) << run.status().text();
  run.value().last_rank_only = false;
  for (const RankClass& rank : must_estimate(run.value()).ranks) {
    const double in_flight = rank.stage == 0 ? 2 : 1;
    EXPECT_NEAR(total_bytes(rank.host), (in_flight * 6 - 1) * 3 * kTensor, 1) << rank.stage;
  }
}

TEST(MegatronOffloading, NamesWhatCannotMove) {
  EXPECT_EQ(complaint(moving("")),
            "offload-modules: missing; allowed: names beside fine-grained-activation-offloading");
  EXPECT_EQ(complaint(moving("attention")),
            "offload-modules: 'attention' is not allowed; allowed: attn_norm, qkv_linear, core_attn, "
            "attn_proj, mlp_norm, expert_fc1, moe_act");
  EXPECT_EQ(complaint(moving("attn_proj")),
            "offload-modules: 'attn_proj' is not allowed without core_attn, which keeps the same tensor; "
            "allowed: both");
  EXPECT_EQ(complaint(moving("core_attn", {{"activation-offload-fraction", "0.5"}})),
            "activation-offload-fraction: below 1 is not modelled; allowed: 1");
  EXPECT_EQ(complaint(moving("core_attn", {{"recompute-granularity", "full"}})),
            "fine-grained-activation-offloading: not modelled beside recompute-granularity 'full'; allowed: "
            "selective");
  EXPECT_EQ(complaint(moving("core_attn", {{"transformer-impl", "local"}})),
            "fine-grained-activation-offloading: not allowed beside transformer-impl 'local'; allowed: "
            "transformer_engine");
}

}  // namespace
}  // namespace spillway::estimator::test
