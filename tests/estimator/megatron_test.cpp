// Megatron-LM's arguments: what is read, what is refused, and a recorded run to the byte where everything is
// counted.
#include "estimator/inputs/megatron.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "estimator/inputs/megatron_files.h"
#include "tests/support/small_gpt.h"
#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

MegatronRun small_gpt() {
  MegatronRun given;
  given.gpu = "h100";
  given.arguments = small_gpt_arguments();
  return given;
}

std::string complaint(const std::map<std::string, std::string>& more, int64_t gpus = 8) {
  MegatronRun given = small_gpt();
  given.gpus = gpus;
  for (const auto& [key, value] : more) given.arguments[key] = value;
  Result<TrainingRun> run = read_megatron(given);
  if (!run.ok()) return run.status().text();
  Result<Estimate> answer = estimate(run.value());
  return answer.ok() ? "" : answer.status().text();
}

// 12 layers of 12 h^2 + 13 h, the padded table, positions and the final norm, counted by hand.
TEST(Megatron, CountsASmallGpt) {
  Result<TrainingRun> run = read_megatron(small_gpt());
  ASSERT_TRUE(run.ok()) << run.status().text();
  const Estimate answer = must_estimate(run.value());
  const int64_t layer = 12 * 512 * 512 + 13 * 512;
  EXPECT_EQ(answer.peak().parameters, 12 * layer + 50304 * 512 + 1024 * 512 + 2 * 512);
  EXPECT_EQ(answer.parameters, 12 * layer + 50257 * 512 + 1024 * 512 + 2 * 512);
}

// 18 bytes an element, two cuBLAS workspaces and Transformer Engine's, and what the allocator adds.
TEST(Megatron, HoldsEighteenBytesBetweenSteps) {
  Result<TrainingRun> run = read_megatron(small_gpt());
  ASSERT_TRUE(run.ok());
  const RankClass rank = must_estimate(run.value()).peak();
  double rounding = 0;
  for (const Bucket& bucket : rank.steady) {
    if (std::string_view(bucket.name) == "allocator rounding") rounding = bucket.bytes;
  }
  EXPECT_GT(rounding, 0);
  EXPECT_NEAR(rank.steady_bytes - rounding, 18.0 * static_cast<double>(rank.parameters) + 96 * (1 << 20), 1);
}

// A momentum for each element of a matrix, Adam's two states for tables, norms and biases; no shards but of
// whole weights (megatron/core/optimizer/muon.py).
TEST(Megatron, MuonHoldsOneStateForMatrices) {
  const auto states = [](const char* optimizer, int64_t gpus) {
    MegatronRun given = small_gpt();
    given.gpus = gpus;
    given.arguments.erase("use-distributed-optimizer");
    given.arguments["optimizer"] = optimizer;
    Result<TrainingRun> run = read_megatron(given);
    EXPECT_TRUE(run.ok()) << run.status().text();
    const RankClass rank = must_estimate(run.value()).peak();
    for (const Bucket& bucket : rank.steady) {
      if (std::string_view(bucket.name) == "optimizer states") return bucket.bytes;
    }
    return 0.0;
  };
  const double matrices = 12 * 12.0 * 512 * 512;
  EXPECT_NEAR(states("adam", 2) - states("muon", 2), 4 * matrices, 1);
  EXPECT_NEAR(states("muon", 2) / states("dist_muon", 2), 2, 1e-9);
  EXPECT_EQ(complaint({{"optimizer", "muon"}, {"use-distributed-optimizer", "true"}}),
            "use-distributed-optimizer: not allowed beside optimizer 'muon'; allowed: optimizer dist_muon "
            "without it, which divides states by whole weights");
  EXPECT_EQ(complaint({{"optimizer", "muon"}, {"use-megatron-fsdp", "true"}}),
            "optimizer: 'muon' is not allowed beside Megatron-FSDP; allowed: adam, sgd");
}

TEST(Megatron, RefusesWhatIsNotModelledByName) {
  EXPECT_EQ(complaint({{"fp4-format", "e2m1"}}),
            "fp4-format is not modelled: fp4 keeps packed copies and scales of weights and activations");
  EXPECT_EQ(complaint({{"moe-token-dispatcher-type", "flex"}}),
            "moe-token-dispatcher-type: 'flex' is not modelled; allowed: allgather, alltoall");
}

