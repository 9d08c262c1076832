#include "allocator/device_waits.h"

#include <memory>
#include <vector>

#include "tests/support/arena_parts.h"

namespace spillway::test {
namespace {

constexpr PoolId kPool{0, 6};

// Two heaps with memory, and work on the device that is done only when the host waits for it.
class DeviceWaitsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!made.device.simulated()) GTEST_SKIP() << "needs work that waits to be done";
  }
  // Uses a block and frees it; answers the epoch of that.
  uint64_t use(Heap& heap) {
    if (made.owned(heap) == 0) made.give(heap, 2);
    CachedRange& block = made.allocate(heap, 1);
    made.touch(heap.key.stream, block);
    made.free(block);
    const Lock lock(heap.mutex);
    return heap.timeline.epoch();
  }
  bool is_complete(Heap& heap, uint64_t epoch) {
    const Lock lock(heap.mutex);
    return heap.timeline.is_complete(epoch);
  }
  bool is_idle(CUstream stream) const { return made.device.driver->cuStreamQuery(stream) == CUDA_SUCCESS; }
  void open_for_capture() {
    made.open_pools.open(std::make_shared<OpenPool>(PoolId{9, 9}, [](CUstream) { return false; }));
  }

  AllParts made{"capacity:256MiB,completion:run-ahead"};
  DeviceWaits& waits = made.waits;
  const CUstream one = made.device.stream();
  const CUstream two = made.device.stream();
};

TEST_F(DeviceWaitsTest, WhatWasFreedBeforeIsCompleteAndNothingSince) {
  Heap& first = made.heap(one);
  Heap& second = made.heap(two);
  const uint64_t in_first = use(first);
  const uint64_t in_second = use(second);
  EXPECT_FALSE(is_complete(first, in_first));
  bool everything = false;
  SPW_EXPECT_OK(waits.synchronize(made.heaps.all(), &everything));
  EXPECT_TRUE(everything);
  EXPECT_TRUE(is_complete(first, in_first));
  EXPECT_TRUE(is_complete(second, in_second));
  EXPECT_TRUE(is_idle(one));
  EXPECT_TRUE(is_idle(two));
  EXPECT_EQ(made.parts.counters.snapshot().host_waits, 1);
  EXPECT_FALSE(is_complete(first, use(first)));
}

TEST_F(DeviceWaitsTest, HeapsOutOfReachAreLeftOutWhereACaptureIsLikely) {
  Heap& ordinary = made.heap(one);
  made.claim(kPool);
  Heap& replayed = made.heap_of(kPool, two);
  ASSERT_TRUE(replayed.use.is_replayed);
  const uint64_t in_ordinary = use(ordinary);
  const uint64_t in_replayed = use(replayed);
  open_for_capture();
  EXPECT_FALSE(waits.may_wait_for_context());
  bool everything = true;
  SPW_EXPECT_OK(waits.synchronize(made.heaps.all(), &everything));
  EXPECT_FALSE(everything);
  EXPECT_TRUE(is_complete(ordinary, in_ordinary));
  EXPECT_FALSE(is_complete(replayed, in_replayed)) << "its graphs run where no event marks it";
  made.open_pools.close({9, 9});
  EXPECT_TRUE(waits.may_wait_for_context());
  SPW_EXPECT_OK(waits.synchronize(made.heaps.all(), &everything));
  EXPECT_TRUE(everything);
  EXPECT_TRUE(is_complete(replayed, in_replayed));
}

TEST_F(DeviceWaitsTest, AnErrorCompletesNothing) {
  Heap& heap = made.heap(one);
  const uint64_t epoch = use(heap);
  made.device.inject_fault("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(waits.synchronize(made.heaps.all()).ok());
  EXPECT_FALSE(is_complete(heap, epoch));
}

TEST_F(DeviceWaitsTest, FreesThatWaitForOtherStreamsAreWaitedFor) {
  Heap& heap = made.heap(one);
  EXPECT_FALSE(waits.wait_for_pending_frees(heap)) << "there are none";
  made.give(heap, 2);
  const auto free_after_other_stream = [&] {
    CachedRange& block = made.allocate(heap, 1);
    made.touch(one, block);
    made.device.order(one, two);
    made.touch(two, block);
    {
      const Lock lock(heap.mutex);
      SPW_EXPECT_OK(heap.record_stream(block, block.va, two));
    }
    made.free(block);
  };
  free_after_other_stream();
  EXPECT_EQ(made.free_count(heap), 1u);
  EXPECT_TRUE(waits.wait_for_pending_frees(heap));
  EXPECT_TRUE(is_idle(two));
  {
    const Lock lock(heap.mutex);
    EXPECT_EQ(heap.complete_finished_frees(), 1u);
  }
  free_after_other_stream();
  SPW_EXPECT_OK(waits.synchronize_with_frees(made.heaps.all(), {&heap}));
  EXPECT_EQ(made.free_count(heap), 2u);
  const Lock lock(heap.mutex);
  EXPECT_TRUE(heap.is_idle()) << "they were stamped as they completed, and are over too";
}

TEST_F(DeviceWaitsTest, NothingIsWaitedForWhileAStreamIsCaptured) {
  const uint64_t epoch = use(made.heap(two));
  use(made.heap(one));
  made.device.begin_capture(one, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_FALSE(waits.wait_if_nothing_captures());
  EXPECT_FALSE(is_complete(made.heap(two), epoch));
  made.device.discard_capture(one);
  EXPECT_TRUE(waits.wait_if_nothing_captures());
  EXPECT_TRUE(is_complete(made.heap(two), epoch));
}

}  // namespace
}  // namespace spillway::test
