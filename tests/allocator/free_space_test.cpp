// The largest request that free memory serves: what is said is served, a byte more is refused, whatever came
// before. SPILLWAY_TEST_SEEDS and SPILLWAY_TEST_STEPS make it long; a failure names the seed.

#include "allocator/free_space.h"

#include "tests/support/random_program.h"

namespace spillway::test {
namespace {

TEST(LargestRequest, JoinsWholePagesAndTwoEnds) {
  const FreeSpace space{3, 700, 900, 0, 0, 512};
  EXPECT_EQ(largest_request_bytes(space, 0, {}), 3 * kPageBytes + 700 * kQuantumBytes);
  EXPECT_EQ(largest_request_bytes(space, 2, {}), 5 * kPageBytes + 700 * kQuantumBytes);
  EXPECT_EQ(largest_request_bytes(space, 2, {.share_edges = false}), 5 * kPageBytes);
  EXPECT_EQ(largest_request_bytes({0, 700, 900, 0, 0, 512}, 0, {}), 900 * kQuantumBytes);
  EXPECT_EQ(largest_request_bytes({0, 5000, 900, 0, 0, 512}, 0, {.share_edges = false}),
            kPageBytes - kQuantumBytes);
}

TEST(LargestRequest, WithoutViewsTakesWhatLiesInARow) {
  const FreeSpace space{3, 700, 900, 6000, 1, 512};
  EXPECT_EQ(largest_request_bytes(space, 0, {.views = false}), 6000 * kQuantumBytes);
  EXPECT_EQ(largest_request_bytes(space, 0, {.views = false, .share_edges = false}), kPageBytes);
}

TEST(LargestRequest, TakesASlotWhereNothingElseIsLeft) {
  EXPECT_EQ(largest_request_bytes({0, 0, 20, 0, 0, 3072}, 0, {.small_limit_bytes = 16384}), 3072u);
  EXPECT_EQ(largest_request_bytes({0, 0, 32, 0, 0, 3072}, 0, {.small_limit_bytes = 16384}), 3072u);
  EXPECT_EQ(largest_request_bytes({0, 0, 33, 0, 0, 3072}, 0, {.small_limit_bytes = 16384}),
            33 * kQuantumBytes);
  EXPECT_EQ(largest_request_bytes({0, 0, 32, 0, 0, 3072}, 0, {.small_limit_bytes = 8192}),
            32 * kQuantumBytes);
  EXPECT_EQ(largest_request_bytes({0, 0, 20, 0, 0, 3072}, 0, {.small_limit_bytes = 2000}), 2000u);
}

// Allocates and frees at random, on so many streams, and asks now and then.
class AskingProgram {
 public:
  AskingProgram(uint32_t seed, const ArenaOptions& options, int streams)
      : device_("capacity:256MiB,backing:none,seed:" + std::to_string(seed)),
        whole_pages_(options.use_vmm && !options.share_edges),
        dice_(seed) {
    arena_ = device_.arena(options);
    for (int i = 0; i < streams; ++i) streams_.push_back(device_.stream());
  }

  void run(uint64_t steps) {
    for (uint64_t step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      if (live_.empty() || dice_.one_in(2)) {
        allocate();
      } else {
        const auto block = live_.pick(dice_);
        SPW_EXPECT_OK(Arena::free(block->second.pointer()));
        live_.remove(block);
      }
      if (dice_.one_in(64)) SPW_EXPECT_OK(arena_->trim());
      if (dice_.one_in(8)) ask();
    }
    for (const auto& [va, block] : live_) SPW_EXPECT_OK(Arena::free(block.pointer()));
    live_.clear();
    ask();
    SPW_EXPECT_OK(arena_->validate());
  }

 private:
  void allocate() {
    // Blocks of a few pages, so that much of what is free is ends of pages.
    const size_t bytes = dice_.one_in(3) ? dice_.pick_size() : 1 + dice_.pick(5 * kMiB);
    const CUstream stream = dice_.pick(streams_);
    void* pointer = nullptr;
    if (!arena_->allocate(bytes, stream, &pointer).ok()) return;
    const auto va = reinterpret_cast<uint64_t>(pointer);
    EXPECT_TRUE(!whole_pages_ || bytes <= kPageBytes - kQuantumBytes || va % kPageBytes == 0)
        << "shares a page";
    live_.add({va, bytes, stream, stream});
  }

