#include "allocator/pool.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "tests/support/device.h"

namespace spillway::test {
namespace {

TEST(PoolId, OnlyZeroIsTheDefaultPool) {
  EXPECT_FALSE(PoolId{}.is_private());
  EXPECT_TRUE((PoolId{1, 0}.is_private()));
  EXPECT_TRUE((PoolId{0, 1}.is_private()));
}

TEST(PoolId, BothNumbersTellPoolsApartAndOrderThem) {
  const PoolId ascending[] = {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {2, 0}, {~uint64_t{0}, 3}};
  for (size_t i = 0; i < std::size(ascending); ++i) {
    for (size_t k = 0; k < std::size(ascending); ++k) {
      EXPECT_EQ(ascending[i] < ascending[k], i < k);
      EXPECT_EQ(ascending[i] == ascending[k], i == k);
    }
  }
}

TEST(HeapKey, IsOfOneStreamInOnePool) {
  HeapKey key;
  key.pool = {3, 4};
  HeapKey other = key;
  EXPECT_EQ(static_cast<const StreamIdentity&>(key), static_cast<const StreamIdentity&>(other));
  other.id = 7;
  EXPECT_NE(static_cast<const StreamIdentity&>(key), static_cast<const StreamIdentity&>(other));
}

TEST(PoolRefused, SaysWhichPoolAndWhy) {
  const Status status = pool_refused({1, 27}, "is open already");
  EXPECT_EQ(status.code(), SPW_ERROR_INVALID_STATE);
  EXPECT_EQ(status.text(), "pool {1, 27} is open already");
}

TEST(PoolBytes, AreCountedWithTheirPeakAndBothTotals) {
  spw_stat held{};
  add_bytes(held, 10);
  add_bytes(held, 5);
  add_bytes(held, -12);
  add_bytes(held, 4);
  EXPECT_EQ(held.current, 7);
  EXPECT_EQ(held.peak, 15);
  EXPECT_EQ(held.allocated, 19);
  EXPECT_EQ(held.freed, 12);
  add_bytes(held, 0);
  EXPECT_EQ(held.current, 7);
  EXPECT_EQ(held.allocated, 19);
  EXPECT_EQ(held.freed, 12);
}

TEST(Pool, IsClaimedAsLongAsAnyClaimIsLeft) {
  Pool pool({1, 2});
  EXPECT_EQ(pool.id, (PoolId{1, 2}));
  EXPECT_FALSE(pool.is_claimed());
  EXPECT_EQ(pool.birth(), 0u);
  pool.claim(7);
  pool.claim(8);
  EXPECT_EQ(pool.claims(), 2u);
  EXPECT_EQ(pool.birth(), 7u) << "the first claim's";
  EXPECT_FALSE(pool.unclaim());
  EXPECT_TRUE(pool.is_claimed());
  pool.outdate_states(9);
  EXPECT_EQ(pool.birth(), 9u);
  EXPECT_TRUE(pool.unclaim());
  EXPECT_FALSE(pool.is_claimed());
  EXPECT_EQ(pool.birth(), 0u);
}

TEST(Pool, ItsLastClaimReleasesAMovableOne) {
  Pool pool({1, 2});
  pool.make_movable(nullptr);
  pool.claim(1);
  EXPECT_FALSE(pool.movable()->is_released);
  EXPECT_TRUE(pool.unclaim());
  EXPECT_TRUE(pool.movable()->is_released);
  EXPECT_EQ(pool.claims(), 0u);
}

TEST(Pool, MemoryHasASourceOrMovesOrNeither) {
  Pool moves({1, 2});
  SPW_EXPECT_OK(moves.check_source());
  SPW_EXPECT_OK(moves.check_movable());
  moves.make_movable(nullptr);
  EXPECT_EQ(moves.check_source().text(), "pool {1, 2} is a region's, whose memory is the device's");
  EXPECT_EQ(moves.check_movable().text(), "pool {1, 2} can be moved already");
  moves.settle();
  SPW_EXPECT_OK(moves.check_movable());

  Pool sourced({1, 2});
  sourced.set_source(std::make_unique<SourcedPool>());
  EXPECT_EQ(sourced.check_source().text(), "pool {1, 2} has a source already");
  EXPECT_EQ(sourced.check_movable().text(), "pool {1, 2} has a source of its own");
  EXPECT_NE(sourced.take_source(), nullptr);
  EXPECT_EQ(sourced.source(), nullptr);
}

TEST(Pool, OneThatLendsGetsNoSource) {
  Pool pool({1, 2});
  EXPECT_FALSE(pool.stop_lending().has_value());
  pool.lend_as(0);
  EXPECT_TRUE(pool.lends());
  EXPECT_EQ(pool.check_source().text(), "pool {1, 2} lends its memory");
  pool.lend_as(5);
  EXPECT_EQ(pool.stop_lending(), 5u);
  EXPECT_FALSE(pool.lends());
}

TEST(Pool, IsPresentUnlessItIsAwayOrOnItsWay) {
  Pool pool({1, 2});
  SPW_EXPECT_OK(pool.check_present());
  EXPECT_FALSE(pool.is_away());
  pool.make_movable(nullptr);
  SPW_EXPECT_OK(pool.check_present());
  SPW_EXPECT_OK(pool.movable()->go(PoolStay::kLeaving));
  EXPECT_EQ(pool.check_present().text(), "pool {1, 2} is being moved");
  EXPECT_FALSE(pool.is_away());
  SPW_EXPECT_OK(pool.movable()->go(PoolStay::kLeft));
  SPW_EXPECT_OK(pool.movable()->go(PoolStay::kAway));
  EXPECT_EQ(pool.check_present().text(), "pool {1, 2} is not on the device: bring it back first");
  EXPECT_TRUE(pool.is_away());
}

TEST(Pool, EachThingThatIsLeftOfItKeepsItFromBeingForgotten) {
  const std::function<void(Pool&)> leave[] = {
      [](Pool& pool) { pool.claim(1); },
      [](Pool& pool) { pool.set_source(std::make_unique<SourcedPool>()); },
      [](Pool& pool) { pool.make_movable(nullptr); },
      [](Pool& pool) { pool.bytes.peak = 1; },
      [](Pool& pool) { pool.bytes.allocated = 1; },
      [](Pool& pool) { pool.bytes.freed = 1; },
  };
  for (const auto& leave_something : leave) {
    Pool pool({1, 2});
    EXPECT_TRUE(pool.is_forgotten());
    leave_something(pool);
    EXPECT_FALSE(pool.is_forgotten());
  }
}

// Its states may outlive it.
TEST(PoolState, KeepsItsSlabsAsTheyWere) {
  CachedRange range;
  range.va = kSlabBytes;
  Slab slab;
  slab.open(&range, 0);
  const uint32_t slot = slab.take_slot(300);
  PoolState state;
  state.pool = {1, 2};
  state.heaps[nullptr][&range] = {0, std::make_unique<Slab>(slab)};
  slab.give_slot(slot);
  const PoolState moved = std::move(state);
  const Slab& saved = *moved.heaps.at(nullptr).at(&range).slab;
  EXPECT_TRUE(saved.is_live(slot));
  EXPECT_EQ(saved.requested[slot], 300u);
  EXPECT_FALSE(slab.is_live(slot));
}

}  // namespace
}  // namespace spillway::test
