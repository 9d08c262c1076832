// Megatron-LM's saved tensors in host memory: which leave the device, which stay, and what is refused.
#include <gtest/gtest.h>

#include "estimator/inputs/megatron.h"
#include "estimator/verdict.h"
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
  return must_rank(read(more));
}

std::string complaint(const Arguments& more) {
  return complaint_of(read(more));
}

constexpr double kLayers = 12;
constexpr double kTensor = 2.0 * 4 * 1024 * 512;  // of a token's width

double host_of(const char* modules, const Arguments& more = {}) {
  return total_bytes(rank_of(moving(modules, more)).host);
}

// Queries, keys and values of all layers but the last leave. The attention's result is copied too, and stays
// for the projection behind it.
TEST(MegatronOffloading, TensorsOfAllLayersButTheLastLeave) {
  const RankClass without = rank_of({});
  const RankClass with = rank_of(moving("[core_attn]"));
  EXPECT_NEAR(total_bytes(with.host), (kLayers - 1) * 4 * kTensor, 1);
  EXPECT_NEAR(without.peak_bytes - with.peak_bytes, (kLayers - 1) * 3 * kTensor, 1);
  EXPECT_NEAR(total_bytes(with.steady) + total_bytes(with.peak), with.peak_bytes, 1);
  EXPECT_EQ(without.steady_bytes, with.steady_bytes);
}

// The projection moves the result as well, which then leaves; the norm is part of the projection of queries,
// keys and values, and what goes into it leaves with them.
TEST(MegatronOffloading, EachModuleMovesItsOwn) {
  const double peak = rank_of({}).peak_bytes;
  EXPECT_NEAR(host_of("core_attn attn_proj"), (kLayers - 1) * 5 * kTensor, 1);
  EXPECT_NEAR(peak - rank_of(moving("core_attn attn_proj")).peak_bytes, (kLayers - 1) * 4 * kTensor, 1);
  EXPECT_NEAR(host_of("qkv_linear"), (kLayers - 1) * 2 * kTensor, 1);
  EXPECT_EQ(host_of("attn_norm"), 0);
  EXPECT_EQ(host_of("mlp_norm"), 0);
}

// Each tensor by its own size: with a group for four heads keys and values are small ones.
TEST(MegatronOffloading, SmallTensorsStay) {
  EXPECT_EQ(host_of("core_attn", {{"min-offloaded-tensor-size", "2097153"}}), 0);
  EXPECT_GT(host_of("core_attn", {{"min-offloaded-tensor-size", "2097152"}}), 0);
  const Arguments grouped = {
      {"group-query-attention", "true"}, {"num-query-groups", "2"}, {"min-offloaded-tensor-size", "2097152"}};
  EXPECT_NEAR(host_of("core_attn", grouped), (kLayers - 1) * 2 * kTensor, 1);
}

// What is computed again is saved by nothing.
TEST(MegatronOffloading, RecomputedAttentionKeepsItsInputs) {
  const Arguments selective = {{"recompute-granularity", "selective"}};
  EXPECT_EQ(host_of("core_attn", selective), 0);
  EXPECT_EQ(rank_of(moving("core_attn", selective)).peak_bytes, rank_of(selective).peak_bytes);
}

// Two of a token's copies go to experts; the products of groups move theirs, those of one expert after the
// other do not.
TEST(MegatronOffloading, ExpertsMoveInputsOfGroupedProducts) {
  const Arguments experts = {{"num-experts", "8"}, {"moe-router-topk", "2"}};
  EXPECT_EQ(host_of("expert_fc1", experts), 0);
  Arguments grouped = experts;
  grouped["moe-grouped-gemm"] = "true";
  EXPECT_NEAR(host_of("expert_fc1", grouped), (kLayers - 1) * 2 * kTensor, 1);
  EXPECT_NEAR(host_of("mlp_norm", grouped), (kLayers - 1) * kTensor, 1);
  EXPECT_GT(host_of("moe_act", grouped), (kLayers - 1) * 8 * kTensor - 1);
  // Beside fp8 the inputs are kept in 16 bits for it, unless rows and columns are scaled apart.
  grouped["fp8-format"] = "hybrid";
  grouped["fp8-recipe"] = "tensorwise";
  EXPECT_NEAR(host_of("expert_fc1", grouped), (kLayers - 1) * 2 * kTensor, 1);
  grouped["fp8-recipe"] = "mxfp8";
  EXPECT_NEAR(host_of("expert_fc1", grouped), (kLayers - 1) * (1 + 1.0 / 32) * kTensor, 1);
}

// Latent attention has a norm of its own before narrow projections.
TEST(MegatronOffloading, LatentAttentionsNormIsAModule) {
  const Arguments latent = {{"multi-latent-attention", "true"}, {"kv-lora-rank", "256"}};
  EXPECT_NEAR(host_of("attn_norm", latent), (kLayers - 1) * kTensor, 1);
}

