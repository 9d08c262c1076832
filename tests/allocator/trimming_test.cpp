#include "allocator/trimming.h"

#include <memory>

#include "tests/support/arena_parts.h"

namespace spillway::test {
namespace {

constexpr PoolId kPool{0, 8};

class TrimmingTest : public testing::Test {
 protected:
  uint32_t held() const { return made.parts.store->page_count(); }
  void set_limit(uint64_t bytes) {
    const ArenaLock lock(made.parts.mutex);
    made.parts.limit = bytes;
    made.parts.update_most_pages();
  }

  AllParts made{"capacity:256MiB,completion:run-ahead"};
  Trimming& trimming = made.trimming;
  const CUstream one = made.device.stream();
  const CUstream two = made.device.stream();
};

TEST_F(TrimmingTest, WhatIsFreeGoesOnceItsWorkIsDone) {
  Heap& heap = made.heap(one);
  made.give(heap, 5);
  CachedRange& used = made.allocate(heap, 2);
  CachedRange& freed = made.allocate(heap, 2);
  made.touch(one, used);
  made.touch(one, freed);
  made.free(freed);
  SPW_EXPECT_OK(trimming.trim());
  EXPECT_EQ(held(), 2u);
  EXPECT_EQ(made.owned(heap), 2u);
  EXPECT_EQ(made.free_count(heap), 0u);
  EXPECT_EQ(made.device.driver->cuStreamQuery(one), CUDA_SUCCESS);
  EXPECT_EQ(made.device.reports(), "");
  made.touch(one, used);
  EXPECT_EQ(made.parts.counters.snapshot().reserved_bytes.all.current, static_cast<int64_t>(2 * kPageBytes));
}

TEST_F(TrimmingTest, NothingGoesWhileAStreamIsCaptured) {
  made.give(made.heap(one), 2);
  made.device.begin_capture(one, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(trimming.trim().code(), SPW_ERROR_INVALID_STATE);
  EXPECT_EQ(held(), 2u);
  made.device.discard_capture(one);
  SPW_EXPECT_OK(trimming.trim());
  EXPECT_EQ(held(), 0u);
}

TEST_F(TrimmingTest, WhatWentForAWhileIsTakenBackToWhereItWas) {
  Heap& first = made.heap(one);
  Heap& second = made.heap(two);
  const PageId in_first = made.give(first, 3);
  const PageId in_second = made.give(second, 2);
  CachedRange& used = made.allocate(first, 1);
  SPW_EXPECT_OK(trimming.trim_for_now());
  EXPECT_EQ(held(), 1u);
  EXPECT_EQ(trimming.take_back(), 4 * kPageBytes);
  for (PageId id = in_first; id < in_first + 3; ++id)
    EXPECT_EQ(made.parts.store->page(id).owner.load(), &first);
  for (PageId id = in_second; id < in_second + 2; ++id)
    EXPECT_EQ(made.parts.store->page(id).owner.load(), &second);
  EXPECT_EQ(made.free_count(first), 2u);
  EXPECT_EQ(made.free_count(second), 2u);
  EXPECT_EQ(trimming.take_back(), 0u) << "only once";
  made.free(used);
}

TEST_F(TrimmingTest, NoMoreIsTakenBackThanTheSoftLimitAllows) {
  made.give(made.heap(one), 4);
  SPW_EXPECT_OK(trimming.trim_for_now());
  made.parts.store->set_soft_most_pages(3);
  EXPECT_EQ(trimming.take_back(), 3 * kPageBytes);
}

TEST_F(TrimmingTest, OfOnePoolOnlyItsOwnGoes) {
  Pool& pool = made.claim(kPool);
  Heap& ordinary = made.heap(one);
  Heap& pooled = made.heap_of(kPool, one);
  made.give(ordinary, 2);
  made.give(pooled, 3);
  SPW_EXPECT_OK(trimming.trim_pool(kPool));
  EXPECT_EQ(made.owned(pooled), 3u) << "its graphs may use it";
  {
    const ArenaLock lock(made.parts.mutex);
    EXPECT_TRUE(pool.unclaim());
    const Lock heap_lock(pooled.mutex);
    pooled.pool_released();
  }
  SPW_EXPECT_OK(trimming.trim_pool(kPool));
  EXPECT_EQ(made.owned(pooled), 0u);
  EXPECT_EQ(made.owned(ordinary), 2u);
}

TEST_F(TrimmingTest, AboveTheLimitOnlyThatMuchGoesBack) {
  Heap& heap = made.heap(one);
  made.give(heap, 6);
  trimming.keep_limit();
  EXPECT_EQ(held(), 6u);
  set_limit(4 * kPageBytes);
  trimming.keep_limit();
  EXPECT_EQ(held(), 4u);
  // Where nothing is free, nothing is waited for.
  made.allocate(heap, 4);
  set_limit(2 * kPageBytes);
  const int64_t waits = made.parts.counters.snapshot().host_waits;
  trimming.keep_limit();
  EXPECT_EQ(held(), 4u);
  EXPECT_EQ(made.parts.counters.snapshot().host_waits, waits);
}

TEST(TrimmingSegments, SegmentsGoWholeWhoeverOwnsTheirPages) {
  ArenaOptions options;
  options.use_vmm = false;
  AllParts made("capacity:256MiB", options);
  Heap& heap = made.heap(made.device.stream());
  made.give(heap, 3);
  made.give(heap, 2);
  CachedRange& used = made.allocate(heap, 1);
  SPW_EXPECT_OK(made.trimming.trim());
  const uint32_t kept = made.parts.store->page_count();
  EXPECT_TRUE(kept == 2 || kept == 3) << kept;
  EXPECT_EQ(made.owned(heap), kept);
  made.free(used);
  SPW_EXPECT_OK(made.trimming.trim());
  EXPECT_EQ(made.parts.store->page_count(), 0u);
}

}  // namespace
}  // namespace spillway::test
