// Each rule of the diagnosis: evidence that it speaks on, and evidence just short of it.
#include "estimator/advice/diagnosis.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/training_runs.h"

namespace spillway::estimator {
namespace {

constexpr double kGiB = 1 << 30;

// Ten GiB, neither lost nor idle.
Measurement quiet() {
  Measurement out;
  out.source = "dump.json";
  out.requested = out.allocated = out.active = out.reserved = {10 * kGiB, 10 * kGiB};
  return out;
}

const Finding* found(const std::vector<Finding>& findings, std::string_view rule) {
  const auto at =
      std::find_if(findings.begin(), findings.end(), [&](const Finding& each) { return each.rule == rule; });
  return at == findings.end() ? nullptr : &*at;
}

bool speaks(const Measurement& measurement, std::string_view rule) {
  return found(diagnose({measurement}, nullptr), rule) != nullptr;
}

// Rules over a run: eight layers with scores of 2 x 24 x 4096^2 elements and logits of 8192 x 128256.
class WithRun : public ::testing::Test {
 protected:
  static RunKeys keys(const RunKeys& more = {}) {
    return test::with(test::with(test::llama32_3b(), {{"train.micro_batch", "2"},
                                                      {"train.sequence", "4096"},
                                                      {"model.num_hidden_layers", "8"}}),
                      more);
  }

  static std::vector<Finding> diagnosed(const std::vector<Measurement>& measurements, const RunKeys& keys) {
    const TrainingRun run = test::must_read(keys);
    const Estimate estimate = test::must_estimate(run);
    const MeasuredRun measured{run, estimate};
    return diagnose(measurements, &measured);
  }

  static bool speaks(const Measurement& measurement, const RunKeys& keys, std::string_view rule) {
    return found(diagnosed({measurement}, keys), rule) != nullptr;
  }

  static Measurement of_peak(double bytes) {
    Measurement out = quiet();
    out.requested.peak = out.allocated.peak = out.active.peak = out.reserved.peak = bytes;
    return out;
  }

