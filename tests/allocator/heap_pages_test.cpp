// Pages that come to a heap and leave it, and whose the heap is.
#include <algorithm>
#include <vector>

#include "allocator/heap.h"
#include "tests/support/heaps.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

template <typename Kind>
class HeapPages : public testing::Test {};
TYPED_TEST_SUITE(HeapPages, StoreKinds, KindName);
// Those that are created for a request.
template <typename Kind>
class HeapPagesOfTheDriver : public testing::Test {};
using DriversKinds = testing::Types<VirtualMemory, Segments>;
TYPED_TEST_SUITE(HeapPagesOfTheDriver, DriversKinds, KindName);

std::vector<PageId> leavable(Heap& heap) {
  const Lock lock(heap.mutex);
  std::vector<PageId> pages;
  heap.list_leavable(pages);
  std::sort(pages.begin(), pages.end());
  return pages;
}
// The host waits for the device.
void wait(Heap& heap) {
  const Lock lock(heap.mutex);
  heap.timeline.end_wait(heap.timeline.begin_wait());
}

// ---- Coming

TYPED_TEST(HeapPages, NewOnesAreCountedFreeUntilTheyAreDropped) {
  HeapOf<TypeParam> in(3);
  EXPECT_EQ(in.free_pages(), 3u);
  EXPECT_EQ(in.stats().owned_bytes, static_cast<int64_t>(3 * kPageBytes));
  EXPECT_EQ(in.stats().cached_free_bytes, static_cast<int64_t>(3 * kPageBytes));
  const Lock lock(in.heap.mutex);
  in.heap.drop_free(in.first + 1, 2);
  EXPECT_EQ(in.heap.pages().owned(), 1u);
  EXPECT_EQ(in.stats().owned_bytes, static_cast<int64_t>(kPageBytes));
}

TYPED_TEST(HeapPagesOfTheDriver, APlanIsCarriedOut) {
  HeapOf<TypeParam> in(0);
  {
    const ArenaLock lock(in.of.mutex);
    const Lock heap_lock(in.heap.mutex);
    const Request request = in.heap.large_request(5 * kMiB);
    const Plan plan = in.heap.plan(request);
    EXPECT_EQ(plan.kind, TypeParam::kHasViews ? Plan::Kind::kExtend : Plan::Kind::kSegment);
    EXPECT_EQ(plan.new_pages, 3u);
    const Result<CachedRange*> range = in.heap.take_planned(request, plan);
    ASSERT_TRUE(range.ok()) << range.status().text();
    void* out = nullptr;
    ASSERT_TRUE(in.heap.make_live(*range.value(), 5 * kMiB, &out));
    EXPECT_EQ(in.heap.pages().owned(), 3u);
  }
  SPW_EXPECT_OK(in.validate());
  EXPECT_NE(in.allocate(kMiB - 100), 0u) << "what is left of the last one serves others";
}

