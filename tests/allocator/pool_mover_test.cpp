#include "allocator/pool_mover.h"

#include <memory>
#include <utility>
#include <vector>

#include "tests/support/arena_parts.h"

namespace spillway::test {
namespace {

constexpr PoolId kPool{0, 9};

class PoolMoverTest : public testing::Test {
 protected:
  // A movable pool with a heap of five pages, of which the middle ones are in use.
  void make_pool() {
    made.claim(kPool);
    SPW_EXPECT_OK(mover.make_movable(kPool, [this](const PageRange& range) { given_up.push_back(range); }));
    heap = &made.heap_of(kPool, stream);
    made.give(*heap, 5);
    CachedRange& before = made.allocate(*heap, 1);
    block = &made.allocate(*heap, 2);
    made.free(before);
  }
  Status move_out() {
    return mover.move_out(kPool, [this](const std::vector<PageRange>& ranges) {
      copied = ranges;
      return copy_result;
    });
  }
  Status bring_back() {
    return mover.bring_back(kPool, [this](const std::vector<PageRange>& ranges, bool*) {
      returned = ranges;
      return copy_result;
    });
  }
  PoolStay stay() {
    const ArenaLock lock(made.parts.mutex);
    return made.parts.pools.movable(kPool)->stay();
  }
  int64_t reserved() const { return made.parts.counters.snapshot().reserved_bytes.all.current; }
  bool is_block(const std::vector<PageRange>& ranges) const {
    return ranges.size() == 1 && ranges[0].va == block->va && ranges[0].bytes == 2 * kPageBytes;
  }

