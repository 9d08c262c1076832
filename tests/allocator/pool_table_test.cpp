#include "allocator/pool_table.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/page_stores.h"

namespace spillway::test {
namespace {

constexpr PoolId kPool{1, 2};
constexpr PoolId kOther{1, 3};

class PoolTableTest : public testing::Test {
 protected:
  std::unique_ptr<SourcedPool> source() {
    auto pool = std::make_unique<SourcedPool>();
    pool->store = std::move(PageStore::create(of.device.driver, 0, query_device(*of.device.driver, 0).value(),
                                              SourcedSegments::kOptions, of.counters)
                                .value());
    return pool;
  }
  void add_pages(PageStore& store, uint32_t count) {
    // Nobody touches this memory.
    const SegmentMemory nowhere{reinterpret_cast<void*>(uint64_t{1} << 40), count * kPageBytes};
    const ArenaLock lock(of.mutex);
    PageId first = kNoPage;
    SPW_EXPECT_OK(store.add_segment(nowhere, count, nullptr, &first));
  }

  StoreOf<SourcedSegments> of;
  PoolTable table;
};

TEST_F(PoolTableTest, APoolIsMadeOnceAndFoundByItsId) {
  EXPECT_EQ(table.find(kPool), nullptr);
  Pool& pool = table.find_or_make(kPool);
  EXPECT_EQ(pool.id, kPool);
  EXPECT_EQ(&table.find_or_make(kPool), &pool);
  EXPECT_EQ(table.find(kPool), &pool);
  EXPECT_NE(&table.find_or_make(kOther), &pool);
  std::set<PoolId> ids;
  table.for_each([&](const Pool& each) { ids.insert(each.id); });
  EXPECT_EQ(ids, (std::set<PoolId>{kPool, kOther}));
}

TEST_F(PoolTableTest, APoolThatNobodyHasAClaimOnIsNoClaimedOne) {
  Pool& pool = table.find_or_make(kPool);
  EXPECT_EQ(table.claimed(kPool), nullptr);
  pool.claim(1);
  EXPECT_EQ(table.claimed(kPool), &pool);
  EXPECT_EQ(table.claimed(kOther), nullptr);
}

TEST_F(PoolTableTest, APoolIsForgottenOnceNothingOfItIsLeft) {
  const auto is_kept = [&] {
    table.forget_unneeded();
    return table.find(kPool) != nullptr;
  };
  Pool* pool = &table.find_or_make(kPool);
  pool->claim(1);
  EXPECT_TRUE(is_kept());
  EXPECT_TRUE(pool->unclaim());
  pool->make_movable(nullptr);
  EXPECT_TRUE(is_kept());
  pool->settle();
  pool->set_source(source());
  EXPECT_TRUE(is_kept());
  (void)pool->take_source();
  // Its counters are kept until both resets.
  add_bytes(pool->bytes, 100);
  add_bytes(pool->bytes, -100);
  EXPECT_TRUE(is_kept());
  pool->bytes.peak = 0;
  EXPECT_TRUE(is_kept());
  pool->bytes.allocated = pool->bytes.freed = 0;
  EXPECT_FALSE(is_kept());
}

TEST_F(PoolTableTest, APoolThatIsMovedOrAwayIsNotPresent) {
  SPW_EXPECT_OK(table.check_present(kPool));
  Pool& pool = table.find_or_make(kPool);
  SPW_EXPECT_OK(table.check_present(kPool));
  EXPECT_EQ(table.movable(kPool), nullptr);
  pool.make_movable(nullptr);
  EXPECT_NE(table.movable(kPool), nullptr);
  EXPECT_EQ(table.movable(kPool), pool.movable());
  SPW_EXPECT_OK(table.check_present(kPool));
  using enum PoolStay;
  for (const PoolStay stay : {kLeaving, kLeft, kAway, kReturning, kArriving}) {
    SPW_EXPECT_OK(pool.movable()->go(stay));
    const Status status = table.check_present(kPool);
    EXPECT_EQ(status.code(), SPW_ERROR_INVALID_STATE) << name_of(stay);
    EXPECT_NE(status.text().find("pool {1, 2}"), std::string::npos) << status.text();
  }
  SPW_EXPECT_OK(pool.movable()->go(kHere));
  SPW_EXPECT_OK(table.check_present(kPool));
}

TEST_F(PoolTableTest, AHeapIsUsedAsItsPoolSays) {
  const auto heap = of.heap();
  const Lock lock(heap->mutex);
  const auto expect_use = [&](const char* what, HeapUse expected) SPW_REQUIRES(heap->mutex) {
    table.set_use_of(*heap);
    EXPECT_EQ(heap->use.keeps_pages, expected.keeps_pages) << what;
    EXPECT_EQ(heap->use.is_replayed, expected.is_replayed) << what;
    EXPECT_EQ(heap->use.may_move, expected.may_move) << what;
  };
  const HeapUse ordinary{};
  const HeapUse released{.is_replayed = true};
  const HeapUse kept{.keeps_pages = true, .is_replayed = true};
  expect_use("the default pool", ordinary);
  heap->key.pool = kPool;
  expect_use("a pool that is not known any more", released);
  Pool& pool = table.find_or_make(kPool);
  expect_use("a released pool", released);
  pool.claim(1);
  expect_use("a pool", kept);

  pool.make_movable(nullptr);
  expect_use("a movable pool", {.may_move = true});
  for (const auto captured : {MovablePool::Captured::kByAnother, MovablePool::Captured::kForGood}) {
    pool.movable()->captured = captured;
    expect_use("one that a graph was captured over",
               {.keeps_pages = true, .is_replayed = true, .may_move = true});
  }
  pool.movable()->captured = MovablePool::Captured::kNever;
  SPW_EXPECT_OK(pool.movable()->go(PoolStay::kLeaving));
  expect_use("one that leaves", {.keeps_pages = true, .may_move = true});
  SPW_EXPECT_OK(pool.movable()->go(PoolStay::kLeft));
  SPW_EXPECT_OK(pool.movable()->go(PoolStay::kAway));
  EXPECT_TRUE(pool.unclaim());
  expect_use("one that is away, and released", {.keeps_pages = true});
}

// ---- Sources

TEST_F(PoolTableTest, ASourceServesUntilItIsRetiredAndIsKnownToTheEnd) {
  Pool& pool = table.find_or_make(kPool);
  EXPECT_EQ(table.source(kPool), nullptr);
  EXPECT_FALSE(table.retire_source(pool)) << "it has none";
  pool.set_source(source());
  SourcedPool* const first = pool.source();
  const PageStore& store = *first->store;
  EXPECT_EQ(table.source(kPool), first);
  EXPECT_EQ(table.source_of(store), first);
  EXPECT_EQ(table.source_of(of.store()), nullptr);
  EXPECT_FALSE(table.has_released_sources());

  EXPECT_TRUE(table.retire_source(pool));
  EXPECT_EQ(table.source(kPool), nullptr);
  EXPECT_EQ(table.source_of(store), first);
  EXPECT_TRUE(table.has_released_sources());
  pool.set_source(source());
  std::set<SourcedPool*> all;
  std::set<SourcedPool*> released;
  table.for_each_source([&](SourcedPool& each) { all.insert(&each); });
  table.for_each_released_source([&](SourcedPool& each) { released.insert(&each); });
  EXPECT_EQ(all, (std::set<SourcedPool*>{first, pool.source()}));
  EXPECT_EQ(released, std::set<SourcedPool*>{first});
}

TEST_F(PoolTableTest, TheMemoryOfAllSourcesCounts) {
  EXPECT_EQ(table.sourced_bytes(), 0u);
  Pool& pool = table.find_or_make(kPool);
  pool.set_source(source());
  add_pages(*pool.source()->store, 3);
  EXPECT_EQ(table.sourced_bytes(), 3 * kPageBytes);
  table.retire_source(pool);
  EXPECT_EQ(table.sourced_bytes(), 3 * kPageBytes);
  pool.set_source(source());
  add_pages(*pool.source()->store, 2);
  EXPECT_EQ(table.sourced_bytes(), 5 * kPageBytes);
}

}  // namespace
}  // namespace spillway::test
