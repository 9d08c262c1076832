// Memory pinned ahead: it is there before it is asked for, no more of it than was said, and a refusal or a
// stop costs nothing but what is not pinned.
#include "offload/pinned_growth.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "driver/first_touch.h"
#include "driver/pinned_memory.h"
#include "tests/support/bytes.h"
#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

class PinnedGrowthTest : public testing::Test {
 protected:
  Device device_;
  PinnedArena arena_{*device_.driver, {256 * kMiB, nullptr, 4}};
  PinnedGrowth growth_{*device_.driver, device_.context, arena_};
};

TEST_F(PinnedGrowthTest, WhatIsAskedForIsPinnedAlready) {
  constexpr uint64_t kWanted = 160 * kMiB;
  SPW_EXPECT_OK(growth_.reach(kWanted));
  SPW_EXPECT_OK(growth_.wait());
  uint64_t taken = 0;
  for (const uint64_t bytes : {24 * kMiB, 5 * kMiB + 300, kMiB}) {
    while (arena_.take(bytes) != nullptr) taken += bytes;
  }
  EXPECT_LE(static_cast<double>(arena_.reserved_bytes()), 1.03 * static_cast<double>(taken));
  EXPECT_GE(arena_.reserved_bytes(), kWanted);
  SPW_EXPECT_OK(arena_.validate());
}

TEST_F(PinnedGrowthTest, WhatIsHeldAlreadyCounts) {
  ASSERT_TRUE(arena_.allocate(64 * kMiB).ok());
  SPW_EXPECT_OK(growth_.reach(64 * kMiB));
  SPW_EXPECT_OK(growth_.wait());
  EXPECT_EQ(arena_.reserved_bytes(), 64 * kMiB);
  SPW_EXPECT_OK(growth_.reach(80 * kMiB));
  SPW_EXPECT_OK(growth_.wait());
  EXPECT_EQ(arena_.reserved_bytes(), 80 * kMiB);
}

TEST_F(PinnedGrowthTest, TheLimitEndsItAndKeepsWhatIsPinned) {
  SPW_EXPECT_OK(growth_.reach(100 * kMiB));
  SPW_EXPECT_OK(growth_.wait());
  SPW_EXPECT_OK(growth_.reach(300 * kMiB));
  EXPECT_EQ(growth_.wait().code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(arena_.reserved_bytes(), 100 * kMiB) << "no chunk went to make room for another";
}

TEST_F(PinnedGrowthTest, ARefusedPinLowersTheLimitAndTheProgramGoesOn) {
  if (!device_.simulated()) GTEST_SKIP() << "faults are injected by the simulated driver";
  ASSERT_TRUE(arena_.allocate(8 * kMiB).ok());
  device_.inject_fault("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(growth_.reach(64 * kMiB));
  EXPECT_EQ(growth_.wait().code(), SPW_ERROR_OUT_OF_MEMORY);
  spw_pinned_stats stats{};
  arena_.add_stats(stats);
  EXPECT_EQ(stats.limit_bytes, static_cast<int64_t>(8 * kMiB));
  EXPECT_EQ(stats.refused_pins, 1);
  arena_.forget_refusals();
  EXPECT_TRUE(arena_.allocate(16 * kMiB).ok());
}

TEST_F(PinnedGrowthTest, AStopEndsTheThreadAndItCanBeginAgain) {
  for (int i = 0; i < 20; ++i) {
    SPW_EXPECT_OK(growth_.reach(200 * kMiB));
    growth_.stop();
    const uint64_t held = arena_.reserved_bytes();
    EXPECT_EQ(arena_.release_free(), held);
  }
}

TEST_F(PinnedGrowthTest, OthersAllocateMeanwhile) {
  SPW_EXPECT_OK(growth_.reach(128 * kMiB));
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) {
    Result<void*> block = arena_.allocate(8 * kMiB);
    ASSERT_TRUE(block.ok()) << block.status().text();
    blocks.push_back(block.value());
  }
  (void)growth_.wait();
  SPW_EXPECT_OK(arena_.validate());
  for (void* block : blocks) arena_.give_back(block, 8 * kMiB);
  SPW_EXPECT_OK(arena_.validate());
}

// A capture in the program must not notice that memory is pinned.
TEST_F(PinnedGrowthTest, ACaptureGoesOn) {
  const CUstream stream = device_.stream();
  device_.begin_capture(stream);
  SPW_EXPECT_OK(growth_.reach(32 * kMiB));
  SPW_EXPECT_OK(growth_.wait());
  device_.discard_capture(stream);
}

TEST(FirstTouch, EveryPageIsThereAndKeepsWhatWasWritten) {
  constexpr size_t kPage = 4096;
  constexpr size_t kBytes = 70 * kMiB + 3 * kPage;
  for (const unsigned threads : {1u, 3u, 64u}) {
    for (const int node : {kAnyNode, 0, 1000000}) {
      void* mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(mapped, MAP_FAILED);
      char* const memory = static_cast<char*>(mapped);
      constexpr size_t kWritten = 33 * kMiB;
      memory[kWritten] = 7;
      touch_first(memory, kBytes, threads, node);
      std::vector<unsigned char> present(kBytes / kPage);
      ASSERT_EQ(::mincore(memory, kBytes, present.data()), 0);
      EXPECT_TRUE(std::all_of(present.begin(), present.end(), [](unsigned char page) { return page & 1; }));
      EXPECT_TRUE(holds_only(memory, kWritten, 0));
      EXPECT_EQ(memory[kWritten], 7);
      EXPECT_TRUE(holds_only(memory + kWritten + 1, kBytes - kWritten - 1, 0));
      ::munmap(mapped, kBytes);
    }
  }
}

}  // namespace
}  // namespace spillway::test
