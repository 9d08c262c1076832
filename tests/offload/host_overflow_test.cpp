// Blocks in host memory that the device uses: placed within bounds, by whichever way the driver offers, and
// given back when, and only when, the work on their streams is done.
#include "offload/host_overflow.h"

#include <string>
#include <vector>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

class HostOverflowTest : public testing::Test {
 protected:
  // Nothing is complete before somebody waits for it.
  explicit HostOverflowTest(const std::string& host_vmm = "on")
      : device_("capacity:64MiB,completion:run-ahead,host_vmm:" + host_vmm),
        pinned_(*device_.driver, {}),
        arena_(device_.arena()),
        overflow_(HostOverflow::create(*device_.driver, *arena_, pinned_, {20 * kMiB, 4 * kMiB})),
        stream_(device_.stream()) {
    mark_ = reinterpret_cast<decltype(mark_)>(device_.driver->find("spwSimMark"));
    is_complete_ = reinterpret_cast<decltype(is_complete_)>(device_.driver->find("spwSimIsComplete"));
  }
  ~HostOverflowTest() override {
    EXPECT_EQ(device_.driver->cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(device_.reports(), "");
  }

  void* must_place(uint64_t bytes) {
    void* block = overflow_->place(bytes);
    EXPECT_NE(block, nullptr);
    return block;
  }
  // Enqueues work with the block; answers where it is in the stream.
  uint64_t use(void* block, uint64_t bytes, CUstream stream) {
    device_.touch(stream, block, bytes);
    return mark_(stream);
  }
  bool is_complete(uint64_t mark) const { return is_complete_(stream_, mark) != 0; }
  // Has what is done by now given back first.
  uint64_t held_bytes() {
    overflow_->release(must_place(4 * kMiB), {});
    return overflow_->held_bytes();
  }

  Device device_;
  PinnedArena pinned_;
  std::unique_ptr<Arena> arena_;
  std::shared_ptr<HostOverflow> overflow_;
  CUstream stream_;
  decltype(&spwSimMark) mark_ = nullptr;
  decltype(&spwSimIsComplete) is_complete_ = nullptr;
};

TEST_F(HostOverflowTest, OnlyWhatIsWithinTheBoundsIsPlaced) {
  EXPECT_EQ(overflow_->place(4 * kMiB - 1), nullptr) << "too small";
  EXPECT_EQ(overflow_->place(20 * kMiB + 1), nullptr) << "more than all";
  EXPECT_EQ(overflow_->held_bytes(), 0u);
  void* first = must_place(4 * kMiB);
  void* second = must_place(11 * kMiB);
  EXPECT_EQ(overflow_->held_bytes(), 16 * kMiB) << "whole pages";
  EXPECT_EQ(overflow_->place(5 * kMiB), nullptr) << "more than is left";
  void* third = must_place(4 * kMiB);
  EXPECT_EQ(overflow_->held_bytes(), 20 * kMiB);
  EXPECT_EQ(pinned_.reserved_bytes(), 0u) << "the driver's own host memory serves";
  (void)use(third, 4 * kMiB, stream_);
  for (void* block : {first, second}) overflow_->release(block, {});
  EXPECT_EQ(overflow_->held_bytes(), 4 * kMiB);
  overflow_->release(third, {stream_});
}

TEST_F(HostOverflowTest, AFreedBlockIsHeldUntilTheWorkOfAllItsStreamsIsDone) {
  const CUstream other = device_.stream();
  void* block = must_place(6 * kMiB);
  (void)use(block, 6 * kMiB, stream_);
  device_.order(stream_, other);
  (void)use(block, 6 * kMiB, other);
  overflow_->release(block, {stream_, other});
  EXPECT_EQ(overflow_->held_bytes(), 6 * kMiB);
  EXPECT_EQ(device_.driver->cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(held_bytes(), 6 * kMiB) << "of the other";
  EXPECT_EQ(device_.driver->cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(held_bytes(), 0u);
  EXPECT_EQ(device_.live_handles(), 0u);
}

TEST_F(HostOverflowTest, WithoutRoomWhatWasFreedFirstIsWaitedFor) {
  void* first = must_place(10 * kMiB);
  void* second = must_place(10 * kMiB);
  EXPECT_EQ(overflow_->place(10 * kMiB), nullptr) << "there is nothing to wait for";
  const uint64_t first_done = use(first, 10 * kMiB, stream_);
  overflow_->release(first, {stream_});
  const uint64_t second_done = use(second, 10 * kMiB, stream_);
  overflow_->release(second, {stream_});
  EXPECT_FALSE(is_complete(first_done));
  void* third = must_place(10 * kMiB);
  EXPECT_TRUE(is_complete(first_done));
  EXPECT_FALSE(is_complete(second_done));
  EXPECT_EQ(overflow_->held_bytes(), 20 * kMiB);
  overflow_->release(third, {});
}

TEST_F(HostOverflowTest, AWaitThatFailsIsARefusal) {
  void* block = must_place(12 * kMiB);
  (void)use(block, 12 * kMiB, stream_);
  overflow_->release(block, {stream_});
  device_.inject_fault("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(overflow_->place(12 * kMiB), nullptr);
  device_.clear_faults();
  overflow_->release(must_place(12 * kMiB), {});
}

// A graph that was captured may use it at any time.
TEST_F(HostOverflowTest, WhatIsFreedUnderCaptureStays) {
  void* block = must_place(12 * kMiB);
  device_.begin_capture(stream_);
  overflow_->release(block, {stream_});
  device_.discard_capture(stream_);
  EXPECT_EQ(device_.driver->cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(held_bytes(), 12 * kMiB);
  (void)use(block, 12 * kMiB, stream_);  // it is still there
}

TEST_F(HostOverflowTest, WhatCannotBeMarkedIsWaitedFor) {
  void* block = must_place(12 * kMiB);
  const uint64_t done = use(block, 12 * kMiB, stream_);
  device_.inject_fault("cuEventRecord", 1, CUDA_ERROR_UNKNOWN);
  overflow_->release(block, {stream_});
  EXPECT_TRUE(is_complete(done));
  EXPECT_EQ(overflow_->held_bytes(), 0u);
}

TEST_F(HostOverflowTest, WhatCannotBeWaitedForStays) {
  void* block = must_place(12 * kMiB);
  (void)use(block, 12 * kMiB, stream_);
  for (const char* call : {"cuEventRecord", "cuCtxSynchronize"})
    device_.inject_fault(call, 1, CUDA_ERROR_UNKNOWN);
  overflow_->release(block, {stream_});
  device_.clear_faults();
  EXPECT_EQ(held_bytes(), 12 * kMiB);
}

TEST_F(HostOverflowTest, WhatIsNotItsOwnIsNotReleased) {
  void* block = must_place(6 * kMiB);
  overflow_->release(nullptr, {});
  overflow_->release(static_cast<char*>(block) + kMiB, {});
  EXPECT_EQ(overflow_->held_bytes(), 6 * kMiB);
  for (int i = 0; i < 2; ++i) overflow_->release(block, {});
  EXPECT_EQ(overflow_->held_bytes(), 0u);
}

TEST_F(HostOverflowTest, WhereTheDriverRefusesPinnedMemoryServes) {
  for (const char* call : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    SCOPED_TRACE(call);
    device_.inject_fault(call, 1, CUDA_ERROR_UNKNOWN);
    void* block = must_place(6 * kMiB);
    EXPECT_GE(pinned_.reserved_bytes(), 6 * kMiB);
    EXPECT_EQ(device_.live_handles(), 0u);
    EXPECT_EQ(device_.live_mappings(), 0u);
    device_.clear_faults();
    (void)use(block, 6 * kMiB, stream_);
    EXPECT_EQ(device_.driver->cuStreamSynchronize(stream_), CUDA_SUCCESS);
    overflow_->release(block, {stream_});
    EXPECT_EQ(overflow_->held_bytes(), 0u);
    EXPECT_GE(pinned_.release_free(), 6 * kMiB);
    EXPECT_EQ(pinned_.reserved_bytes(), 0u);
  }
}

TEST_F(HostOverflowTest, TheArenasLastRungKeepsIt) {
  arena_->last_rungs().set_placement(overflow_->placement());
  const std::weak_ptr<HostOverflow> watched = overflow_;
  overflow_.reset();
  ASSERT_FALSE(watched.expired());
  void* on_device = must_allocate(*arena_, 56 * kMiB, stream_);
  void* placed = must_allocate(*arena_, 12 * kMiB, stream_);
  EXPECT_EQ(watched.lock()->held_bytes(), 12 * kMiB);
  (void)use(placed, 12 * kMiB, stream_);
  SPW_EXPECT_OK(Arena::free(placed));
  EXPECT_EQ(watched.lock()->held_bytes(), 12 * kMiB) << "its stream is at work";
  SPW_EXPECT_OK(Arena::free(on_device));
  arena_->last_rungs().set_placement(nullptr);
  EXPECT_TRUE(watched.expired());
}

// The last who had it may go while the device is at work.
TEST_F(HostOverflowTest, ItEndsWhenTheWorkOfFreedBlocksIsDone) {
  void* block = must_place(12 * kMiB);
  const uint64_t done = use(block, 12 * kMiB, stream_);
  overflow_->release(block, {stream_});
  overflow_.reset();
  EXPECT_TRUE(is_complete(done));
  EXPECT_EQ(device_.live_mappings(), 0u);
}

TEST_F(HostOverflowTest, WhatCannotBeWaitedForAtItsEndStaysMapped) {
  void* block = must_place(12 * kMiB);
  (void)use(block, 12 * kMiB, stream_);
  overflow_->release(block, {stream_});
  device_.inject_fault("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
  overflow_.reset();
  EXPECT_EQ(device_.live_mappings(), 1u);
}

class HostOverflowInPinnedMemoryTest : public HostOverflowTest {
 protected:
  HostOverflowInPinnedMemoryTest() : HostOverflowTest("off") {}
};

TEST_F(HostOverflowInPinnedMemoryTest, WhatIsRefusedHoldsNothing) {
  device_.inject_fault("cuMemHostGetDevicePointer", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(overflow_->place(6 * kMiB), nullptr);
  EXPECT_EQ(overflow_->held_bytes(), 0u);
  EXPECT_EQ(pinned_.release_free(), 6 * kMiB);
  pinned_.set_most_bytes(4 * kMiB);
  EXPECT_EQ(overflow_->place(6 * kMiB), nullptr);
  EXPECT_EQ(overflow_->held_bytes(), 0u);
  void* block = must_place(4 * kMiB);
  EXPECT_EQ(overflow_->held_bytes(), 4 * kMiB);
  (void)use(block, 4 * kMiB, stream_);
  overflow_->release(block, {stream_});
  EXPECT_EQ(pinned_.release_free(), 0u) << "its stream is at work";
  overflow_.reset();
  EXPECT_EQ(pinned_.release_free(), 4 * kMiB) << "and was waited for";
}

}  // namespace
}  // namespace spillway::test