  AllParts made{"capacity:256MiB"};
  PoolMover& mover = made.mover;
  const CUstream stream = made.device.stream();
  Heap* heap = nullptr;
  CachedRange* block = nullptr;
  Status copy_result;
  std::vector<PageRange> copied;
  std::vector<PageRange> returned;
  std::vector<PageRange> given_up;
};

TEST_F(PoolMoverTest, OnlyAPoolWithoutMemoryBecomesMovable) {
  const GiveUpCopies none = [](const PageRange&) {};
  EXPECT_EQ(mover.make_movable(kPool, none).code(), SPW_ERROR_INVALID_STATE) << "there is none";
  made.claim(kPool);
  made.give(made.heap_of(kPool, stream), 1);
  EXPECT_EQ(mover.make_movable(kPool, none).code(), SPW_ERROR_INVALID_STATE) << "it has memory";
  constexpr PoolId kOther{0, 10};
  made.claim(kOther);
  Heap& empty = made.heap_of(kOther, stream);
  EXPECT_TRUE(empty.use.keeps_pages);
  SPW_EXPECT_OK(mover.make_movable(kOther, none));
  EXPECT_TRUE(empty.use.may_move);
  EXPECT_FALSE(empty.use.keeps_pages) << "it follows its streams";
  EXPECT_EQ(mover.make_movable(kOther, none).code(), SPW_ERROR_INVALID_STATE) << "it is already";
}

TEST_F(PoolMoverTest, WhatIsInUseLeavesAndComesBackToItsAddresses) {
  make_pool();
  const uint64_t va = block->va;
  SPW_EXPECT_OK(move_out());
  EXPECT_TRUE(is_block(copied));
  EXPECT_EQ(stay(), PoolStay::kAway);
  EXPECT_EQ(reserved(), 0);
  EXPECT_EQ(made.parts.store->page_count(), 0u);
  EXPECT_EQ(mover.stuck_bytes(kPool), 0u);
  if (made.device.simulated()) {
    EXPECT_EQ(made.device.live_handles(), 0u) << "what was free is gone for good";
  }
  EXPECT_TRUE(is_block(mover.ranges(kPool)));
  EXPECT_EQ(move_out().code(), SPW_ERROR_INVALID_STATE);

  uint64_t asked = 0;
  made.make_room = [&](uint64_t bytes) {
    asked = bytes;
    return Status();
  };
  SPW_EXPECT_OK(bring_back());
  EXPECT_EQ(asked, 2 * kPageBytes);
  EXPECT_TRUE(is_block(returned));
  EXPECT_EQ(stay(), PoolStay::kHere);
  EXPECT_EQ(block->va, va);
  EXPECT_EQ(reserved(), static_cast<int64_t>(2 * kPageBytes));
  made.touch(stream, *block);
  made.finish_all();
  EXPECT_EQ(made.device.reports(), "");
  EXPECT_EQ(bring_back().code(), SPW_ERROR_INVALID_STATE);
  EXPECT_TRUE(given_up.empty());
}

TEST_F(PoolMoverTest, WithoutACopyItStays) {
  make_pool();
  copy_result = Status::out_of_memory("no room for copies");
  EXPECT_EQ(move_out().code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(stay(), PoolStay::kHere);
  EXPECT_EQ(reserved(), static_cast<int64_t>(2 * kPageBytes));
  EXPECT_FALSE(heap->use.keeps_pages);
  made.touch(stream, *block);
  made.finish_all();
  EXPECT_EQ(made.device.reports(), "");
}

TEST_F(PoolMoverTest, WhereItHasNoRoomOrItsCopiesDoNotArriveItStaysAway) {
  make_pool();
  SPW_EXPECT_OK(move_out());
  made.make_room = [](uint64_t) { return Status::out_of_memory("none"); };
  EXPECT_EQ(bring_back().code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(stay(), PoolStay::kAway);
  made.make_room = [](uint64_t) { return Status(); };
  copy_result = Status::invalid_state("lost");
  EXPECT_EQ(bring_back().code(), SPW_ERROR_INVALID_STATE);
  EXPECT_EQ(stay(), PoolStay::kAway);
  EXPECT_EQ(reserved(), 0);
  if (made.device.simulated()) {
    EXPECT_EQ(made.device.live_handles(), 0u);
  }
  copy_result = {};
  SPW_EXPECT_OK(bring_back());
  EXPECT_EQ(stay(), PoolStay::kHere);
}

TEST_F(PoolMoverTest, WhatCopiesMayStillBeWrittenToStaysMapped) {
  make_pool();
  SPW_EXPECT_OK(move_out());
  const auto fails_under_way = [](const std::vector<PageRange>&, bool* is_settled) {
    *is_settled = false;
    return Status::invalid_state("lost");
  };
  EXPECT_FALSE(mover.bring_back(kPool, fails_under_way).ok());
  EXPECT_EQ(stay(), PoolStay::kAway);
  EXPECT_EQ(mover.stuck_bytes(kPool), 2 * kPageBytes);
  EXPECT_EQ(reserved(), 0);
  made.touch(stream, *block);
  made.finish_all();
  EXPECT_EQ(made.device.reports(), "");
  SPW_EXPECT_OK(bring_back());
  EXPECT_EQ(mover.stuck_bytes(kPool), 0u);
}

TEST_F(PoolMoverTest, NothingMovesWhileAPoolMayBeOpenForACapture) {
  make_pool();
  made.open_pools.open(std::make_shared<OpenPool>(PoolId{0, 10}, [](CUstream) { return false; }));
  EXPECT_EQ(move_out().code(), SPW_ERROR_INVALID_STATE);
  EXPECT_EQ(stay(), PoolStay::kHere);
  EXPECT_TRUE(copied.empty());
  made.open_pools.close({0, 10});
  made.open_pools.open(std::make_shared<OpenPool>(kPool, nullptr));
  EXPECT_EQ(move_out().code(), SPW_ERROR_INVALID_STATE) << "it is open itself";
  made.open_pools.close(kPool);
  SPW_EXPECT_OK(move_out());
}

TEST_F(PoolMoverTest, CopiesOfWhatWasFreedMeanwhileAreGivenUp) {
  make_pool();
  SPW_EXPECT_OK(move_out());
  EXPECT_EQ(mover.give_up_freed(), 0u);
  const PageRange away{block->va, 2 * kPageBytes};
  EXPECT_EQ(mover.blocks_in(kPool, away).size(), 1u);
  made.free(*block);
  EXPECT_TRUE(mover.blocks_in(kPool, away).empty());
  EXPECT_EQ(mover.give_up_freed(), 2 * kPageBytes);
  EXPECT_TRUE(is_block(given_up));
  EXPECT_TRUE(mover.ranges(kPool).empty());
  SPW_EXPECT_OK(bring_back());
  EXPECT_TRUE(returned.empty());
  EXPECT_EQ(reserved(), 0);
}

}  // namespace
}  // namespace spillway::test