TEST(Megatron, NamesKeyValueAndWhatIsAllowed) {
  EXPECT_EQ(complaint({{"hidden-size", "-5"}}),
            "hidden-size: '-5' is not allowed; allowed: whole numbers from 1 to 1048576");
  EXPECT_EQ(complaint({{"hidden-size", "510"}}),
            "num-attention-heads: '8' is not allowed; allowed: a divisor of hidden-size 510");
  EXPECT_EQ(complaint({{"hidden-dropout", "nan"}}),
            "hidden-dropout: 'nan' is not allowed; allowed: numbers from 0 to 1");
  EXPECT_EQ(complaint({{"attention-backend", "quick"}}),
            "attention-backend: 'quick' is not allowed; allowed: auto, flash, fused, unfused, local");
  EXPECT_EQ(complaint({{"tensor-model-parallel-size", "3"}}),
            "gpus: '8' is not allowed; allowed: multiples of tensor-model-parallel-size 3 x "
            "pipeline-model-parallel-size 1 x context-parallel-size 1");
  EXPECT_EQ(complaint({{"tensor-model-parallel-size", "16"}}, 16),
            "tensor-model-parallel-size: '16' is not allowed; allowed: divisors of 8 attention heads");
  EXPECT_EQ(complaint({{"pipeline-model-parallel-size", "8"}}),
            "pipeline-model-parallel-size: '8' is not allowed; allowed: divisors of 12 layers");
  EXPECT_EQ(complaint({{"num-experts", "6"}, {"expert-model-parallel-size", "4"}}),
            "expert-model-parallel-size: '4' is not allowed; allowed: divisors of 6 experts");
  EXPECT_EQ(complaint({{"expert-model-parallel-size", "4"}}),
            "expert-model-parallel-size: '4' is not allowed; allowed: 1 for a model without experts");
  EXPECT_EQ(complaint({{"global-batch-size", "33"}}),
            "global-batch-size: '33' is not allowed; allowed: multiples of micro-batch-size 4 x "
            "data-parallel size 8");
}

// Two copies of every matrix of a layer, 12 h^2 elements each, and a byte less for each kept product input:
// of the two norms, the attention and the feed-forward, 7 h T.
TEST(Megatron, Fp8KeepsCopiesOfMatricesAndSmallerInputs) {
  MegatronRun given = small_gpt();
  given.environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True";
  const auto answer = [&] {
    Result<TrainingRun> run = read_megatron(given);
    EXPECT_TRUE(run.ok()) << run.status().text();
    return must_estimate(run.value()).peak();
  };
  const RankClass plain = answer();
  given.arguments["fp8-format"] = "hybrid";
  given.arguments["fp8-recipe"] = "tensorwise";
  const RankClass fp8 = answer();
  const double copies = 12 * 2 * 12.0 * 512 * 512;
  EXPECT_NEAR(fp8.steady_bytes - plain.steady_bytes, copies, 1);
  EXPECT_NEAR(plain.peak_bytes + copies - fp8.peak_bytes, 12 * 7.0 * 512 * 1024 * 4, 1);
}

// Shards of the optimizer update copies in 8 bits: the 16-bit matrices, 12 h^2 elements of each layer, are
// not there.
TEST(Megatron, WeightsInEightBitsHaveNoOthersBesideThem) {
  MegatronRun given = small_gpt();
  given.environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True";
  given.arguments["use-distributed-optimizer"] = "true";
  given.arguments["fp8-format"] = "hybrid";
  given.arguments["fp8-recipe"] = "tensorwise";
  const auto steady = [&] {
    Result<TrainingRun> run = read_megatron(given);
    EXPECT_TRUE(run.ok()) << run.status().text();
    return run.ok() ? must_estimate(run.value()).peak().steady_bytes : 0;
  };
  const double copied = steady();
  given.arguments["fp8-param-gather"] = "true";
  EXPECT_NEAR(copied - steady(), 2 * 12 * 12.0 * 512 * 512, 1);
}

