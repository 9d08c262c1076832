// Shows where offloaded bytes lie, what stays on the device, and how long a step moves them.
#include <gtest/gtest.h>

#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

constexpr double kParameters = 3212749824;
constexpr double kTable = 128256.0 * 3072;

RankClass rank(const RunKeys& more) {
  return must_estimate(must_read(with(llama32_3b(), more))).peak();
}

double bytes_of(const Buckets& buckets, std::string_view name) {
  for (const Bucket& bucket : buckets) {
    if (bucket.name == name) return bucket.bytes;
  }
  return 0;
}

// ZeRO-Offload: 2 bytes a parameter stay, 16 are in host memory.
TEST(OffloadedOptimizer, LeavesTheWeights) {
  const RankClass host = rank({{"offload.optimizer", "host"}, {"overhead.workspace", "0"}});
  EXPECT_DOUBLE_EQ(host.steady_bytes, 2 * kParameters);
  EXPECT_DOUBLE_EQ(bytes_of(host.host, "optimizer states"), 12 * kParameters);
  EXPECT_DOUBLE_EQ(bytes_of(host.host, "gradients"), 4 * kParameters);
  EXPECT_TRUE(host.nvme.empty());
  EXPECT_DOUBLE_EQ(host.peak_step1_bytes, host.peak_bytes);
}

TEST(OffloadedOptimizer, OnNvmeNeedsPinnedBuffers) {
  const RankClass nvme =
      rank({{"offload.optimizer", "nvme"}, {"offload.buffers", "5"}, {"offload.buffer", "100MiB"}});
  EXPECT_DOUBLE_EQ(bytes_of(nvme.nvme, "optimizer states"), 12 * kParameters);
  EXPECT_DOUBLE_EQ(bytes_of(nvme.host, "staging buffers"), 5.0 * 100 * (1 << 20));
}

TEST(OffloadedWeights, LeaveTheUnitsInUse) {
  const RankClass host = rank({{"offload.parameters", "host"}, {"train.precision", "bf16"}});
  const double layer = (kParameters - kTable - 3072) / 28;
  EXPECT_DOUBLE_EQ(bytes_of(host.host, "weights"), 2 * kParameters);
  EXPECT_DOUBLE_EQ(bytes_of(host.peak, "gathered weights"), 2 * (kTable + 2 * layer));
  EXPECT_EQ(bytes_of(host.steady, "weights"), 0);
}

TEST(OffloadedActivations, LeaveTwoLayers) {
  const RankClass device = rank({});
  const RankClass host = rank({{"offload.activations", "host"}});
  const double all = bytes_of(host.host, "activations");
  EXPECT_DOUBLE_EQ(bytes_of(host.peak, "activations on their way"), all / 14);
  EXPECT_DOUBLE_EQ(device.peak_bytes - host.peak_bytes, all - all / 14);
  // With recomputation there are only the layers' inputs to move.
  const RankClass inputs = rank({{"offload.activations", "host"}, {"train.recompute", "full"}});
  EXPECT_DOUBLE_EQ(bytes_of(inputs.host, "activations"), 28 * 2.0 * 3072 * 4096);
}

// Weights up and gradients down at one rate, states read and written at the other; the slower hop counts, and
// compute hides its share.
TEST(StepTime, IsComputeAndWhatItDoesNotHide) {
  const RunKeys keys = {{"offload.optimizer", "nvme"},
                        {"offload.host_gb_per_second", "20"},
                        {"offload.nvme_gb_per_second", "5"},
                        {"offload.compute_seconds", "3"},
                        {"offload.overlap", "0.5"}};
  const StepTime time = rank(keys).time;
  EXPECT_DOUBLE_EQ(time.transfer_seconds, 2 * 12 * kParameters / 5e9);
  EXPECT_DOUBLE_EQ(time.exposed_seconds, time.transfer_seconds - 1.5);
  const StepTime host = rank(with(keys, {{"offload.optimizer", "host"}})).time;
  EXPECT_DOUBLE_EQ(host.transfer_seconds, 4 * kParameters / 20e9);
  EXPECT_EQ(host.exposed_seconds, 0);
}

TEST(StepTime, CountsEveryPassAndMicrobatch) {
  const RunKeys keys = {{"offload.parameters", "host"}, {"offload.host_gb_per_second", "1"}};
  const double once = rank(keys).time.transfer_seconds;
  EXPECT_DOUBLE_EQ(once, 2 * 2 * kParameters / 1e9);
  EXPECT_DOUBLE_EQ(rank(with(keys, {{"train.recompute", "full"}})).time.transfer_seconds, 1.5 * once);
  EXPECT_DOUBLE_EQ(rank(with(keys, {{"train.gradient_accumulation", "4"}})).time.transfer_seconds, 4 * once);
}

}  // namespace
}  // namespace spillway::estimator::test
