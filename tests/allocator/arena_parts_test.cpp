#include "allocator/arena_parts.h"

#include <memory>
#include <vector>

#include "stats/tracer.h"
#include "tests/support/arena_parts.h"

namespace spillway::test {
namespace {

constexpr PoolId kPool{1, 2};

class ArenaPartsTest : public testing::Test {
 protected:
  // How many pages may be held after this was asked for.
  uint64_t most_pages(uint64_t limit_bytes, uint64_t reserve_bytes) {
    const ArenaLock lock(parts.mutex);
    parts.limit = limit_bytes;
    parts.reserve_bytes = reserve_bytes;
    parts.update_most_pages();
    return parts.store->most_pages();
  }
  uint64_t most_pages() {
    const ArenaLock lock(parts.mutex);
    parts.update_most_pages();
    return parts.store->most_pages();
  }
  // The pool's memory comes from a source from now on, of which so many pages are held.
  SourcedPool& add_source(PoolId id, uint32_t pages) {
    const ArenaLock lock(parts.mutex);
    Pool& pool = parts.pools.find_or_make(id);
    pool.claim(1);
    pool.set_source(std::make_unique<SourcedPool>());
    pool.source()->store = std::move(PageStore::create(made.device.driver, 0, parts.properties,
                                                       {.use_vmm = false, .is_sourced = true}, parts.counters)
                                         .value());
    if (pages > 0) {
      // Nobody touches this memory.
      const SegmentMemory nowhere{reinterpret_cast<void*>(uint64_t{1} << 40), pages * kPageBytes};
      PageId first = kNoPage;
      SPW_EXPECT_OK(pool.source()->store->add_segment(nowhere, pages, nullptr, &first));
    }
    return *pool.source();
  }

