// Packing goes on only where it pays: by ratio, by the disk's speed, or under a bound on what is written.
#include "offload/spill/packer.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/support/sizes.h"
#include "tests/support/spilling.h"
#include "tests/support/weights.h"

namespace spillway::test {
namespace {

constexpr double kSlowDisk = 1e-9;  // bytes per ns
constexpr double kFastDisk = 1e9;
constexpr PoolId kWeights{9, 1};

// Numbers of 4 bytes that say little: tokens, say.
Bytes tokens(size_t size) {
  Bytes bytes = random_bytes(size, 11);
  for (size_t i = 0; i < size; ++i) {
    if (i % 4 != 0) bytes[i] = std::byte{0};
  }
  return bytes;
}

TEST(Packer, FindsTheWidthOfNumbers) {
  struct Case {
    Bytes in;
    size_t width;
    double ratio;
  };
  for (const Case& each : {Case{weights(kPieceBytes), 2, 1.3}, Case{tokens(kPieceBytes), 4, 3.5}}) {
    Packer packer(Codec::kZstd);
    Bytes out(each.in.size());
    const auto packed = packer.pack(each.in, out, kSlowDisk);
    ASSERT_TRUE(packed.has_value());
    EXPECT_EQ(packed->packing.width, each.width);
    EXPECT_GT(static_cast<double>(each.in.size()) / static_cast<double>(packed->bytes), each.ratio);
  }
}

TEST(Packer, WhatCannotBePackedIsTriedEverMoreRarely) {
  Packer packer(Codec::kLz4);
  const Bytes in = random_bytes(kPieceBytes, 7);
  Bytes out(in.size());
  for (int i = 0; i < 400; ++i) EXPECT_FALSE(packer.pack(in, out, kSlowDisk).has_value());
  EXPECT_LT(packer.trials(), 14u);
  // And not given up for good.
  const Bytes zeros(kPieceBytes);
  int pieces = 0;
  while (!packer.pack(zeros, out, kSlowDisk).has_value()) ASSERT_LT(++pieces, 70);
  EXPECT_TRUE(packer.pack(zeros, out, kSlowDisk).has_value());
}

TEST(Packer, OnlyWhatIsFasterThanTheDiskPays) {
  const Bytes in = weights(kPieceBytes);
  Bytes out(in.size());
  EXPECT_FALSE(Packer(Codec::kZstd).pack(in, out, kFastDisk).has_value());
  EXPECT_TRUE(Packer(Codec::kZstd).pack(in, out, 0).has_value()) << "fewer bytes are what is wanted";
  EXPECT_FALSE(Packer(Codec::kNone).pack(in, out, 0).has_value());
}

TEST(Packer, WhatPaysIsPackedAndComesBackWhole) {
  for (const Codec codec : {Codec::kLz4, Codec::kZstd}) {
    Folder directory;
    DiskTierOptions options = disk_options(directory.path());
    options.write_bytes_per_s = 1;  // so slow that to pack pays
    Tiers tiers("capacity:256MiB,completion:late", options);
    const std::unique_ptr<Arena> arena = tiers.device.arena();
    TestRegion region(tiers, *arena, kWeights);
    Packer packer(codec);
    region.write(region.allocate(33 * kMiB + 700), TestRegion::kPackable + 3);
    region.write(region.allocate(kMiB), TestRegion::kPackable);
    region.write(region.allocate(24 * kMiB), 9);  // cannot be packed
    for (int i = 0; i < 2; ++i) {
      SPW_EXPECT_OK(region.evict(i == 0 ? SpillTo::kDisk : SpillTo::kHost, &packer));
      if (i > 0) SPW_EXPECT_OK(region.write_down());
      SPW_EXPECT_OK(region.restore());
      EXPECT_TRUE(region.all_intact());
    }
    const DiskCounters counters = tiers.disk.counters();
    EXPECT_GT(counters.saved_bytes, 12 * kMiB);
    EXPECT_EQ(counters.mismatches, 0u);
    EXPECT_EQ(counters.blocks_bytes, 0u);
    EXPECT_EQ(tiers.device.reports(), "");
  }
}

TEST(Packer, OnAFastDiskNothingIsPacked) {
  Folder directory;
  DiskTierOptions options = disk_options(directory.path());
  options.write_bytes_per_s = 1e15;
  Tiers tiers("capacity:256MiB,completion:late", options);
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion region(tiers, *arena, kWeights);
  Packer packer(Codec::kLz4);
  region.write(region.allocate(40 * kMiB), TestRegion::kPackable + 3);
  SPW_EXPECT_OK(region.evict(SpillTo::kDisk, &packer));
  EXPECT_EQ(tiers.disk.counters().saved_bytes, 0u);
  EXPECT_LT(packer.trials(), 10u) << "what does not pay is tried ever more rarely";
  SPW_EXPECT_OK(region.restore());
  EXPECT_TRUE(region.all_intact());
}

// A bound on writes counts what is written, and fewer bytes pay whatever the disk's speed is.
TEST(Packer, UnderABoundOnWritesPackingGoesFurther) {
  Folder directory;
  DiskTierOptions options = disk_options(directory.path());
  options.write_bytes_per_s = 1e15;
  options.daily_write_bytes = 60 * kMiB;
  Tiers tiers("capacity:256MiB,completion:late", options);
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion region(tiers, *arena, kWeights);
  Packer packer(Codec::kZstd);
  region.write(region.allocate(20 * kMiB), TestRegion::kPackable + 3);
  for (int i = 0; i < 4; ++i) {
    SPW_EXPECT_OK(region.evict(SpillTo::kDisk, &packer));
    SPW_EXPECT_OK(region.restore());
  }
  EXPECT_TRUE(region.all_intact());
}

}  // namespace
}  // namespace spillway::test