TEST(Megatron, WeightsInEightBitsNeedTheirOptimizerAndBuffer) {
  EXPECT_EQ(complaint({{"fp8-param-gather", "true"}}),
            "fp8-param-gather: not allowed without fp8-format; allowed: fp8-format hybrid, e4m3");
  EXPECT_EQ(complaint({{"fp8-param-gather", "true"}, {"fp8-format", "hybrid"}}),
            "fp8-param-gather: not allowed without use-distributed-optimizer; allowed: beside it");
  EXPECT_EQ(
      complaint({{"fp8-param-gather", "true"}, {"fp8-format", "hybrid"}, {"use-megatron-fsdp", "true"}}),
      "fp8-param-gather: not modelled beside use-megatron-fsdp; allowed: use-distributed-optimizer");
  std::map<std::string, std::string> scaled = {{"fp8-param-gather", "true"},
                                               {"fp8-format", "e4m3"},
                                               {"fp8-recipe", "mxfp8"},
                                               {"use-distributed-optimizer", "true"}};
  EXPECT_EQ(complaint(scaled),
            "fp8-param-gather: not modelled beside fp8-recipe 'mxfp8' alone; allowed: with "
            "reuse-grad-buf-for-mxfp8-param-ag");
  scaled["reuse-grad-buf-for-mxfp8-param-ag"] = "true";
  EXPECT_EQ(complaint(scaled), "");
}

// Prediction layers of h by 2 h and three norms before a layer each: one of them, run twice, has half of the
// weights and all of the activations.
TEST(Megatron, OnePredictionLayerMayRunSeveralTimes) {
  MegatronRun given = small_gpt();
  given.environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True";
  given.arguments["mtp-num-layers"] = "2";
  const auto answer = [&] {
    Result<TrainingRun> run = read_megatron(given);
    EXPECT_TRUE(run.ok()) << run.status().text();
    return must_estimate(run.value());
  };
  const Estimate each = answer();
  given.arguments["mtp-use-repeated-layer"] = "true";
  const Estimate repeated = answer();
  const int64_t layer = 12 * 512 * 512 + 13 * 512 + 2 * 512 * 512 + 6 * 512;
  EXPECT_EQ(each.parameters - repeated.parameters, layer);
  EXPECT_EQ(each.peak().parameters - repeated.peak().parameters, layer);
  EXPECT_NEAR(each.peak().peak_bytes - repeated.peak().peak_bytes, 18.0 * static_cast<double>(layer), 1);
}

// A vision tower is whole on every context- and sequence-parallel rank; the decoder's tokens are padded.
TEST(Megatron, DividesTheDecoderOfAVisionModelOnly) {
  MegatronRun given = small_gpt();
  given.arguments["attention-backend"] = "flash";
  for (const auto& [key, value] : std::map<std::string, std::string>{{"img-h", "336"},
                                                                     {"img-w", "336"},
                                                                     {"vocab-size", "8192"},
                                                                     {"tensor-model-parallel-size", "4"},
                                                                     {"sequence-parallel", "true"},
                                                                     {"context-parallel-size", "2"}})
    given.arguments[key] = value;
  Result<TrainingRun> run = read_megatron(given);
  ASSERT_TRUE(run.ok()) << run.status().text();
  EXPECT_EQ(run->model.towers.front().sequence, 577);
  EXPECT_FALSE(run->model.towers.front().divided);
  EXPECT_EQ(run->model.towers.back().sequence, (1024 + 577 + 15) / 16 * 16);
  EXPECT_EQ(run->model.positions, run->model.towers.back().sequence);
  must_estimate(run.value());
}

TEST(Megatron, AnswersAbsurdSizesAtOnce) {
  EXPECT_THAT(complaint({{"hidden-size", "1048576"}, {"num-layers", "10000"}, {"kv-channels", "1048576"}}),
              testing::HasSubstr("parameters are more than any machine holds"));
  EXPECT_EQ(complaint({{"num-experts", "1048576"}, {"moe-ffn-hidden-size", "8"}}), "");
  EXPECT_EQ(complaint({{"global-batch-size", "4194304"},
                       {"pipeline-model-parallel-size", "4"},
                       {"num-layers-per-virtual-pipeline-stage", "1"},
                       {"microbatch-group-size-per-virtual-pipeline-stage", "1048576"}}),
            "");
}