  MadeParts made;
  ArenaParts& parts = made.parts;
  const uint64_t device_pages = parts.store->device_bytes() / kPageBytes;
};

// ---- How many pages may be held

TEST_F(ArenaPartsTest, TheLimitAndTheReserveBoundThePages) {
  EXPECT_EQ(most_pages(UINT64_MAX, 0), device_pages);
  EXPECT_EQ(most_pages(10 * kPageBytes, 0), 10u);
  EXPECT_EQ(most_pages(UINT64_MAX, 3 * kPageBytes), device_pages - 3);
  EXPECT_EQ(most_pages(10 * kPageBytes, 3 * kPageBytes), 10u) << "they do not add up";
  EXPECT_EQ(most_pages((device_pages - 1) * kPageBytes, 3 * kPageBytes), device_pages - 3);
  EXPECT_EQ(most_pages(10 * kPageBytes - 1, 0), 9u) << "part of a page is none";
  EXPECT_EQ(most_pages(0, 0), 0u);
  EXPECT_EQ(most_pages(UINT64_MAX, UINT64_MAX), 0u) << "a reserve of more than there is leaves nothing";
}

TEST_F(ArenaPartsTest, WhatIsHeldBesideThePagesIsTakenOff) {
  EXPECT_EQ(most_pages(100 * kPageBytes, 0), 100u);
  add_source(kPool, 7);
  EXPECT_EQ(most_pages(), 93u);
  {
    const ArenaLock lock(parts.mutex);
    EXPECT_EQ(parts.held_elsewhere_bytes(), 7 * kPageBytes);
    SPW_EXPECT_OK(parts.shared.create(1, {}, {0}, false).status());
    EXPECT_EQ(parts.held_elsewhere_bytes(), 7 * kPageBytes + SharedBlocks::kLeastBytes);
  }
  EXPECT_EQ(most_pages(), 93 - SharedBlocks::kLeastBytes / kPageBytes);
  EXPECT_EQ(most_pages(8 * kPageBytes, 0), 0u) << "more than the limit is held there";
}

TEST_F(ArenaPartsTest, TellsWhetherMorePagesAreHeldThanMayBe) {
  const auto exceeds = [&](uint64_t limit_pages) {
    most_pages(limit_pages * kPageBytes, 0);
    return parts.exceeds_limit.load();
  };
  EXPECT_FALSE(exceeds(0)) << "nothing is held";
  {
    const ArenaLock lock(parts.mutex);
    parts.store->set_most_pages(4);
    uint32_t created = 0;
    SPW_EXPECT_OK(parts.store->create_pages(parts.store->find_unbacked(4), 4, nullptr, &created));
  }
  EXPECT_FALSE(exceeds(4));
  EXPECT_TRUE(exceeds(3));
  EXPECT_FALSE(exceeds(5));
  add_source(kPool, 2);
  most_pages();
  EXPECT_TRUE(parts.exceeds_limit.load());
}

TEST(ArenaPartsOfATracedDevice, EachChangeOfTheLimitIsRecordedOnce) {
  Tracer tracer;
  ArenaOptions options;
  options.tracer = &tracer;
  options.limit_bytes = 50 * kPageBytes;
  MadeParts made("capacity:1GiB", options);
  const auto update = [&](uint64_t limit_bytes) {
    const ArenaLock lock(made.parts.mutex);
    made.parts.limit = limit_bytes;
    made.parts.update_most_pages();
  };
  update(50 * kPageBytes);
  update(60 * kPageBytes);
  update(60 * kPageBytes);
  update(UINT64_MAX);
  update(UINT64_MAX - 1);
  std::vector<Tracer::Note> notes;
  std::vector<TraceRecord> records;
  tracer.collect(UINT64_MAX, notes, records);
  std::vector<uint64_t> limits;
  for (const Tracer::Note& note : notes) {
    if (note.record.kind == TraceKind::kLimit) limits.push_back(note.record.requested_bytes);
  }
  EXPECT_EQ(limits,
            (std::vector<uint64_t>{50 * kPageBytes, 60 * kPageBytes, made.parts.store->device_bytes()}));
}

// ---- Where memory comes from

TEST_F(ArenaPartsTest, APoolsMemoryComesFromItsSourceWhereItHasOne) {
  const SourcedPool& source = add_source(kPool, 0);
  std::atomic<const SequencePredictor*> leader{nullptr};
  const auto heap_on = [&](PageStore& store) {
    return std::make_unique<Heap>(store, parts.counters, parts.events, *made.device.driver,
                                  made.device.context, HeapKey{}, leader, BlockGrain::kQuantum);
  };
  const auto ordinary = heap_on(*parts.store);
  const auto sourced = heap_on(*source.store);
  const ArenaLock lock(parts.mutex);
  EXPECT_EQ(&parts.store_of({}), parts.store.get());
  EXPECT_EQ(&parts.store_of({1, 3}), parts.store.get()) << "a pool without one";
  EXPECT_EQ(&parts.store_of(kPool), source.store.get());
  EXPECT_TRUE(parts.may_serve(*ordinary, {}));
  EXPECT_FALSE(parts.may_serve(*ordinary, kPool));
  EXPECT_TRUE(parts.may_serve(*sourced, kPool));
  EXPECT_FALSE(parts.may_serve(*sourced, {}));
  // Once it is released, its heap serves nobody.
  parts.pools.retire_source(*parts.pools.find(kPool));
  EXPECT_FALSE(parts.may_serve(*sourced, kPool));
}

TEST(ArenaPartsOptions, AreThoseOfTheArena) {
  ArenaOptions options;
  options.limit_bytes = 20 * kPageBytes;
  options.reserve_bytes = kPageBytes;
  MadeParts made("capacity:1GiB", options);
  EXPECT_EQ(made.parts.limit.load(), 20 * kPageBytes);
  EXPECT_EQ(made.parts.store->most_pages(), 20u);
  const ArenaLock lock(made.parts.mutex);
  EXPECT_EQ(made.parts.reserve_bytes, kPageBytes);
}

}  // namespace
}  // namespace spillway::test
