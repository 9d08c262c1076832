// Pools that leave the device and come back: when they may, which of their pages, and what counts meanwhile.
// Nothing is copied here; pages are unmapped at once, so the race detector reports a move that did not wait
// for everything.
#include <algorithm>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr PoolId kPool{0, 7};

class MovesTest : public testing::Test {
 protected:
  MovesTest() {
    SPW_EXPECT_OK(arena_->retain_pool(kPool));
    SPW_EXPECT_OK(
        arena_->make_pool_movable(kPool, [this](const PageRange& range) { given_up_bytes_ += range.bytes; }));
  }
  ~MovesTest() override { arena_.reset(); }

  void* allocate(size_t bytes, CUstream stream) {
    SPW_EXPECT_OK(arena_->begin_pool(kPool, nullptr));
    void* block = must_allocate(*arena_, bytes, stream);
    SPW_EXPECT_OK(arena_->end_pool(kPool));
    SPW_EXPECT_OK(arena_->release_pool(kPool));
    return block;
  }
  Status out() {
    return arena_->move_pool_out(kPool, [&](const std::vector<PageRange>& ranges) {
      copied_bytes_ = bytes_of(ranges);
      return Status();
    });
  }
  Status back() {
    return arena_->bring_pool_back(kPool, [&](const std::vector<PageRange>& ranges, bool*) {
      copied_bytes_ = bytes_of(ranges);
      return Status();
    });
  }
  static uint64_t bytes_of(const std::vector<PageRange>& ranges) {
    uint64_t bytes = 0;
    for (const PageRange& range : ranges) bytes += range.bytes;
    return bytes;
  }
  void expect_sound() {
    SPW_EXPECT_OK(arena_->validate());
    EXPECT_EQ(device_.reports(), "");
  }
  int64_t pool_bytes() const {
    for (const auto& [id, bytes] : arena_->pool_bytes()) {
      if (id == kPool) return bytes.current;
    }
    return -1;
  }
  DeviceStats stats() const { return arena_->stats(); }

  Device device_{"capacity:256MiB,completion:late"};
  std::unique_ptr<Arena> arena_ = device_.arena();
  uint64_t copied_bytes_ = 0;
  uint64_t given_up_bytes_ = 0;
};

TEST_F(MovesTest, NothingMovesBeforeAllWorkIsDone) {
  const CUstream owner = device_.stream();
  const CUstream other = device_.stream();
  void* block = allocate(4 * kMiB, owner);
  device_.touch(owner, block, 4 * kMiB);
  device_.order(owner, other);
  device_.touch(other, block, 4 * kMiB);  // no record_stream: the block lives
  SPW_EXPECT_OK(out());
  expect_sound();
  SPW_EXPECT_OK(back());
  device_.touch(owner, block, 4 * kMiB);
  expect_sound();
  SPW_EXPECT_OK(Arena::free(block));
}

TEST_F(MovesTest, WhatIsElsewhereCountsForNothing) {
  void* own = must_allocate(*arena_, 6 * kMiB, nullptr);
  void* block = allocate(30 * kMiB, nullptr);
  void* small = allocate(512, nullptr);
  const DeviceStats before = stats();
  SPW_EXPECT_OK(out());
  EXPECT_EQ(stats().reserved_bytes.all.current, static_cast<int64_t>(6 * kMiB));
  EXPECT_EQ(stats().allocated_bytes.all.current, static_cast<int64_t>(6 * kMiB));
  EXPECT_EQ(stats().allocation.all.current, 1);
  EXPECT_EQ(stats().allocation.small_pool.current, 0);
  EXPECT_EQ(stats().allocated_bytes.all.freed - before.allocated_bytes.all.freed,
            before.allocated_bytes.all.current - static_cast<int64_t>(6 * kMiB));
  for (const SegmentRow& row : arena_->segments()) EXPECT_EQ(row.pool_second, 0u);
  EXPECT_EQ(pool_bytes(), 0);
  SPW_EXPECT_OK(arena_->retain_pool(kPool));
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  SPW_EXPECT_OK(Arena::free(small));
  expect_sound();
  SPW_EXPECT_OK(back());
  // But for the page of the block that was freed meanwhile.
  const auto held = before.reserved_bytes.all.current - static_cast<int64_t>(2 * kMiB);
  EXPECT_EQ(stats().reserved_bytes.all.current, held);
  EXPECT_EQ(stats().allocated_bytes.all.current, before.allocated_bytes.all.current - 512);
  EXPECT_EQ(stats().allocation.all.current, 2);
  EXPECT_EQ(pool_bytes(), held - static_cast<int64_t>(6 * kMiB));
  const spw_stat& bytes = stats().allocated_bytes.all;
  EXPECT_EQ(bytes.allocated - bytes.freed, bytes.current);
  EXPECT_GE(bytes.peak, before.allocated_bytes.all.peak);
  expect_sound();
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(Arena::free(own));
  expect_sound();
}