TYPED_TEST(HeapPagesOfTheDriver, WhereTheDriverFailsWhatItGaveIsFree) {
  HeapOf<TypeParam> in(0);
  if (!in.of.device.simulated()) GTEST_SKIP() << "faults are made by the simulated driver";
  const auto take = [&] {
    const ArenaLock lock(in.of.mutex);
    const Lock heap_lock(in.heap.mutex);
    const Request request = in.heap.large_request(4 * kPageBytes);
    return in.heap.take_planned(request, in.heap.plan(request)).status().code();
  };
  in.of.device.inject_fault(TypeParam::kHasViews ? "cuMemCreate" : "cuMemAlloc", TypeParam::kHasViews ? 3 : 1,
                            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(take(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(in.free_pages(), TypeParam::kHasViews ? 2u : 0u);
  SPW_EXPECT_OK(in.validate());
  EXPECT_EQ(take(), SPW_OK);
}

TEST(HeapPagesInViews, AViewThatLiesUnusedServesAgain) {
  HeapOf<VirtualMemory> in(8);
  std::vector<uint64_t> pages;
  for (int i = 0; i < 8; ++i) pages.push_back(in.allocate(kPageBytes));
  for (size_t i = 0; i < 8; i += 2) SPW_EXPECT_OK(in.free(pages[i]));
  const ArenaLock lock(in.of.mutex);
  const Lock heap_lock(in.heap.mutex);
  const Request request = in.heap.large_request(3 * kPageBytes);
  EXPECT_EQ(in.heap.take_again(request, false), nullptr) << "no two are neighbours";
  EXPECT_EQ(in.heap.reuse_view(request, 8, true), nullptr) << "there is none yet";
  const Plan plan = in.heap.plan(request);
  EXPECT_EQ(plan.kind, Plan::Kind::kView);
  CachedRange* range = in.heap.take_planned(request, plan).value();
  ASSERT_NE(range, nullptr);
  EXPECT_NE(range->view, nullptr);
  void* out = nullptr;
  ASSERT_TRUE(in.heap.make_live(*range, request.quanta * kQuantumBytes, &out));
  SPW_EXPECT_OK(in.heap.free(*range, range->va));
  const uint32_t mappings = in.of.store().live_mappings();
  CachedRange* shorter = in.heap.reuse_view(in.heap.large_request(2 * kPageBytes), 8, true);
  ASSERT_NE(shorter, nullptr);
  EXPECT_EQ(shorter->view, range->view);
  EXPECT_EQ(in.of.store().live_mappings(), mappings);
}

// ---- Leaving

TYPED_TEST(HeapPages, AFreeOneMayGoOnceItsLastUseIsOver) {
  HeapOf<TypeParam> in(2);
  const auto may_release = [&](PageId page) {
    const Lock lock(in.heap.mutex);
    return in.heap.may_release(page);
  };
  EXPECT_TRUE(may_release(in.first)) << "nobody used it";
  const uint64_t block = in.allocate(2 * kPageBytes);
  EXPECT_FALSE(may_release(in.first));
  wait(in.heap);
  EXPECT_FALSE(may_release(in.first)) << "it is in use";
  SPW_EXPECT_OK(in.free(block));
  EXPECT_FALSE(may_release(in.first));
  wait(in.heap);
  EXPECT_TRUE(may_release(in.first));
  in.heap.use.keeps_pages = true;
  EXPECT_FALSE(may_release(in.first));
}

TYPED_TEST(HeapPages, AHeapIsIdleWhenNothingOfItIsInUseOrMayBe) {
  HeapOf<TypeParam> in(2);
  const auto is_idle = [&] {
    const Lock lock(in.heap.mutex);
    return in.heap.is_idle();
  };
  EXPECT_TRUE(is_idle());
  const uint64_t block = in.allocate(kPageBytes);
  const uint64_t small = in.allocate(100);
  EXPECT_FALSE(is_idle());
  SPW_EXPECT_OK(in.free(block));
  SPW_EXPECT_OK(in.free(small));
  EXPECT_FALSE(is_idle()) << "its stream may be at work";
  wait(in.heap);
  EXPECT_TRUE(is_idle()) << "the empty slab goes";
  EXPECT_EQ(in.free_pages(), 2u);
}

TYPED_TEST(HeapPages, APoolKeepsWhatItUsedAndNotWhatAnotherLeft) {
  HeapOf<TypeParam> in(4);
  const std::vector<PageId> all = {in.first, in.first + 1, in.first + 2, in.first + 3};
  SPW_EXPECT_OK(in.free(in.allocate(4 * kPageBytes)));
  EXPECT_EQ(leavable(in.heap), all);
  wait(in.heap);
  {
    const Lock lock(in.heap.mutex);
    in.heap.serve_pool({1, 2});
    in.heap.use.keeps_pages = true;
  }
  EXPECT_EQ(in.heap.key.pool, (PoolId{1, 2}));
  EXPECT_EQ(leavable(in.heap), all) << "the pool has used none";
  const uint64_t block = in.allocate(kPageBytes);
  const PageId used = pages_of(in.range_of(block)).front();
  SPW_EXPECT_OK(in.free(block));
  std::vector<PageId> others = all;
  std::erase(others, used);
  EXPECT_EQ(leavable(in.heap), others);
  in.heap.use.may_move = true;
  EXPECT_TRUE(leavable(in.heap).empty());
  in.heap.use.may_move = false;
  // With its release all may go, once whatever replays its graphs is over.
  wait(in.heap);
  const Lock lock(in.heap.mutex);
  in.heap.pool_released();
  EXPECT_FALSE(in.heap.use.keeps_pages);
  EXPECT_FALSE(in.heap.may_release(used));
  in.heap.timeline.end_wait(in.heap.timeline.begin_wait());
  EXPECT_TRUE(in.heap.may_release(used));
}

// ---- Moving

TYPED_TEST(HeapPages, MoveToAnotherHeapWithTheirCounts) {
  HeapOf<TypeParam> in(4);
  const auto other = in.of.heap();
  spw_stat mine{};
  spw_stat others{};
  {
    const Lock lock(in.heap.mutex);
    in.heap.count_for(&mine);
    EXPECT_EQ(in.heap.pool_bytes(), &mine);
  }
  const Lock lock(other->mutex);
  other->count_for(&others);
  const Lock heap_lock(in.heap.mutex);
  other->receive(in.heap, {in.first + 1, in.first + 3});
  EXPECT_EQ(in.heap.pages().owned(), 2u);
  EXPECT_EQ(other->pages().owned(), 2u);
  EXPECT_TRUE(other->pages().is_free(in.first + 3));
  EXPECT_FALSE(in.heap.pages().is_free(in.first + 3));
  EXPECT_FALSE(other->may_release(in.first + 3)) << "the giver's uses are over only behind what comes now";
  EXPECT_EQ(mine.current, static_cast<int64_t>(2 * kPageBytes));
  EXPECT_EQ(others.current, static_cast<int64_t>(2 * kPageBytes));
  EXPECT_EQ(other->counters.snapshot().owned_bytes, static_cast<int64_t>(2 * kPageBytes));
  SPW_EXPECT_OK(validate(in.heap));
  SPW_EXPECT_OK(validate(*other));
}

TYPED_TEST(HeapPages, AreCountedForThePoolThatClaimsThem) {
  HeapOf<TypeParam> in(3);
  spw_stat first{};
  spw_stat second{};
  const Lock lock(in.heap.mutex);
  in.heap.count_for(&first);
  EXPECT_EQ(first.current, static_cast<int64_t>(3 * kPageBytes));
  in.heap.count_for(&first);
  EXPECT_EQ(first.allocated, static_cast<int64_t>(3 * kPageBytes)) << "once";
  in.heap.drop_free(in.first, 1);
  EXPECT_EQ(first.current, static_cast<int64_t>(2 * kPageBytes));
  in.heap.count_for(&second);
  EXPECT_EQ(first.current, 0);
  EXPECT_EQ(second.current, static_cast<int64_t>(2 * kPageBytes));
  in.heap.add_free(in.first, 1);
  EXPECT_EQ(second.current, static_cast<int64_t>(3 * kPageBytes));
  in.heap.count_for(nullptr);
  EXPECT_EQ(second.current, 0);
  EXPECT_EQ(second.freed, second.allocated);
}

// ---- Streams

TYPED_TEST(HeapPages, AHeapThatIsTakenOverServesAnotherStream) {
  HeapOf<TypeParam> in(2);
  const uint64_t block = in.allocate(kPageBytes);
  HeapKey by;
  by.stream = CU_STREAM_PER_THREAD;
  by.thread = thread_number();
  by.pool = {1, 2};
  {
    const Lock lock(in.heap.mutex);
    EXPECT_FALSE(in.heap.is_closed());
    in.heap.close(true);
    EXPECT_TRUE(in.heap.is_closed());
    EXPECT_TRUE(in.heap.timeline.is_covered());
    const uint64_t epoch = in.heap.timeline.epoch();
    in.heap.take_over(by);
    EXPECT_FALSE(in.heap.is_closed());
    EXPECT_FALSE(in.heap.timeline.is_covered());
    EXPECT_GT(in.heap.timeline.epoch(), epoch);
    EXPECT_EQ(static_cast<const StreamIdentity&>(in.heap.key), static_cast<const StreamIdentity&>(by));
    EXPECT_EQ(in.heap.key.pool, by.pool);
    ASSERT_NE(in.heap.life.thread_ended, nullptr);
    EXPECT_FALSE(in.heap.life.thread_ended->load());
  }
  SPW_EXPECT_OK(in.free(block));
  const Lock lock(in.heap.mutex);
  in.heap.close(false);
  EXPECT_FALSE(in.heap.timeline.is_covered());
  in.heap.take_over({});
  EXPECT_EQ(in.heap.life.thread_ended, nullptr) << "no thread's end ends it";
}

TYPED_TEST(HeapPages, TellWhatCouldBeServedWithoutNewOnes) {
  HeapOf<TypeParam> in(3);
  const auto space = [&] {
    const Lock lock(in.heap.mutex);
    return in.heap.free_space();
  };
  EXPECT_EQ(space().free_pages, 3u);
  if (!TypeParam::kHasViews) {
    EXPECT_EQ(space().run_quanta, 3 * kPageQuanta);
  }
  EXPECT_EQ(space().slot_bytes, 0u);
  const uint64_t small = in.allocate(5000);
  EXPECT_EQ(space().slot_bytes, 5120u);
  EXPECT_EQ(space().free_pages, 2u);
  SPW_EXPECT_OK(in.free(small));
  EXPECT_EQ(space().free_pages, 3u) << "an empty slab gives way";
}

}  // namespace
}  // namespace spillway::test
