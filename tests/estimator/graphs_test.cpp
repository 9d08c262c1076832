// Megatron-LM's captured graphs: what stays for them, when the peak is, and what is refused.
#include "estimator/graphs.h"

#include <gtest/gtest.h>

#include <numeric>

#include "estimator/inputs/megatron.h"
#include "estimator/reserved.h"
#include "estimator/verdict.h"
#include "tests/support/small_gpt.h"
#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

using Arguments = std::map<std::string, std::string>;

Result<TrainingRun> read(const Arguments& more) {
  MegatronRun given;
  given.gpu = "h100";
  given.arguments = small_gpt_arguments();
  given.arguments["attention-backend"] = "flash";
  for (const auto& [key, value] : more) given.arguments[key] = value;
  return read_megatron(given);
}

RankClass rank_of(const Arguments& more) {
  return must_rank(read(more));
}

std::string complaint(const Arguments& more) {
  return complaint_of(read(more));
}

double bucket(const Buckets& buckets, std::string_view name) {
  double out = 0;
  for (const Bucket& each : buckets) out += name == each.name ? each.bytes : 0;
  return out;
}

double phase(const RankClass& rank, std::string_view name) {
  for (const Phase& each : rank.phases) {
    if (name == each.name) return each.bytes;
  }
  ADD_FAILURE() << "no phase " << name;
  return 0;
}

constexpr double kLayers = 12;
constexpr double kBatch = 4, kSequence = 1024, kHidden = 512;
constexpr double kInput = 2 * kBatch * kSequence * kHidden;
constexpr double kMask = kBatch * kSequence * kSequence;

// One graph for each layer: its input and a mask of a byte for each pair of tokens.
TEST(Graphs, KeepTheirInputsBetweenSteps) {
  const RankClass without = rank_of({});
  const RankClass with = rank_of({{"cuda-graph-impl", "transformer_engine"}});
  EXPECT_NEAR(with.steady_bytes - without.steady_bytes, kLayers * (kInput + kMask), 1);
  // Without attention no mask goes in.
  const RankClass dense = rank_of({{"cuda-graph-impl", "transformer_engine"}, {"cuda-graph-scope", "mlp"}});
  EXPECT_NEAR(dense.steady_bytes - without.steady_bytes, kLayers * kInput, 1);
}

// PyTorch's own products have a workspace for each stream and thread: of the capture, and of what is tried
// before it.
TEST(Graphs, EagerAttentionHasWorkspacesOfItsStreams) {
  const Arguments unfused = {{"attention-backend", "unfused"}};
  Arguments captured = unfused;
  captured["cuda-graph-impl"] = "transformer_engine";
  EXPECT_NEAR(bucket(rank_of(captured).steady, "workspaces") - bucket(rank_of(unfused).steady, "workspaces"),
              4 * 32.0 * (1 << 20), 1);
}

// One microbatch after the other goes through the same graph unless a pipeline holds several.
TEST(Graphs, AreAsManyAsMicrobatchesInFlight) {
  const Arguments pipeline = {{"pipeline-model-parallel-size", "2"}, {"global-batch-size", "64"}};
  Arguments captured = pipeline;
  captured["cuda-graph-impl"] = "transformer_engine";
  Result<TrainingRun> run = read(captured);
  ASSERT_TRUE(run.ok()) << run.status().text();
  run.value().last_rank_only = false;
  for (const RankClass& rank : must_estimate(run.value()).ranks) {
    const double in_flight = rank.stage == 0 ? 2 : 1;
    EXPECT_NEAR(bucket(rank.steady, "inputs of captured graphs"), in_flight * 6 * (kInput + kMask), 1);
  }
}

// Three steps run without graphs, two of them with the optimizer's states: theirs is the peak.
TEST(Graphs, ThePeakIsOfTheStepsBefore) {
  const RankClass without = rank_of({});
  const RankClass with = rank_of({{"cuda-graph-impl", "transformer_engine"}});
  EXPECT_EQ(with.peak_bytes, without.peak_bytes);
  EXPECT_EQ(with.peak_step1_bytes, without.peak_step1_bytes);
  EXPECT_NEAR(total_bytes(with.steady) + total_bytes(with.peak), with.peak_bytes, 1);
  EXPECT_LT(phase(with, "end of forward"), phase(with, "steps before graphs"));
}

// Captured before the first step, with no states yet, the layers are never outside of the pool.
TEST(Graphs, WithoutStepsBeforeThePeakIsSmaller) {
  const RankClass without = rank_of({});
  const RankClass with =
      rank_of({{"cuda-graph-impl", "transformer_engine"}, {"cuda-graph-warmup-steps", "0"}});
  EXPECT_LT(with.peak_bytes, without.peak_bytes);
  EXPECT_NEAR(total_bytes(with.steady) + total_bytes(with.peak), with.peak_bytes, 1);
  EXPECT_GE(with.peak_step1_bytes, phase(with, "capture of graphs"));
}

// What the allocator must hold is no less than without graphs: activations lie in a pool that nothing else
// may use.
TEST(Graphs, ThePoolIsNotFree) {
  const RankClass without = rank_of({});
  for (const char* steps : {"0", "1", "3"}) {
    const RankClass with =
        rank_of({{"cuda-graph-impl", "transformer_engine"}, {"cuda-graph-warmup-steps", steps}});
    EXPECT_NEAR(with.held_bytes(), without.peak_bytes + kLayers * kMask, 0.01 * without.peak_bytes) << steps;
  }
}

