// Pools that leave the device and come back: when they may, and what counts meanwhile. This mover unmaps at
// once, so the race detector reports a move that did not wait for everything.
#include "tests/allocator/source.h"

namespace spillway::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr PoolId kPool{0, 7};

class MovesTest : public testing::Test {
 protected:
  MovesTest() {
    SPW_EXPECT_OK(arena_->retain_pool(kPool));
    SPW_EXPECT_OK(arena_->set_pool_source(kPool, source_.functions()));
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
    return arena_->move_pool_out(
        kPool, [&](const std::vector<SegmentMemory>& segments) { return source_.unmap(segments); });
  }
  Status back() {
    return arena_->bring_pool_back(
        kPool, [&](const std::vector<SegmentMemory>& segments) { return source_.map(segments); });
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
  Source source_{*device_.driver};
  std::unique_ptr<Arena> arena_ = device_.arena();
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
  EXPECT_EQ(stats().reserved_bytes.all.current, before.reserved_bytes.all.current);
  EXPECT_EQ(stats().allocated_bytes.all.current, before.allocated_bytes.all.current - 512);
  EXPECT_EQ(stats().allocation.all.current, 2);
  EXPECT_EQ(pool_bytes(), before.reserved_bytes.all.current - static_cast<int64_t>(6 * kMiB));
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
  ASSERT_EQ(device_.driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(out().code(), SPW_ERROR_INVALID_STATE);
  CUgraph graph = nullptr;
  EXPECT_EQ(device_.driver->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  device_.driver->cuGraphDestroy(graph);
  // One that the arena does not know of: whoever captures opens a pool first.
  const CUstream unknown = device_.stream();
  SPW_EXPECT_OK(arena_->begin_pool({0, 8}, nullptr));
  ASSERT_EQ(device_.driver->cuStreamBeginCapture(unknown, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(out().code(), SPW_ERROR_INVALID_STATE);
  EXPECT_EQ(device_.driver->cuStreamEndCapture(unknown, &graph), CUDA_SUCCESS);
  device_.driver->cuGraphDestroy(graph);
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
  const auto fails = [](const std::vector<SegmentMemory>&) { return Status::io("no"); };
  EXPECT_EQ(arena_->move_pool_out(kPool, fails).code(), SPW_ERROR_IO);
  EXPECT_EQ(stats().reserved_bytes.all.current, held);
  SPW_EXPECT_OK(out());
  EXPECT_EQ(arena_->bring_pool_back(kPool, fails).code(), SPW_ERROR_IO);
  EXPECT_EQ(stats().reserved_bytes.all.current, 0);
  expect_sound();
  SPW_EXPECT_OK(back());
  device_.touch(nullptr, block, 4 * kMiB);
  SPW_EXPECT_OK(Arena::free(block));
  expect_sound();
}

TEST_F(MovesTest, OnlyPoolsWithASourceMove) {
  SPW_EXPECT_OK(arena_->retain_pool({0, 9}));
  const auto never = [](const std::vector<SegmentMemory>&) { return Status::internal("called"); };
  EXPECT_EQ(arena_->move_pool_out({0, 9}, never).code(), SPW_ERROR_INVALID_STATE);
  EXPECT_EQ(arena_->bring_pool_back(kPool, never).code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(arena_->release_pool({0, 9}));
}

}  // namespace
}  // namespace spillway::test
