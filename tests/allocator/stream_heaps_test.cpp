#include "allocator/stream_heaps.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/support/arena_parts.h"

namespace spillway::test {
namespace {

constexpr PoolId kPool{0, 5};

class StreamHeapsTest : public testing::Test {
 protected:
  AllParts made{"capacity:256MiB,completion:run-ahead"};
  StreamHeaps& heaps = made.heaps;
  const CUstream one = made.device.stream();
  const CUstream two = made.device.stream();
};

TEST_F(StreamHeapsTest, EachStreamHasOneHeap) {
  Heap& first = made.heap(one);
  EXPECT_EQ(&made.heap(one), &first);
  Heap& second = made.heap(two);
  EXPECT_NE(&second, &first);
  EXPECT_EQ(first.key.stream, one);
  Heap& legacy = made.heap(nullptr);
  EXPECT_EQ(&made.heap(CU_STREAM_LEGACY), &legacy) << "both handles mean one stream";
  EXPECT_EQ(heaps.all(), (std::vector<Heap*>{&first, &second, &legacy}));
  std::vector<CUstream> served = heaps.streams();
  std::vector<CUstream> expected = {nullptr, one, two};
  std::sort(served.begin(), served.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(served, expected);
}

TEST_F(StreamHeapsTest, APerThreadDefaultStreamHasAHeapInEachThread) {
  Heap& mine = made.heap(CU_STREAM_PER_THREAD);
  EXPECT_EQ(&made.heap(CU_STREAM_PER_THREAD), &mine);
  Heap* other = nullptr;
  std::thread([&] {
    made.device.driver->cuCtxSetCurrent(made.device.context);
    other = &made.heap(CU_STREAM_PER_THREAD);
  }).join();
  EXPECT_NE(other, &mine);
}

TEST_F(StreamHeapsTest, AThreadRemembersTheHeapThatItUsedLast) {
  EXPECT_EQ(heaps.remembered(one), nullptr);
  Heap& first = made.heap(one);
  EXPECT_EQ(heaps.remembered(one), &first);
  EXPECT_EQ(heaps.remembered(two), nullptr);
  std::thread([&] { EXPECT_EQ(heaps.remembered(one), nullptr); }).join();
  // Not while a pool is open, nor once any heap is closed.
  made.open_pools.open(std::make_shared<OpenPool>(kPool, [](CUstream) { return false; }));
  EXPECT_EQ(heaps.remembered(one), nullptr);
  made.open_pools.close(kPool);
  EXPECT_EQ(heaps.remembered(one), &first);
  made.heap(two);
  made.heap(one);
  SPW_EXPECT_OK(heaps.stream_destroyed(two));
  EXPECT_EQ(heaps.remembered(one), nullptr);
}

TEST_F(StreamHeapsTest, AnOpenPoolHasHeapsOfItsOwn) {
  Heap& ordinary = made.heap(one);
  Pool& pool = made.claim(kPool);
  Heap& pooled = made.heap_of(kPool, one);
  EXPECT_NE(&pooled, &ordinary);
  EXPECT_EQ(pooled.key.pool, kPool);
  EXPECT_TRUE(pooled.use.keeps_pages);
  EXPECT_FALSE(ordinary.use.keeps_pages);
  EXPECT_EQ(heaps.of(kPool), std::vector<Heap*>{&pooled});
  made.give(pooled, 3);
  EXPECT_EQ(pool.bytes.current, static_cast<int64_t>(3 * kPageBytes));
  EXPECT_EQ(&made.heap(one), &ordinary) << "the pool is closed";
}

TEST_F(StreamHeapsTest, TheHeapOfAStreamThatIsGoneServesAnotherOnceItsWorkIsOver) {
  if (!made.device.simulated()) GTEST_SKIP() << "needs work that waits to be done";
  const CUstream gone = made.device.stream();
  Heap& heap = made.heap(gone);
  made.give(heap, 2);
  CachedRange& block = made.allocate(heap, 2);
  made.touch(gone, block);
  made.free(block);
  SPW_EXPECT_OK(heaps.stream_destroyed(gone));
  EXPECT_TRUE(heap.is_closed());
  EXPECT_TRUE(heaps.streams().empty());
  made.device.destroy(gone);
  EXPECT_NE(&made.heap(one), &heap) << "its work is still to be done";
  made.finish_all();
  EXPECT_EQ(&made.heap(two), &heap);
  EXPECT_FALSE(heap.is_closed());
  EXPECT_EQ(heap.key.stream, two);
  EXPECT_EQ(made.owned(heap), 2u) << "with all it holds";
  made.touch(two, made.allocate(heap, 2));
  EXPECT_EQ(made.device.reports(), "");
}

TEST_F(StreamHeapsTest, AStreamThatWentUnannouncedIsNoticedWhereItsHandleIsNamed) {
  const CUstream gone = made.device.stream();
  Heap& heap = made.heap(gone);
  made.device.destroy(gone);
  const CUstream next = made.device.stream();
  if (next != gone) GTEST_SKIP() << "its handle did not come again";
  const Lock lock(heap.mutex);
  EXPECT_TRUE(heaps.named_has_gone(heap));
  EXPECT_TRUE(heap.is_closed());
  EXPECT_FALSE(heap.timeline.is_covered()) << "no event marks the end of its work";
}

TEST_F(StreamHeapsTest, TellsWhetherAStreamIsCaptured) {
  Heap& first = made.heap(one);
  Heap& second = made.heap(two);
  EXPECT_FALSE(heaps.any_capturing(heaps.all()));
  made.device.begin_capture(two, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_TRUE(heaps.any_capturing(heaps.all()));
  EXPECT_FALSE(heaps.any_capturing({&first}));
  {
    const Lock lock(second.mutex);
    EXPECT_TRUE(heaps.is_capturing(second));
  }
  made.device.discard_capture(two);
  EXPECT_FALSE(heaps.any_capturing(heaps.all()));
}

}  // namespace
}  // namespace spillway::test