TEST(Graphs, AWholeIterationKeepsNothingBetweenSteps) {
  const RankClass without = rank_of({});
  for (const Arguments& words :
       {Arguments{{"cuda-graph-impl", "full_iteration"}},
        Arguments{{"cuda-graph-impl", "local"}, {"cuda-graph-scope", "full_iteration"}}}) {
    const RankClass with = rank_of(words);
    EXPECT_EQ(with.steady_bytes, without.steady_bytes);
    EXPECT_EQ(with.peak_bytes, without.peak_bytes);
    EXPECT_EQ(phase(with, "end of forward"), with.steady_bytes);
  }
}

// What a recomputation brings back lies in the pool as well.
TEST(Graphs, NoPhaseIsAboveThePeak) {
  for (const char* steps : {"0", "1", "3"}) {
    const RankClass rank = rank_of({{"cuda-graph-impl", "full_iteration"},
                                    {"recompute-granularity", "full"},
                                    {"cuda-graph-warmup-steps", steps}});
    for (const Phase& each : rank.phases) EXPECT_LE(each.bytes, rank.peak_bytes + 1) << each.name << steps;
  }
}

TEST(Graphs, WordsOfEveryReleaseSayTheSame) {
  const double steady =
      rank_of({{"cuda-graph-impl", "transformer_engine"}, {"cuda-graph-scope", "[attn mlp]"}}).steady_bytes;
  EXPECT_EQ(
      rank_of({{"cuda-graph-impl", "transformer_engine"}, {"cuda-graph-scope", "attn,mlp"}}).steady_bytes,
      steady);
  EXPECT_EQ(
      rank_of({{"cuda-graph-impl", "transformer_engine"}, {"cuda-graph-modules", "attn mlp"}}).steady_bytes,
      steady);
  EXPECT_EQ(rank_of({{"external-cuda-graph", "true"}}).steady_bytes, steady);
  EXPECT_EQ(rank_of({{"cuda-graph-impl", "none"}}).steady_bytes, rank_of({}).steady_bytes);
}

TEST(Graphs, RefusalsSayWhatIsAllowed) {
  EXPECT_EQ(complaint({{"external-cuda-graph", "true"}, {"cuda-graph-impl", "none"}}),
            "external-cuda-graph: not allowed beside cuda-graph-impl; allowed: one of them");
  const auto of_scope = [](const char* scope) {
    return complaint({{"cuda-graph-impl", "transformer_engine"}, {"cuda-graph-scope", scope}});
  };
  EXPECT_EQ(of_scope("attn full"),
            "cuda-graph-scope: 'full' is not allowed beside other names; allowed: it alone");
  EXPECT_EQ(of_scope("full_iteration attn"),
            "cuda-graph-scope: 'full_iteration' is not allowed beside other names; allowed: it alone");
  EXPECT_EQ(
      of_scope("attn moe_preprocess"),
      "cuda-graph-scope: 'moe_preprocess' is not allowed without moe_router; allowed: both, or neither");
  EXPECT_EQ(of_scope("attn moe_router"),
            "cuda-graph-scope: 'moe_router' is not allowed; allowed: beside num-experts");
  EXPECT_EQ(of_scope("attn mamba"),
            "cuda-graph-scope: 'mamba' is not allowed; allowed: for models with such layers");
  EXPECT_EQ(complaint({{"cuda-graph-impl", "transformer_engine"},
                       {"cuda-graph-scope", "attn"},
                       {"cuda-graph-modules", "attn"}}),
            "cuda-graph-modules: not allowed beside cuda-graph-scope; allowed: one of them");
  EXPECT_EQ(
      complaint({{"cuda-graph-impl", "full_iteration"}, {"cuda-graph-scope", "attn"}}),
      "cuda-graph-scope: not allowed beside cuda-graph-impl 'full_iteration'; allowed: transformer_engine");
  EXPECT_EQ(complaint({{"cuda-graph-impl", "transformer_engine"}, {"cuda-graph-scope", "[attn mlpp]"}}),
            "cuda-graph-scope: 'mlpp' is not allowed; allowed: full, full_iteration, attn, mlp, moe, "
            "moe_router, moe_preprocess, mamba");
  EXPECT_EQ(complaint({{"enable-cuda-graph", "true"}}),
            "cuda-graph-impl: 'local' with cuda-graph-scope 'full' is not modelled, as each graph has a pool "
            "of its own; allowed: none, transformer_engine, local with cuda-graph-scope full_iteration");
  EXPECT_EQ(complaint({{"cuda-graph-impl", "transformer_engine"}, {"cuda-graph-scope", "full_iteration"}}),
            "cuda-graph-scope: 'full_iteration' is not allowed beside cuda-graph-impl 'transformer_engine'; "
            "allowed: "
            "cuda-graph-impl local");
  EXPECT_EQ(
      complaint({{"cuda-graph-impl", "transformer_engine"}, {"recompute-granularity", "full"}}),
      "recompute-granularity: 'full' is not allowed beside cuda-graph-scope 'full'; allowed: selective, "
      "or a graph of the full_iteration");
}

}  // namespace
}  // namespace spillway::estimator::test