TEST(Megatron, DoesNotGuessTheKernelOfAnUnknownContainer) {
  MegatronRun given = small_gpt();
  given.arguments.erase("attention-backend");
  given.environment["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0";
  given.gpu = "a100";
  given.date = "2025-06-01";
  EXPECT_FALSE(read_megatron(given).ok());
  given.date = "2026-06-01";
  EXPECT_TRUE(read_megatron(given).ok());
}

TEST(Megatron, EchoesArgumentsItDoesNotKnow) {
  MegatronRun given = small_gpt();
  given.arguments["brand-new-flag"] = "7";
  given.arguments["lr-decay-style"] = "cosine";
  Result<TrainingRun> run = read_megatron(given);
  ASSERT_TRUE(run.ok());
  const auto mentions = [&](std::string_view key) {
    return std::any_of(run->notes.assumptions.begin(), run->notes.assumptions.end(),
                       [&](const std::string& text) { return text.find(key) != std::string::npos; });
  };
  EXPECT_TRUE(mentions("brand-new-flag"));
  EXPECT_FALSE(mentions("lr-decay-style"));
}

TEST(Megatron, ReadsAnArgumentList) {
  Result<MegatronRun> given = read_megatron_arguments(
      "--num-layers 12 --bf16 \\\n --seq-length=1024 --recompute-modules core_attn mlp");
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given->arguments.at("num-layers"), "12");
  EXPECT_EQ(given->arguments.at("bf16"), "true");
  EXPECT_EQ(given->arguments.at("seq-length"), "1024");
  EXPECT_EQ(given->arguments.at("recompute-modules"), "core_attn mlp");
  EXPECT_FALSE(read_megatron_arguments("num-layers 12").ok());
}

TEST(Megatron, ReadsAModelConfig) {
  Result<MegatronRun> given =
      read_megatron_yaml("ENV_VARS:\n  NCCL_ALGO: Ring\nMODEL_ARGS:\n  --num-layers: 12\n  --bf16: true\n");
  ASSERT_TRUE(given.ok()) << given.status().text();
  EXPECT_EQ(given->arguments.at("num-layers"), "12");
  EXPECT_EQ(given->arguments.at("bf16"), "true");
  EXPECT_EQ(given->environment.at("NCCL_ALGO"), "Ring");
  EXPECT_FALSE(read_megatron_yaml("a: [").ok());
  EXPECT_EQ(read_megatron_yaml("a: 1").status().text(),
            "MODEL_ARGS: missing; allowed: a mapping of arguments to values");
  EXPECT_TRUE(read_megatron_yaml("MODEL_ARGS:\n  --num-layers: 12\n").ok());  // without ENV_VARS
}

#ifdef SPILLWAY_RECORDED_RUNS
// The bars of the accuracy that docs/estimator-accuracy.md shows.
TEST(Megatron, RecordedRunsAreMet) {
  std::ifstream file(SPILLWAY_RECORDED_RUNS);
  std::string line;
  std::vector<double> steady, peak;
  size_t runs = 0, held = 0;
  while (std::getline(file, line)) {
    Result<RecordedRun> recorded = read_recorded_run(line);
    ASSERT_TRUE(recorded.ok()) << recorded.status().text();
    ++runs;
    Result<TrainingRun> run = read_megatron(recorded.value().run);
    if (!run.ok()) continue;
    const RankClass rank = must_estimate(run.value()).peak();
    const MeasuredBytes& measured = *recorded.value().measured;
    steady.push_back(std::abs(rank.steady_bytes / measured.steady - 1));
    peak.push_back(std::abs(rank.peak_bytes / measured.peak - 1));
    held += rank.lowest_bytes <= measured.peak && measured.peak <= rank.highest_bytes ? 1 : 0;
  }
  std::sort(steady.begin(), steady.end());
  std::sort(peak.begin(), peak.end());
  ASSERT_GT(peak.size(), 300u);
  EXPECT_GE(peak.size(), 0.95 * static_cast<double>(runs));
  EXPECT_LT(steady[steady.size() / 2], 0.005);
  EXPECT_LT(steady[steady.size() * 9 / 10], 0.025);
  EXPECT_LT(peak[peak.size() / 2], 0.006);
  EXPECT_LT(peak[peak.size() * 9 / 10], 0.04);
  EXPECT_LT(peak.back(), 0.15);
  EXPECT_GT(held, 0.9 * static_cast<double>(peak.size()));
}
#endif

}  // namespace
}  // namespace spillway::estimator::test
