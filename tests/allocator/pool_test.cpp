#include "allocator/pool.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

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
  pool.claims = 2;
  EXPECT_TRUE(pool.is_claimed());
  --pool.claims;
  EXPECT_TRUE(pool.is_claimed());
  --pool.claims;
  EXPECT_FALSE(pool.is_claimed());
}

TEST(Pool, EachThingThatIsLeftOfItKeepsItFromBeingForgotten) {
  const std::function<void(Pool&)> leave[] = {
      [](Pool& pool) { pool.claims = 1; },
      [](Pool& pool) { pool.source = std::make_unique<SourcedPool>(); },
      [](Pool& pool) { pool.movable = std::make_unique<MovablePool>(); },
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
