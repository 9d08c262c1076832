// PyTorch's rules on sizes, one by one: what a block is larger by than the request it serves.
#include "estimator/torch_allocator.h"

#include <gtest/gtest.h>

namespace spillway::estimator {
namespace {

constexpr double kMiB = 1 << 20;

TEST(TorchAllocator, RoundsToLines) {
  TorchAllocator allocator;
  allocator.allocate(1);
  EXPECT_EQ(allocator.excess_bytes(), 511);
  allocator.allocate(513);
  EXPECT_EQ(allocator.excess_bytes(), 511 + 511);
}

// Six of 3 MiB fill 18 of a 20 MiB segment; a seventh block would need 3.
TEST(TorchAllocator, LeavesAShortRestWithTheBlock) {
  TorchAllocator allocator;
  for (int i = 0; i < 5; ++i) allocator.allocate(3 * kMiB);
  EXPECT_EQ(allocator.excess_bytes(), 0);
  allocator.allocate(4.5 * kMiB);  // of the 5 MiB that are left
  EXPECT_EQ(allocator.excess_bytes(), 0.5 * kMiB);
}

TEST(TorchAllocator, SplitsARestOfMoreThanAMebibyte) {
  TorchAllocator allocator;
  allocator.allocate(18 * kMiB + 512);  // a segment of its own, 20 MiB, 2 MiB less a line left
  EXPECT_EQ(allocator.excess_bytes(), 0);
  allocator.allocate(1.5 * kMiB);  // its rest is under 1 MiB
  EXPECT_EQ(allocator.excess_bytes(), 0.5 * kMiB - 512);
}

TEST(TorchAllocator, SplitsSmallBlocksToTheLine) {
  TorchAllocator allocator;
  allocator.allocate(kMiB);
  allocator.allocate(kMiB - 512);
  EXPECT_EQ(allocator.excess_bytes(), 0);
}

TEST(TorchAllocator, MergesFreeNeighbours) {
  TorchAllocator allocator;
  const auto first = allocator.allocate(8 * kMiB);
  const auto second = allocator.allocate(6 * kMiB);
  const auto third = allocator.allocate(6 * kMiB);
  allocator.free(first);
  allocator.free(third);
  allocator.free(second);
  EXPECT_EQ(allocator.excess_bytes(), 0);
  // The whole segment again: no other serves this without a rest of 0.5 MiB.
  allocator.allocate(19.5 * kMiB);
  EXPECT_EQ(allocator.excess_bytes(), 0.5 * kMiB);
}

TEST(TorchAllocator, TakesTheSmallestBlockThatServes) {
  TorchAllocator allocator;
  const auto large = allocator.allocate(40 * kMiB);
  const auto medium = allocator.allocate(12 * kMiB);
  allocator.free(large);
  allocator.free(medium);
  allocator.allocate(11.5 * kMiB);
  EXPECT_EQ(allocator.excess_bytes(), 0.5 * kMiB);
}

}  // namespace
}  // namespace spillway::estimator