TEST_F(MovesTest, ItsRoomIsOthers) {
  SPW_EXPECT_OK(arena_->set_limit(64 * kMiB));
  void* block = allocate(40 * kMiB, nullptr);
  SPW_EXPECT_OK(out());
  void* other = must_allocate(*arena_, 60 * kMiB, nullptr);
  EXPECT_EQ(back().code(), SPW_ERROR_OUT_OF_MEMORY);
  expect_sound();
  SPW_EXPECT_OK(Arena::free(other));
  SPW_EXPECT_OK(back());
  device_.touch(nullptr, block, 40 * kMiB);
  expect_sound();
  SPW_EXPECT_OK(Arena::free(block));
}

TEST_F(MovesTest, ACaptureGoesOn) {
  void* block = allocate(4 * kMiB, nullptr);
  const CUstream stream = device_.stream();
  void* used = must_allocate(*arena_, 512, stream);
  device_.begin_capture(stream);
  EXPECT_EQ(out().code(), SPW_ERROR_INVALID_STATE);
  device_.discard_capture(stream);
  // One that the arena does not know of: whoever captures opens a pool first.
  const CUstream unknown = device_.stream();
  SPW_EXPECT_OK(arena_->begin_pool({0, 8}, nullptr));
  device_.begin_capture(unknown);
  EXPECT_EQ(out().code(), SPW_ERROR_INVALID_STATE);
  device_.discard_capture(unknown);
  SPW_EXPECT_OK(arena_->end_pool({0, 8}));
  SPW_EXPECT_OK(arena_->release_pool({0, 8}));
  SPW_EXPECT_OK(out());
  SPW_EXPECT_OK(back());
  for (void* each : {block, used}) SPW_EXPECT_OK(Arena::free(each));
  expect_sound();
}

TEST_F(MovesTest, AMoveThatFailsChangesNothing) {
  void* block = allocate(4 * kMiB, nullptr);
  const int64_t held = stats().reserved_bytes.all.current;
  const auto fails = [](const std::vector<PageRange>&) { return Status::io("no"); };
  EXPECT_EQ(arena_->move_pool_out(kPool, fails).code(), SPW_ERROR_IO);
  EXPECT_EQ(stats().reserved_bytes.all.current, held);
  SPW_EXPECT_OK(out());
  const auto fails_back = [](const std::vector<PageRange>&, bool*) { return Status::io("no"); };
  EXPECT_EQ(arena_->bring_pool_back(kPool, fails_back).code(), SPW_ERROR_IO);
  EXPECT_EQ(stats().reserved_bytes.all.current, 0);
  expect_sound();
  SPW_EXPECT_OK(back());
  device_.touch(nullptr, block, 4 * kMiB);
  SPW_EXPECT_OK(Arena::free(block));
  expect_sound();
}

