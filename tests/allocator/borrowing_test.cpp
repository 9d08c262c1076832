#include "allocator/borrowing.h"

#include "tests/support/arena_parts.h"

namespace spillway::test {
namespace {

constexpr PoolId kPool{0, 7};

// Work on the device is done only when the host waits for it, so that what is not ordered is reported.
class BorrowingTest : public testing::Test {
 protected:
  uint32_t borrow(Heap& heap, uint32_t wanted) {
    const ArenaLock lock(made.parts.mutex);
    const Lock heap_lock(heap.mutex);
    return made.borrowing.borrow(heap, wanted);
  }
  // Uses so many pages of the heap, and frees them.
  CachedRange& use(Heap& heap, uint32_t pages) {
    CachedRange& block = made.allocate(heap, pages);
    made.touch(heap.key.stream, block);
    made.free(block);
    return block;
  }
  uint64_t waits() const { return made.parts.counters.stream_waits(); }

  AllParts made{"capacity:256MiB,completion:run-ahead"};
  const CUstream one = made.device.stream();
  const CUstream two = made.device.stream();
  Heap& lender = made.heap(one);
  Heap& heap = made.heap(two);
};

TEST_F(BorrowingTest, FreePagesOfAnotherComeBehindAWaitOnTheDevice) {
  made.give(lender, 5);
  use(lender, 4);
  EXPECT_EQ(borrow(heap, 3), 3u);
  EXPECT_EQ(made.owned(lender), 2u);
  EXPECT_EQ(made.free_count(heap), 3u);
  EXPECT_EQ(waits(), 1u);
  use(heap, 3);
  EXPECT_EQ(made.device.reports(), "");
  // The same wait covers the rest; more than there is is not given.
  EXPECT_EQ(borrow(heap, 10), 2u);
  EXPECT_EQ(waits(), 1u);
  EXPECT_EQ(borrow(heap, 1), 0u);
  use(heap, 5);
  EXPECT_EQ(made.device.reports(), "");
  if (made.device.simulated()) {
    EXPECT_EQ(made.device.host_waits(), 0u);
  }
}

TEST_F(BorrowingTest, PagesInUseAreNotLent) {
  made.give(lender, 3);
  made.allocate(lender, 2);
  EXPECT_EQ(borrow(heap, 3), 1u);
  EXPECT_EQ(made.owned(lender), 2u);
}

TEST_F(BorrowingTest, APoolKeepsItsPages) {
  made.claim(kPool);
  Heap& pooled = made.heap_of(kPool, one);
  made.give(pooled, 3);
  use(pooled, 3);
  made.finish_all();
  EXPECT_EQ(borrow(heap, 3), 0u);
  EXPECT_EQ(made.owned(pooled), 3u);
  // So does one that is on its way out of the device, though no graph replays it.
  made.give(lender, 2);
  lender.use.keeps_pages = true;
  EXPECT_EQ(borrow(heap, 2), 0u);
  lender.use.keeps_pages = false;
  EXPECT_EQ(borrow(heap, 2), 2u);
}

TEST_F(BorrowingTest, WhereTheTwoCannotBeOrderedNothingIsLent) {
  if (!made.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  made.give(lender, 3);
  use(lender, 3);
  made.device.inject_fault("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(borrow(heap, 3), 0u);
  EXPECT_EQ(made.owned(lender), 3u);
  EXPECT_EQ(borrow(heap, 3), 3u);
}

TEST_F(BorrowingTest, TheRangeThatAProgramHadBeforeComesBackWithItsPages) {
  made.give(heap, 2);
  CachedRange* had = nullptr;
  for (int i = 0; i < 4; ++i) had = &use(heap, 2);
  const Request request{2 * kPageQuanta, 1};
  const auto wants_back = [&] {
    const Lock lock(heap.mutex);
    return made.borrowing.wants_back(heap, request);
  };
  EXPECT_FALSE(wants_back()) << "it is free";
  EXPECT_EQ(borrow(lender, 2), 2u);
  EXPECT_FALSE(wants_back()) << "there is room for new pages";
  made.parts.store->set_most_pages(2);
  EXPECT_TRUE(wants_back());
  CachedRange& others = made.allocate(lender, 2);
  made.touch(one, others);
  const auto take_expected = [&] {
    const ArenaLock lock(made.parts.mutex);
    const Lock heap_lock(heap.mutex);
    return made.borrowing.take_expected(heap, request);
  };
  EXPECT_EQ(take_expected(), nullptr) << "others use its pages";
  made.free(others);
  EXPECT_EQ(take_expected(), had);
  EXPECT_EQ(had->state, BlockState::kLive);
  EXPECT_EQ(made.owned(lender), 0u);
  made.touch(two, *had);
  EXPECT_EQ(made.device.reports(), "");
}

}  // namespace
}  // namespace spillway::test