  static constexpr double kScores = 2.0 * 24 * 4096 * 4096;
  static constexpr double kLogits = 8192.0 * 128256;
};

TEST(Diagnosis, NothingIsWrongWithAFullDevice) {
  EXPECT_TRUE(diagnose({quiet()}, nullptr).empty());
}

TEST(Diagnosis, ModelStates) {
  Measurement m = quiet();
  m.annotations = {{"parameter_bytes", 2 * kGiB}, {"optimizer_bytes", 4 * kGiB}};
  EXPECT_FALSE(speaks(m, "model-states"));
  m.annotations["gradient_bytes"] = 0.1 * kGiB;
  const std::vector<Finding> findings = diagnose({m}, nullptr);
  const Finding* states = found(findings, "model-states");
  ASSERT_NE(states, nullptr);
  EXPECT_NEAR(states->saved_bytes, 4 * kGiB * (1 - 2.03 / 8), 1);
  EXPECT_EQ(states->source, "dump.json");
}

TEST(Diagnosis, ExternalFragmentation) {
  Measurement m = quiet();
  m.reserved = {16 * kGiB, 16 * kGiB};
  m.inactive_split = {6 * kGiB, 6 * kGiB};
  EXPECT_FALSE(speaks(m, "external-fragmentation")) << "nothing was flushed for it";
  m.retries = 3;
  const std::vector<Finding> findings = diagnose({m}, nullptr);
  ASSERT_NE(found(findings, "external-fragmentation"), nullptr);
  EXPECT_EQ(found(findings, "external-fragmentation")->saved_bytes, 6 * kGiB);
  m.inactive_split = {1 * kGiB, 1 * kGiB};
  EXPECT_FALSE(speaks(m, "external-fragmentation")) << "a sixteenth of what is reserved";
}

TEST(Diagnosis, CachingIsHarmless) {
  Measurement m = quiet();
  m.reserved = {14 * kGiB, 14 * kGiB};
  m.cached_free_bytes = 4 * kGiB;
  EXPECT_TRUE(speaks(m, "caching"));
  m.retries = 1;
  EXPECT_FALSE(speaks(m, "caching")) << "it was needed";
  m.retries = 0;
  m.cached_free_bytes = 2 * kGiB;
  EXPECT_FALSE(speaks(m, "caching"));
}

TEST(Diagnosis, Rounding) {
  Measurement m = quiet();
  m.requested.peak = 9.6 * kGiB;
  EXPECT_FALSE(speaks(m, "rounding"));
  m.requested.peak = 9.4 * kGiB;
  EXPECT_TRUE(speaks(m, "rounding"));
}

TEST(Diagnosis, OutsideTheAllocator) {
  Measurement m = quiet();
  m.annotations = {{"outside_bytes", 1.9 * kGiB}};
  EXPECT_FALSE(speaks(m, "outside-allocator"));
  m.annotations = {{"outside_bytes", 4 * kGiB}};
  EXPECT_TRUE(speaks(m, "outside-allocator"));
}

TEST(Diagnosis, GrowthNamesTheSizes) {
  std::vector<Measurement> dumps(3, quiet());
  for (size_t i = 0; i < dumps.size(); ++i) {
    dumps[i].process_id = 7;
    dumps[i].time_seconds = 100 - static_cast<int64_t>(i);  // given in the wrong order
    dumps[i].allocated.current = (10 - 0.5 * static_cast<double>(i)) * kGiB;
    dumps[i].blocks.assign(5 - i, 4096.0);
  }
  const std::vector<Finding> findings = diagnose(dumps, nullptr);
  ASSERT_NE(found(findings, "growth"), nullptr);
  EXPECT_NE(found(findings, "growth")->evidence.find("2 more of 4096 bytes"), std::string::npos)
      << found(findings, "growth")->evidence;

  std::vector<Measurement> once = dumps;
  once[0].allocated.current = once[1].allocated.current;
  EXPECT_EQ(found(diagnose(once, nullptr), "growth"), nullptr) << "it stopped growing";
  std::vector<Measurement> ranks = dumps;
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i].process_id = static_cast<int64_t>(i);
  EXPECT_EQ(found(diagnose(ranks, nullptr), "growth"), nullptr) << "three processes, not one";
  EXPECT_EQ(found(diagnose({dumps[0], dumps[1]}, nullptr), "growth"), nullptr) << "two are no trend";
}

TEST_F(WithRun, MaterialisedAttention) {
  Measurement m = of_peak(40 * kGiB);
  m.blocks.assign(8, 2 * kScores);
  const std::vector<Finding> findings = diagnosed({m}, keys());
  ASSERT_NE(found(findings, "materialised-attention"), nullptr);
  EXPECT_EQ(found(findings, "materialised-attention")->saved_bytes, 8 * 2 * kScores);
  m.blocks.assign(2, 2 * kScores);
  EXPECT_FALSE(speaks(m, keys(), "materialised-attention")) << "one layer at work";
  m.blocks.assign(8, 2.2 * kScores);
  EXPECT_FALSE(speaks(m, keys(), "materialised-attention")) << "another size";
}

TEST_F(WithRun, Activations) {
  const TrainingRun run = test::must_read(keys());
  const double steady = test::must_estimate(run).peak().steady_bytes;
  EXPECT_TRUE(speaks(of_peak(2.2 * steady), keys(), "activations"));
  EXPECT_FALSE(speaks(of_peak(1.8 * steady), keys(), "activations"));
  EXPECT_FALSE(speaks(of_peak(3 * steady), keys({{"train.recompute", "full"}}), "activations"))
      << "already recomputed";
}

TEST_F(WithRun, Loss) {
  Measurement m = of_peak(40 * kGiB);
  m.blocks = {2 * kLogits, 4 * kLogits};
  EXPECT_TRUE(speaks(m, keys(), "loss"));
  m.blocks = {2 * kLogits};
  EXPECT_FALSE(speaks(m, keys(), "loss")) << "a twentieth of the peak";
}

TEST_F(WithRun, ShardingUnits) {
  const RunKeys sharded = keys({{"parallel.zero", "3"}, {"parallel.gpus", "8"}});
  Measurement m = of_peak(3 * kGiB);
  constexpr double kLayer = 2.0 * (3072 * 128 * (24 + 16) + 24 * 128 * 3072 + 3 * 3072 * 8192 + 2 * 3072);
  m.blocks.assign(5, kLayer);
  EXPECT_TRUE(speaks(m, sharded, "sharding-units"));
  m.blocks.assign(2, kLayer);
  EXPECT_FALSE(speaks(m, sharded, "sharding-units")) << "one at work, one prefetched";
  m.blocks.assign(5, kLayer);
  EXPECT_FALSE(speaks(m, keys(), "sharding-units")) << "nothing is gathered";
}

TEST_F(WithRun, ExpertImbalance) {
  const RunKeys experts = keys({{"model.model_type", "mixtral"},
                                {"model.num_local_experts", "8"},
                                {"parallel.gpus", "8"},
                                {"parallel.expert", "8"}});
  const double steady = test::must_estimate(test::must_read(experts)).peak().steady_bytes;
  std::vector<Measurement> ranks(4, of_peak(steady + 10 * kGiB));
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i].rank = static_cast<int64_t>(i);
  EXPECT_EQ(found(diagnosed(ranks, experts), "expert-imbalance"), nullptr);
  ranks[2].allocated.peak = steady + 20 * kGiB;
  ranks[2].source = "busy.json";
  const std::vector<Finding> findings = diagnosed(ranks, experts);
  ASSERT_NE(found(findings, "expert-imbalance"), nullptr);
  EXPECT_EQ(found(findings, "expert-imbalance")->source, "busy.json");
  EXPECT_EQ(found(diagnosed(ranks, keys()), "expert-imbalance"), nullptr) << "a dense model";
}

TEST_F(WithRun, TheLargestSavingComesFirst) {
  Measurement m = of_peak(40 * kGiB);
  m.requested.peak = 30 * kGiB;
  m.blocks.assign(8, 2 * kScores);
  const std::vector<Finding> findings = diagnosed({m}, keys());
  ASSERT_GE(findings.size(), 2u);
  EXPECT_TRUE(std::is_sorted(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return a.saved_bytes > b.saved_bytes;
  }));
}

TEST(Account, SumsToWhatIsReserved) {
  Measurement m = quiet();
  m.requested.current = 5 * kGiB;
  m.allocated.current = 6 * kGiB;
  m.active.current = 7 * kGiB;
  m.reserved.current = 12 * kGiB;
  m.cached_free_bytes = 3 * kGiB;
  const Account parts = account(m);
  EXPECT_EQ(parts.inactive_split, 2 * kGiB);
  EXPECT_EQ(parts.requested + parts.rounding + parts.pending + parts.inactive_split + parts.cached_free,
            parts.reserved);
}

}  // namespace
}  // namespace spillway::estimator