  // Tells whether some stream is served without new memory.
  bool serves(uint64_t bytes) {
    const int64_t allocs = arena_->stats().num_device_alloc;
    for (CUstream stream : streams_) {
      void* pointer = nullptr;
      if (!arena_->allocate(bytes, stream, &pointer).ok()) continue;
      SPW_EXPECT_OK(Arena::free(pointer));
      return arena_->stats().num_device_alloc == allocs;
    }
    return false;
  }

  void ask() {
    SPW_EXPECT_OK(arena_->set_limit(static_cast<uint64_t>(arena_->stats().reserved_bytes.all.current)));
    const auto largest = static_cast<uint64_t>(arena_->stats().largest_free_bytes);
    EXPECT_TRUE(largest == 0 || serves(largest)) << "of " << largest << " bytes";
    EXPECT_FALSE(serves(largest + 1)) << "beyond " << largest << " bytes";
    SPW_EXPECT_OK(arena_->set_limit(UINT64_MAX));
  }

  Device device_;
  std::unique_ptr<Arena> arena_;
  std::vector<CUstream> streams_;
  const bool whole_pages_;  // of blocks of a page and more
  Dice dice_;
  LiveBlocks live_;
};

void ask_at_random(const ArenaOptions& options, int streams) {
  for_each_seed(5, 2000, [&](uint32_t seed, uint64_t steps) {
    AskingProgram program(seed, options, streams);
    program.run(steps);
  });
}

TEST(LargestFreeBytes, AreServedAndNoMore) {
  ask_at_random({}, 1);
}

TEST(LargestFreeBytes, AreServedAndNoMoreWithPagesOfOtherStreams) {
  ask_at_random({}, 3);
}

TEST(LargestFreeBytes, AreServedAndNoMoreWithoutSharedEdges) {
  ask_at_random({.share_edges = false}, 2);
}

TEST(LargestFreeBytes, AreServedAndNoMoreWithNeither) {
  ask_at_random({.use_vmm = false, .share_edges = false}, 1);
}

TEST(LargestFreeBytes, AreServedAndNoMoreWithFewSlots) {
  ask_at_random({.small_limit_bytes = 2000}, 1);
}

TEST(LargestFreeBytes, AreServedAndNoMoreWithoutVmm) {
  ask_at_random({.use_vmm = false}, 1);
}

TEST(LargestFreeBytes, CountAnEndThatHoldsLessThanAPage) {
  Device device;
  const auto arena = device.arena();
  void* first = must_allocate(*arena, 300 << 10, nullptr);
  void* middle = must_allocate(*arena, 300 << 10, nullptr);
  void* last = must_allocate(*arena, 300 << 10, nullptr);
  SPW_EXPECT_OK(Arena::free(middle));
  EXPECT_EQ(arena->stats().largest_free_bytes, static_cast<int64_t>(kPageBytes) - (900 << 10));
  SPW_EXPECT_OK(Arena::free(first));
  SPW_EXPECT_OK(Arena::free(last));
  EXPECT_EQ(arena->stats().largest_free_bytes, static_cast<int64_t>(kPageBytes));
}

// A pool that is open has what is free in it to itself, and may borrow; the others borrow nothing of it.
TEST(LargestFreeBytes, OfAnOpenPoolAreForItsOwnRequests) {
  Device device;
  const auto arena = device.arena();
  void* outside = must_allocate(*arena, 4 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(outside));
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, nullptr));
  void* inside = must_allocate(*arena, 8 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(inside));
  EXPECT_EQ(arena->stats().largest_free_bytes, static_cast<int64_t>(12 * kMiB));
  SPW_EXPECT_OK(arena->set_limit(12 * kMiB));
  inside = must_allocate(*arena, 12 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(inside));
  EXPECT_EQ(arena->stats().largest_free_bytes, static_cast<int64_t>(12 * kMiB));
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
  EXPECT_EQ(arena->stats().largest_free_bytes, static_cast<int64_t>(12 * kMiB));
}

}  // namespace
}  // namespace spillway::test
