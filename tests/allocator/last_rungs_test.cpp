// The rungs behind the arena's own: in which order they are asked and for how much, that memory they give
// serves the request safely, and that none of them can harm it. Each test uses one that really gives memory.
#include "allocator/last_rungs.h"

#include <atomic>
#include <stdexcept>
#include <thread>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// Holds blocks of one stream and frees them when asked: a tier that keeps what it could drop.
class Hoard {
 public:
  Hoard(const Device& device, Arena& arena, CUstream stream)
      : device_(device), arena_(arena), stream_(stream) {}
  void fill(size_t blocks, size_t bytes) {
    for (size_t i = 0; i < blocks; ++i) {
      blocks_.push_back(must_allocate(arena_, bytes, stream_));
      device_.touch(stream_, blocks_.back(), bytes);
    }
    bytes_ = bytes;
  }
  uint64_t give(uint64_t bytes) {
    asked.push_back(bytes);
    uint64_t given = 0;
    while (given < bytes && !blocks_.empty()) {
      SPW_EXPECT_OK(Arena::free(blocks_.back()));
      blocks_.pop_back();
      given += bytes_;
    }
    return given;
  }
  size_t blocks() const { return blocks_.size(); }
  std::vector<uint64_t> asked;

 private:
  const Device& device_;
  Arena& arena_;
  const CUstream stream_;
  std::vector<void*> blocks_;
  size_t bytes_ = 0;
};

// Pinned memory of the host, a block each.
struct HostTier {
  static std::shared_ptr<const HostPlacement> placement(const Device& device) {
    auto placement = std::make_shared<HostPlacement>();
    placement->place = [driver = device.driver](uint64_t bytes, CUstream) {
      void* block = nullptr;
      const CUresult result = driver->cuMemHostAlloc(&block, bytes, CU_MEMHOSTALLOC_DEVICEMAP);
      return result == CUDA_SUCCESS ? block : nullptr;
    };
    placement->release = [driver = device.driver](void* block, const std::vector<CUstream>& streams) {
      for (CUstream stream : streams) EXPECT_EQ(driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
      EXPECT_EQ(driver->cuMemFreeHost(block), CUDA_SUCCESS);
    };
    return placement;
  }
};

class LastRungsOf : public testing::Test {
 protected:
  explicit LastRungsOf(const char* configuration = "capacity:1GiB,completion:run-ahead")
      : device_(configuration) {}
  ~LastRungsOf() override {
    SPW_EXPECT_OK(arena_->validate());
    device_.driver->cuCtxSynchronize();
    EXPECT_EQ(device_.reports(), "");
  }
  static ArenaOptions options() {
    ArenaOptions options;
    options.limit_bytes = 64 * kMiB;
    return options;
  }
  void add(Rung rung, Hoard& hoard) {
    arena_->last_rungs().add(rung, [&hoard](uint64_t bytes) { return hoard.give(bytes); });
  }
  Status allocate(size_t bytes) {
    void* block = nullptr;
    Status status = arena_->allocate(bytes, stream_, &block);
    if (block != nullptr) device_.touch(stream_, block, bytes);
    return status;
  }