// Attention and experts are in layers of their own here: of each the last one stays.
TEST(MegatronOffloading, TheLastOfEachPartStays) {
  const Arguments hybrid = {{"hybrid-layer-pattern", "M*EM*E"}, {"num-experts", "8"},
                            {"moe-router-topk", "2"},           {"moe-grouped-gemm", "true"},
                            {"mamba-num-groups", "1"},          {"mamba-num-heads", "16"}};
  const double attention = host_of("core_attn", hybrid);
  const double experts = host_of("expert_fc1", hybrid);
  EXPECT_NEAR(attention, 4 * kTensor, 1);
  EXPECT_NEAR(experts, 2 * kTensor, 1);
  EXPECT_NEAR(host_of("core_attn expert_fc1", hybrid), attention + experts, 1);
}

// Of several microbatches in flight, one keeps its last layer's tensors.
TEST(MegatronOffloading, EveryMicrobatchInFlightMoves) {
  Result<TrainingRun> run =
      read(moving("core_attn", {{"pipeline-model-parallel-size", "2"}, {"global-batch-size", "64"}}));
  ASSERT_TRUE(run.ok()) << run.status().text();
  run.value().last_rank_only = false;
  for (const RankClass& rank : must_estimate(run.value()).ranks) {
    const double in_flight = rank.stage == 0 ? 2 : 1;
    EXPECT_NEAR(total_bytes(rank.host), (in_flight * 6 - 1) * 4 * kTensor, 1) << rank.stage;
  }
}

// Programs but those of GPT and of hybrids move nothing.
TEST(MegatronOffloading, OtherModelsAreRefused) {
  EXPECT_EQ(complaint(moving("core_attn", {{"encoder-seq-length", "512"}, {"decoder-seq-length", "128"}})),
            "fine-grained-activation-offloading: not modelled for t5, whose program moves nothing; allowed: "
            "gpt, hybrid models");
}

// Scores come back for the softmax and for the product, and have a gradient, while another layer's are there.
TEST(MegatronOffloading, ScoresThatComeBackMayBeThePeak) {
  const Arguments eager = {{"attention-backend", "unfused"},
                           {"seq-length", "4096"},
                           {"micro-batch-size", "1"},
                           {"max-position-embeddings", "4096"},
                           {"attention-dropout", "0"}};
  const double scores = 2.0 * 8 * 4096 * 4096;
  const RankClass rank = rank_of(moving("core_attn", eager));
  EXPECT_NEAR(total_bytes(rank.steady) + total_bytes(rank.peak), rank.peak_bytes, 1);
  EXPECT_GE(rank.peak_bytes - rank.steady_bytes, 4 * scores);
  EXPECT_LE(rank.peak_bytes - rank.steady_bytes, 0.5 * (rank_of(eager).peak_bytes - rank.steady_bytes));
}

// An advice is nothing that the reader refuses.
TEST(MegatronOffloading, RecomputingAllIsNoAdvice) {
  Result<TrainingRun> run = read(moving("core_attn"));
  ASSERT_TRUE(run.ok()) << run.status().text();
  for (const Mitigation& each : mitigations(run.value())) EXPECT_NE(each.change, "train.recompute = full");
}

TEST(MegatronOffloading, NamesWhatCannotMove) {
  EXPECT_EQ(complaint(moving("")),
            "offload-modules: missing; allowed: names beside fine-grained-activation-offloading");
  EXPECT_EQ(complaint(moving("attention")),
            "offload-modules: 'attention' is not allowed; allowed: attn_norm, qkv_linear, core_attn, "
            "attn_proj, mlp_norm, expert_fc1, moe_act");
  EXPECT_EQ(complaint(moving("fused_group_mlp")),
            "offload-modules: 'fused_group_mlp' is not modelled; allowed: attn_norm, qkv_linear, core_attn, "
            "attn_proj, mlp_norm, expert_fc1, moe_act");
  EXPECT_EQ(complaint({{"offload-modules", "core_attn"}}),
            "offload-modules: not allowed without fine-grained-activation-offloading; allowed: beside it");
  EXPECT_EQ(complaint(moving("core_attn", {{"cuda-graph-impl", "transformer_engine"}})),
            "fine-grained-activation-offloading: not modelled beside cuda-graph-impl 'transformer_engine'; "
            "allowed: none");
  EXPECT_EQ(
      complaint(moving(
          "moe_act",
          {{"recompute-granularity", "selective"}, {"recompute-modules", "moe"}, {"num-experts", "8"}})),
      "offload-modules: 'moe_act' is not allowed beside recompute-modules 'moe'; allowed: modules outside "
      "of experts");
  EXPECT_EQ(complaint(moving("expert_fc1",
                             {{"num-experts", "8"}, {"moe-grouped-gemm", "true"}, {"fp8-format", "hybrid"}})),
            "offload-modules: 'expert_fc1' is not allowed beside fp8-recipe 'delayed'; allowed: fp8-recipe "
            "tensorwise, blockwise, mxfp8");
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