TEST_F(MovesTest, OnlyMovablePoolsMove) {
  SPW_EXPECT_OK(arena_->retain_pool({0, 9}));
  const auto never = [](const std::vector<PageRange>&) { return Status::internal("called"); };
  const auto never_back = [](const std::vector<PageRange>&, bool*) { return Status::internal("called"); };
  EXPECT_EQ(arena_->move_pool_out({0, 9}, never).code(), SPW_ERROR_INVALID_STATE);
  EXPECT_EQ(arena_->bring_pool_back(kPool, never_back).code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(arena_->release_pool({0, 9}));
}

TEST_F(MovesTest, OnlyPagesWithLiveBytesAreCopied) {
  void* large = allocate(50 * kMiB, nullptr);
  void* small = allocate(4096, nullptr);
  SPW_EXPECT_OK(Arena::free(large));
  SPW_EXPECT_OK(out());
  EXPECT_EQ(copied_bytes_, 2 * kMiB);
  expect_sound();
  SPW_EXPECT_OK(back());
  EXPECT_EQ(copied_bytes_, 2 * kMiB);
  EXPECT_EQ(stats().reserved_bytes.all.current, static_cast<int64_t>(2 * kMiB));
  device_.touch(nullptr, small, 4096);
  SPW_EXPECT_OK(Arena::free(small));
  expect_sound();
}

TEST_F(MovesTest, WhatIsFreeServesOthersAndGoesBackInTrims) {
  SPW_EXPECT_OK(arena_->set_limit(64 * kMiB));
  void* block = allocate(40 * kMiB, nullptr);
  device_.touch(nullptr, block, 40 * kMiB);
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(pool_bytes(), static_cast<int64_t>(40 * kMiB));
  void* other = must_allocate(*arena_, 50 * kMiB, device_.stream());
  EXPECT_LE(pool_bytes(), static_cast<int64_t>(14 * kMiB));
  device_.touch(nullptr, allocate(2 * kMiB, nullptr), 2 * kMiB);
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(pool_bytes(), static_cast<int64_t>(2 * kMiB));
  SPW_EXPECT_OK(Arena::free(other));
  expect_sound();
}

// vllm#48680: blocks that are replaced by slightly larger ones, one by one.
TEST_F(MovesTest, FreedBlocksJoin) {
  SPW_EXPECT_OK(arena_->set_limit(80 * kMiB));
  std::vector<void*> blocks;
  for (int i = 0; i < 7; ++i) blocks.push_back(allocate(10 * kMiB, nullptr));
  SPW_EXPECT_OK(Arena::free(blocks[0]));
  for (int i = 1; i < 7; ++i) {
    blocks[0] = allocate(11 * kMiB, nullptr);
    device_.touch(nullptr, blocks[0], 11 * kMiB);
    std::swap(blocks[0], blocks[static_cast<size_t>(i)]);
    SPW_EXPECT_OK(Arena::free(blocks[0]));
  }
  SPW_EXPECT_OK(out());
  expect_sound();
  SPW_EXPECT_OK(back());
  for (size_t i = 1; i < 7; ++i) {
    device_.touch(nullptr, blocks[i], 11 * kMiB);
    SPW_EXPECT_OK(Arena::free(blocks[i]));
  }
  expect_sound();
}

TEST_F(MovesTest, ViewsComeBackUnderWhatLives) {
  SPW_EXPECT_OK(arena_->set_limit(40 * kMiB));
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(allocate(4 * kMiB, nullptr));
  for (size_t i = 0; i < 10; i += 2) SPW_EXPECT_OK(Arena::free(blocks[i]));
  void* scattered = allocate(18 * kMiB, nullptr);
  ASSERT_NE(scattered, nullptr);
  for (int round = 0; round < 2; ++round) {
    SPW_EXPECT_OK(out());
    EXPECT_EQ(copied_bytes_, 38 * kMiB);
    SPW_EXPECT_OK(back());
    device_.touch(nullptr, scattered, 18 * kMiB);
    for (size_t i = 1; i < 10; i += 2) device_.touch(nullptr, blocks[i], 4 * kMiB);
    expect_sound();
  }
  SPW_EXPECT_OK(out());
  SPW_EXPECT_OK(Arena::free(scattered));
  SPW_EXPECT_OK(back());
  EXPECT_EQ(copied_bytes_, 20 * kMiB);
  for (size_t i = 1; i < 10; i += 2) SPW_EXPECT_OK(Arena::free(blocks[i]));
  expect_sound();
}

TEST_F(MovesTest, CopiesOfWhatIsFreedMeanwhileAreGivenUp) {
  void* kept = allocate(6 * kMiB, nullptr);
  void* freed = allocate(20 * kMiB, nullptr);
  SPW_EXPECT_OK(out());
  SPW_EXPECT_OK(Arena::free(freed));
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(given_up_bytes_, 20 * kMiB);
  expect_sound();
  SPW_EXPECT_OK(back());
  EXPECT_EQ(copied_bytes_, 6 * kMiB);
  SPW_EXPECT_OK(out());
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  expect_sound();
  SPW_EXPECT_OK(Arena::free(kept));
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(given_up_bytes_, 26 * kMiB);
  expect_sound();
  // The heap serves again.
  void* other = must_allocate(*arena_, 30 * kMiB, nullptr);
  device_.touch(nullptr, other, 30 * kMiB);
  SPW_EXPECT_OK(Arena::free(other));
  expect_sound();
}

TEST_F(MovesTest, OneThatWasReleasedComesBackWithNothingLeftOfIt) {
  void* block = allocate(20 * kMiB, nullptr);
  SPW_EXPECT_OK(out());
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(back());
  EXPECT_EQ(copied_bytes_, 0u);
  EXPECT_EQ(given_up_bytes_, 20 * kMiB);
  expect_sound();
  // A pool by that id can be another's.
  SPW_EXPECT_OK(arena_->retain_pool(kPool));
  SPW_EXPECT_OK(arena_->make_pool_movable(kPool, [](const PageRange&) {}));
  block = allocate(6 * kMiB, nullptr);
  SPW_EXPECT_OK(out());
  SPW_EXPECT_OK(back());
  EXPECT_EQ(copied_bytes_, 6 * kMiB);
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  expect_sound();
}

TEST_F(MovesTest, AGraphKeepsWhatThePoolCallsFree) {
  const CUstream stream = device_.stream();
  void* kept = allocate(2 * kMiB, stream);
  device_.begin_capture(stream);
  SPW_EXPECT_OK(arena_->begin_pool(kPool, nullptr));
  void* temporary = must_allocate(*arena_, 8 * kMiB, stream);
  device_.touch(stream, temporary, 8 * kMiB);
  SPW_EXPECT_OK(Arena::free(temporary));
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  const CUgraph graph = device_.end_capture(stream);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(device_.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(pool_bytes(), static_cast<int64_t>(10 * kMiB));
  SPW_EXPECT_OK(out());
  EXPECT_EQ(copied_bytes_, 10 * kMiB);
  SPW_EXPECT_OK(back());
  ASSERT_EQ(device_.graph_launch(exec, stream), CUDA_SUCCESS);
  expect_sound();
  ASSERT_EQ(device_.driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
  device_.graph_exec_destroy(exec);
  device_.driver->cuGraphDestroy(graph);
  // Without the graph's claim nothing is replayed any more.
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  SPW_EXPECT_OK(out());
  EXPECT_EQ(copied_bytes_, 2 * kMiB);
  SPW_EXPECT_OK(back());
  SPW_EXPECT_OK(Arena::free(kept));
  expect_sound();
}

}  // namespace
}  // namespace spillway::test