  Device device_;
  std::unique_ptr<Arena> arena_ = device_.arena(options());
  const CUstream stream_ = device_.stream();
  const CUstream other_ = device_.stream();
};

TEST_F(LastRungsOf, AnEvictionGivesWhatIsMissingAndNoMore) {
  Hoard cold(device_, *arena_, other_);
  Hoard cache(device_, *arena_, other_);
  cold.fill(6, 8 * kMiB);
  cache.fill(1, 8 * kMiB);
  add(Rung::kCallback, cache);
  add(Rung::kEvict, cold);
  SPW_EXPECT_OK(allocate(20 * kMiB));
  EXPECT_EQ(cold.asked, std::vector<uint64_t>{12 * kMiB});
  EXPECT_EQ(cold.blocks(), 4u);
  EXPECT_TRUE(cache.asked.empty());
  const DeviceStats stats = arena_->stats();
  EXPECT_EQ(stats.rungs.evict.hits, 1);
  EXPECT_GT(stats.rungs.evict.time_ns, 0);
  EXPECT_EQ(stats.rungs.callback.hits, 0);
  EXPECT_EQ(stats.num_ooms, 0);
  EXPECT_EQ(stats.num_alloc_retries, 1);
}

TEST_F(LastRungsOf, CallbacksAreAskedAfterEvictionsAndPlacementComesLast) {
  Hoard cold(device_, *arena_, other_);
  Hoard cache(device_, *arena_, other_);
  cold.fill(1, 8 * kMiB);
  cache.fill(7, 8 * kMiB);
  add(Rung::kCallback, cache);
  add(Rung::kEvict, cold);
  arena_->last_rungs().set_placement(HostTier::placement(device_));
  SPW_EXPECT_OK(allocate(32 * kMiB));
  // What the one gave is not asked of the other again.
  EXPECT_EQ(cold.asked, (std::vector<uint64_t>{32 * kMiB, 24 * kMiB}));
  EXPECT_EQ(cache.asked, std::vector<uint64_t>{24 * kMiB});
  EXPECT_EQ(arena_->stats().host_placed_blocks, 0);
  SPW_EXPECT_OK(allocate(60 * kMiB));
  EXPECT_EQ(cache.blocks(), 0u);
  const DeviceStats stats = arena_->stats();
  EXPECT_EQ(stats.rungs.host_placement.hits, 1);
  EXPECT_EQ(stats.host_placed_bytes, static_cast<int64_t>(60 * kMiB));
  EXPECT_LE(stats.reserved_bytes.all.current, static_cast<int64_t>(64 * kMiB));
  EXPECT_EQ(stats.num_ooms, 0);
}

TEST_F(LastRungsOf, OneThatGivesNothingThrowsOrLiesCostsAnErrorAndNothingElse) {
  SPW_EXPECT_OK(allocate(60 * kMiB));
  int liar_calls = 0;
  arena_->last_rungs().add(Rung::kEvict, [](uint64_t) -> uint64_t { return 0; });
  arena_->last_rungs().add(Rung::kEvict, [](uint64_t) -> uint64_t { throw std::runtime_error("broken"); });
  arena_->last_rungs().add(Rung::kCallback, [&](uint64_t bytes) {
    ++liar_calls;
    return bytes;
  });
  const Status status = allocate(8 * kMiB);
  EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(status.text().find("evict 0 ("), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("callback 14 ("), std::string::npos) << status.text();
  EXPECT_EQ(liar_calls, LastRungs::kMostRounds - 2);
  EXPECT_EQ(arena_->stats().num_ooms, 1);
  SPW_EXPECT_OK(allocate(4 * kMiB));
}

TEST_F(LastRungsOf, ACallMayFreeTrimAndAllocateAndAsksNobodyAgain) {
  void* held = must_allocate(*arena_, 40 * kMiB, stream_);
  int calls = 0;
  arena_->last_rungs().add(Rung::kCallback, [&](uint64_t) -> uint64_t {
    ++calls;
    void* block = nullptr;
    EXPECT_EQ(arena_->allocate(50 * kMiB, stream_, &block).code(), SPW_ERROR_OUT_OF_MEMORY);
    if (held == nullptr) return 0;
    SPW_EXPECT_OK(arena_->allocate(2 * kMiB, stream_, &block));
    SPW_EXPECT_OK(Arena::free(block));
    SPW_EXPECT_OK(Arena::free(std::exchange(held, nullptr)));
    SPW_EXPECT_OK(arena_->trim());
    return 40 * kMiB;
  });
  arena_->last_rungs().set_placement(HostTier::placement(device_));
  SPW_EXPECT_OK(allocate(50 * kMiB));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(arena_->stats().host_placed_blocks, 0);
}

TEST_F(LastRungsOf, ARemovedOneIsNotCalledAndItsLastCallIsOver) {
  SPW_EXPECT_OK(allocate(60 * kMiB));
  std::atomic<bool> inside{false};
  std::atomic<bool> over{false};
  const auto id = arena_->last_rungs().add(Rung::kCallback, [&](uint64_t) -> uint64_t {
    inside = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    over = true;
    return 0;
  });
  std::thread asker([&] { EXPECT_EQ(allocate(8 * kMiB).code(), SPW_ERROR_OUT_OF_MEMORY); });
  while (!inside) std::this_thread::yield();
  arena_->last_rungs().remove(id);
  EXPECT_TRUE(over);
  asker.join();
  inside = false;
  EXPECT_EQ(allocate(8 * kMiB).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(inside);
}

TEST_F(LastRungsOf, OneMayRemoveItself) {
  SPW_EXPECT_OK(allocate(60 * kMiB));
  int calls = 0;
  LastRungs::Id id = 0;
  id = arena_->last_rungs().add(Rung::kCallback, [&](uint64_t bytes) {
    ++calls;
    arena_->last_rungs().remove(id);
    return bytes;
  });
  EXPECT_EQ(allocate(8 * kMiB).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls, 1);
}

TEST_F(LastRungsOf, AStreamUnderCaptureAsksNobody) {
  Hoard cache(device_, *arena_, other_);
  cache.fill(7, 8 * kMiB);
  add(Rung::kCallback, cache);
  arena_->last_rungs().set_placement(HostTier::placement(device_));
  device_.begin_capture(stream_);
  void* block = nullptr;
  EXPECT_EQ(arena_->allocate(16 * kMiB, stream_, &block).code(), SPW_ERROR_OUT_OF_MEMORY);
  device_.discard_capture(stream_);
  EXPECT_TRUE(cache.asked.empty());
  SPW_EXPECT_OK(allocate(16 * kMiB));
}

TEST_F(LastRungsOf, HostBlocksAreUsedRecordedFreedAndCountedApart) {
  SPW_EXPECT_OK(allocate(60 * kMiB));
  arena_->last_rungs().set_placement(HostTier::placement(device_));
  const DeviceStats before = arena_->stats();
  std::vector<void*> blocks;
  for (const size_t bytes : {size_t{700}, 8 * kMiB, 100 * kMiB}) {
    blocks.push_back(must_allocate(*arena_, bytes, stream_));
    device_.touch(stream_, blocks.back(), bytes);
    device_.order(stream_, other_);
    device_.touch(other_, blocks.back(), bytes);
    SPW_EXPECT_OK(Arena::record_stream(blocks.back(), other_));
  }
  // A slab still has room on the device.
  DeviceStats stats = arena_->stats();
  EXPECT_EQ(stats.host_placed_blocks, 2);
  EXPECT_EQ(stats.host_placed_bytes, static_cast<int64_t>(108 * kMiB));
  EXPECT_EQ(stats.allocated_bytes.large_pool.current, before.allocated_bytes.large_pool.current);
  EXPECT_LE(stats.reserved_bytes.all.current, static_cast<int64_t>(64 * kMiB));
  void* inside = static_cast<char*>(blocks[1]) + 512;
  EXPECT_EQ(Arena::free(inside).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(Arena::record_stream(inside, other_).code(), SPW_ERROR_INVALID_POINTER);
  SPW_EXPECT_OK(Arena::quarantine(blocks[1]));
  EXPECT_EQ(Arena::free(blocks[1]).code(), SPW_ERROR_INVALID_POINTER);
  SPW_EXPECT_OK(Arena::release_quarantined(blocks[1]));
  EXPECT_EQ(Arena::release_quarantined(blocks[1]).code(), SPW_ERROR_INVALID_POINTER);
  SPW_EXPECT_OK(Arena::free(blocks[0]));
  SPW_EXPECT_OK(Arena::free(blocks[2]));
  EXPECT_EQ(Arena::free(blocks[2]).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(arena_->stats().host_placed_blocks, 0);
  EXPECT_EQ(arena_->stats().host_placed_bytes, 0);
}

TEST_F(LastRungsOf, APlacementThatFailsIsOutOfMemory) {
  if (!device_.simulated()) GTEST_SKIP() << "faults are injected into the simulated driver";
  SPW_EXPECT_OK(allocate(60 * kMiB));
  arena_->last_rungs().set_placement(HostTier::placement(device_));
  device_.inject_fault("cuMemHostAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allocate(8 * kMiB).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(arena_->stats().host_placed_blocks, 0);
  EXPECT_EQ(arena_->stats().rungs.host_placement.hits, 0);
  SPW_EXPECT_OK(allocate(8 * kMiB));
  arena_->last_rungs().set_placement(nullptr);
  EXPECT_EQ(allocate(8 * kMiB).code(), SPW_ERROR_OUT_OF_MEMORY);
}

TEST_F(LastRungsOf, TheEndOfAnArenaGivesHostBlocksBack) {
  SPW_EXPECT_OK(allocate(60 * kMiB));
  arena_->last_rungs().set_placement(HostTier::placement(device_));
  void* block = must_allocate(*arena_, 8 * kMiB, stream_);
  arena_ = device_.arena(options());
  EXPECT_EQ(Arena::free(block).code(), SPW_ERROR_INVALID_POINTER);
}

TEST_F(LastRungsOf, SeveralThreadsMayAskAtATime) {
  std::atomic<int> calls{0};
  std::mutex mutex;
  std::vector<void*> held;
  for (int i = 0; i < 7; ++i) held.push_back(must_allocate(*arena_, 8 * kMiB, other_));
  arena_->last_rungs().add(Rung::kCallback, [&](uint64_t) -> uint64_t {
    ++calls;
    const std::lock_guard lock(mutex);
    if (held.empty()) return 0;
    SPW_EXPECT_OK(Arena::free(held.back()));
    held.pop_back();
    return 8 * kMiB;
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, stream = device_.stream()] {
      device_.driver->cuCtxSetCurrent(device_.context);
      for (int pass = 0; pass < 20; ++pass) {
        void* block = nullptr;
        SPW_EXPECT_OK(arena_->allocate(14 * kMiB, stream, &block));
        device_.touch(stream, block, 14 * kMiB);
        SPW_EXPECT_OK(Arena::free(block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(calls, 0);
  for (void* block : held) SPW_EXPECT_OK(Arena::free(block));
}

}  // namespace
}  // namespace spillway::test
