#include "estimator/verdict.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

TEST(Verdict, IsTightUnderATenth) {
  const GpuMemory gpu{"100", 100};
  EXPECT_EQ(verdict(90, gpu), Verdict::kFits);
  EXPECT_EQ(verdict(90.1, gpu), Verdict::kTight);
  EXPECT_EQ(verdict(100, gpu), Verdict::kTight);
  EXPECT_EQ(verdict(100.1, gpu), Verdict::kNo);
}

TEST(Mitigations, SaveWhatTheySay) {
  const RunKeys keys = with(llama32_3b(), {{"train.micro_batch", "2"}, {"train.sequence", "4096"}});
  const TrainingRun run = must_read(keys);
  const Estimate before = must_estimate(run);
  const std::vector<Mitigation> found = mitigations(run);
  const auto loss = std::find_if(found.begin(), found.end(), [](const Mitigation& change) {
    return change.change == "train.loss = fused-linear";
  });
  ASSERT_NE(loss, found.end());
  const Estimate after = must_estimate(must_read(with(keys, {{"train.loss", "fused-linear"}})));
  EXPECT_EQ(loss->saved_bytes, before.peak().peak_bytes - after.peak().peak_bytes);
  for (size_t i = 1; i < found.size(); ++i)
    EXPECT_GE(found[i - 1].saved_bytes * 1.08, found[i].saved_bytes) << found[i].change;
}

TEST(Mitigations, DoNotOfferWhatIsOn) {
  const TrainingRun run =
      must_read(with(llama32_3b(), {{"train.loss", "fused-linear"}, {"train.recompute", "full"}}));
  for (const Mitigation& change : mitigations(run)) {
    EXPECT_NE(change.change, "train.loss = fused-linear");
    EXPECT_NE(change.change, "train.recompute = full");
    EXPECT_NE(change.change, "parallel.zero = 1");
  }
}

}  // namespace
}  // namespace spillway::estimator::test
