#include "allocator/slab_heap.h"

#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/address_map.h"
#include "allocator/range_cache.h"
#include "tests/support/page_stores.h"
#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

// The slabs of one heap, which are opened where its free pages have room.
template <typename Kind>
class Slabs {
 public:
  explicit Slabs(uint32_t page_count)
      : of("capacity:1GiB,backing:none,races:off"),
        owner(of.heap()),
        pages(of.store(), *owner, BlockGrain::kQuantum),
        counters(of.counters),
        slabs(pages, timeline, counters) {
    const ArenaLock lock(of.mutex);
    pages.add(of.must_give(page_count, owner.get()), page_count);
    counters.on_pages(page_count * static_cast<int64_t>(kPageBytes));
  }

  CachedRange& open(uint32_t size_class) {
    const Request request = Request::for_slab(size_class);
    CachedRange* range = ranges.best_of_size(
        kSlabQuanta, [] { return uint64_t{0}; },
        [&](const CachedRange& candidate) { return pages.fits(candidate); });
    if (range == nullptr) {
      std::optional<Layout> layout = pages.find_fragment(request);
      if (!layout.has_value()) layout = pages.find_hole(request, false);
      EXPECT_TRUE(layout.has_value());
      range = &ranges.make(*owner, kSlabQuanta, std::move(*layout), {});
    }
    EXPECT_TRUE(pages.take(*range));
    EXPECT_TRUE(slabs.open(*range, size_class));
    return *range;
  }
  uint64_t take(uint32_t size_class, uint64_t requested_bytes) {
    if (slabs.with_room(size_class) == nullptr) open(size_class);
    const uint64_t va = slabs.take_slot(size_class, requested_bytes);
    // As the heap counts it.
    counters.on_allocate(SizePool::kSmall, requested_bytes, kClassBytes[size_class], 0, 0, va);
    return va;
  }
  static Slab& slab_of(uint64_t va) {
    const CachedRange* range = AddressMap::instance().find(va);
    EXPECT_NE(range, nullptr);
    EXPECT_NE(range->slab, nullptr);
    return *range->slab;
  }
  void give(uint64_t va) {
    Slab& slab = slab_of(va);
    const uint32_t slot = slab.slot_at(va);
    ASSERT_NE(slot, kMostSlots);
    counters.on_free(SizePool::kSmall, slab.requested[slot], slab.slot_bytes(), 0, 0, va);
    slabs.give_slot(slab, slot);
  }
  // Those of the class that are open, by their number.
  std::map<uint32_t, const Slab*> open_slabs(uint32_t size_class) const {
    std::map<uint32_t, const Slab*> open;
    ranges.for_each([&](const CachedRange& range) {
      if (range.slab != nullptr && range.slab->size_class == size_class) open[range.slab_number] = range.slab;
    });
    return open;
  }

  StoreOf<Kind> of;
  std::unique_ptr<Heap> owner;
  FreePages pages;
  Timeline timeline;
  HeapCounters counters;
  SlabHeap slabs;
  RangeCache ranges;
};

template <typename Kind>
class SlabHeapKinds : public testing::Test {};
TYPED_TEST_SUITE(SlabHeapKinds, StoreKinds, KindName);

struct Block {
  uint32_t size_class;
  uint64_t requested_bytes;
};

template <typename Kind>
void expect_same(const Slabs<Kind>& in, const std::map<uint64_t, Block>& blocks) {
  uint64_t slabs = 0;
  size_t empty = 0;
  uint64_t largest = 0;
  for (uint32_t size_class = 0; size_class < kClassCount; ++size_class) {
    const std::map<uint32_t, const Slab*> open = in.open_slabs(size_class);
    slabs += open.size();
    const Slab* first_with_room = nullptr;
    size_t with_room = 0;
    for (const auto& [number, slab] : open) {
      if (first_with_room == nullptr && !slab->full()) first_with_room = slab;
      with_room += !slab->full();
      if (slab->used > 0) continue;
      ++empty;
      ASSERT_TRUE(in.slabs.is_empty(slab->size_class, *slab));
    }
    ASSERT_EQ(in.slabs.with_room(size_class), first_with_room) << "slots come from the first with room";
    if (first_with_room != nullptr && first_with_room->used == 0) {
      ASSERT_EQ(with_room, 1u) << "an empty one is kept only while no other has room";
    }
    if (with_room > 0) largest = kClassBytes[size_class];
  }
  ASSERT_EQ(in.slabs.empty_ranges().size(), empty);
  ASSERT_EQ(in.slabs.largest_slot_bytes(), largest);
  int64_t used = 0;
  int64_t requested = 0;
  for (const auto& [va, block] : blocks) {
    used += kClassBytes[block.size_class];
    requested += static_cast<int64_t>(block.requested_bytes);
  }
  const DeviceStats stats = in.of.counters.snapshot();
  ASSERT_EQ(stats.allocation.small_pool.current, static_cast<int64_t>(blocks.size()));
  ASSERT_EQ(stats.active_bytes.small_pool.current, used);
  ASSERT_EQ(stats.requested_bytes.small_pool.current, requested);
  ASSERT_EQ(stats.reserved_bytes.small_pool.current, static_cast<int64_t>(slabs * kSlabBytes));
  ASSERT_EQ(stats.inactive_split_bytes.small_pool.current, static_cast<int64_t>(slabs * kSlabBytes) - used);
  ASSERT_EQ(stats.cached_free_bytes, static_cast<int64_t>(in.pages.free_count() * kPageBytes));
}

TYPED_TEST(SlabHeapKinds, SlotsAndCountersAgreeWithWhatIsLive) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Slabs<TypeParam> in(6);
    Random random(seed);
    std::map<uint64_t, Block> blocks;
    for (int step = 0; step < 3000; ++step) {
      // Grows and shrinks in turns, so that slabs are opened and released all the time.
      const bool grows = step / 300 % 2 == 0;
      if (random() % 4 < (grows ? 3u : 1u)) {
        const uint32_t size_class =
            random() % 2 == 0 ? kClassCount - 1 - random() % 3 : random() % kClassCount;
        const uint64_t requested = 1 + random() % kClassBytes[size_class];
        const uint64_t va = in.take(size_class, requested);
        const auto [block, is_new] = blocks.insert({va, {size_class, requested}});
        ASSERT_TRUE(is_new);
        if (block != blocks.begin()) {
          const auto before = std::prev(block);
          ASSERT_LE(before->first + kClassBytes[before->second.size_class], va);
        }
        if (const auto after = std::next(block); after != blocks.end()) {
          ASSERT_LE(va + kClassBytes[size_class], after->first);
        }
        ASSERT_EQ(in.slab_of(va).size_class, size_class);
        ASSERT_EQ(in.slab_of(va).requested[in.slab_of(va).slot_at(va)], requested);
      } else if (!blocks.empty()) {
        const auto gone = std::next(blocks.begin(), static_cast<ptrdiff_t>(random() % blocks.size()));
        in.give(gone->first);
        blocks.erase(gone);
      }
      if (step % 5 == 0) expect_same(in, blocks);
      if (this->HasFatalFailure()) FAIL() << "seed " << seed << ", step " << step;
    }
    for (const auto& [va, block] : blocks) in.give(va);
    expect_same(in, {});
    const size_t empty = in.slabs.empty_ranges().size();
    EXPECT_GT(empty, 0u);
    EXPECT_EQ(in.slabs.release_empty(), empty);
    EXPECT_EQ(in.slabs.release_empty(), 0u);
    expect_same(in, {});
    EXPECT_EQ(in.pages.free_count(), 6u);
  }
}

TYPED_TEST(SlabHeapKinds, ALoneSlotDoesNotOpenAndReleaseItsSlabAgainAndAgain) {
  Slabs<TypeParam> in(1);
  const uint64_t va = in.take(3, 100);
  for (int round = 0; round < 3; ++round) {
    in.give(va);
    EXPECT_EQ(in.pages.free_count(), 0u);
    ASSERT_NE(in.slabs.with_room(3), nullptr);
    EXPECT_TRUE(in.slabs.is_empty(3, *in.slabs.with_room(3)));
    EXPECT_EQ(in.take(3, 100), va);
    EXPECT_FALSE(in.slabs.is_empty(3, *in.slabs.with_room(3)));
  }
  // While another has room it goes at once.
  in.open(3);
  EXPECT_EQ(in.open_slabs(3).size(), 2u);
  in.give(va);
  EXPECT_EQ(in.open_slabs(3).size(), 1u);
}

TYPED_TEST(SlabHeapKinds, AReleasedSlabsMemoryIsUsedUntilTheEpochOfItsRelease) {
  Slabs<TypeParam> in(1);
  in.give(in.take(0, 512));
  in.timeline.end_wait(in.timeline.begin_wait());
  const PageId page = pages_of(*in.slabs.empty_ranges().front()).front();
  EXPECT_EQ(in.slabs.release_empty(), 1u);
  EXPECT_TRUE(in.pages.is_free(page));
  EXPECT_EQ(in.pages.last_use(page), in.timeline.epoch());
}

TYPED_TEST(SlabHeapKinds, ASlotThatWaitedForStreamsIsCountedUntilItsEnd) {
  Slabs<TypeParam> in(1);
  const uint64_t va = in.take(1, 700);
  Slab& slab = in.slab_of(va);
  const uint32_t slot = slab.slot_at(va);
  Slab::set(slab.pending_slots, slot);
  in.counters.on_free_requested(SizePool::kSmall, slab.slot_bytes(), 700, va);
  EXPECT_EQ(in.of.counters.snapshot().pending_bytes, 1024);
  EXPECT_FALSE(slab.is_live(slot));
  Slab::clear(slab.pending_slots, slot);
  in.counters.on_free_completed(SizePool::kSmall, 700, slab.slot_bytes(), 0, 0, va);
  in.slabs.give_slot(slab, slot);
  const DeviceStats stats = in.of.counters.snapshot();
  EXPECT_EQ(stats.pending_bytes, 0);
  EXPECT_EQ(stats.pending_blocks, 0);
  EXPECT_EQ(stats.active_bytes.all.current, 0);
}

TYPED_TEST(SlabHeapKinds, WhatWasLiveInASavedSlabIsLiveAgain) {
  Slabs<TypeParam> in(1);
  std::vector<uint64_t> blocks;
  for (uint64_t i = 0; i < 6; ++i) blocks.push_back(in.take(4, 2100 + i));
  Slab& slab = in.slab_of(blocks[0]);
  const Slab saved = slab;
  for (const size_t gone : {1u, 3u, 5u}) in.give(blocks[gone]);
  slab.requested[slab.slot_at(blocks[2])] = 2000;
  in.slabs.restore(slab, saved);
  for (uint64_t i = 0; i < 6; ++i) {
    const uint32_t slot = slab.slot_at(blocks[i]);
    EXPECT_TRUE(slab.is_live(slot));
    EXPECT_EQ(slab.requested[slot], 2100 + i);
  }
  EXPECT_EQ(slab.used, 6);
  EXPECT_EQ(in.of.counters.snapshot().active_bytes.small_pool.current, int64_t{6 * 2560});
  EXPECT_EQ(in.slabs.with_room(4), &slab);
  for (const uint64_t va : blocks) in.give(va);
  EXPECT_EQ(in.of.counters.snapshot().active.all.current, 0);
}

TYPED_TEST(SlabHeapKinds, ASavedSlabThatWasFullIsFullAgain) {
  Slabs<TypeParam> in(1);
  const uint32_t size_class = kClassCount - 1;
  std::vector<uint64_t> blocks;
  for (uint32_t i = 0; i < slots_of_class(size_class); ++i) blocks.push_back(in.take(size_class, 16384));
  Slab& slab = in.slab_of(blocks[0]);
  ASSERT_TRUE(slab.full());
  EXPECT_EQ(in.slabs.with_room(size_class), nullptr);
  const Slab saved = slab;
  for (const uint64_t va : blocks) in.give(va);
  EXPECT_TRUE(in.slabs.is_empty(slab.size_class, slab));
  in.slabs.restore(slab, saved);
  EXPECT_TRUE(slab.full());
  EXPECT_FALSE(in.slabs.is_empty(slab.size_class, slab));
  EXPECT_EQ(in.slabs.with_room(size_class), nullptr);
}

TYPED_TEST(SlabHeapKinds, RoomForSlabsIsMadeBeforehand) {
  Slabs<TypeParam> in(1);
  in.slabs.reserve(5);
  const uint64_t reserved = in.slabs.metadata_bytes();
  EXPECT_EQ(reserved, 5 * sizeof(Slab));
  for (uint32_t size_class = 0; size_class < 5; ++size_class) in.open(size_class);
  EXPECT_EQ(in.slabs.metadata_bytes(), reserved);
  in.open(5);
  EXPECT_GT(in.slabs.metadata_bytes(), reserved);
}

TYPED_TEST(SlabHeapKinds, AnAddressInASlabLeadsToIt) {
  Slabs<TypeParam> in(1);
  const CachedRange& range = in.open(0);
  for (uint64_t va = range.va; va < range.va + kSlabBytes; va += kQuantumBytes)
    ASSERT_EQ(AddressMap::instance().find(va), &range);
  EXPECT_NE(AddressMap::instance().find(range.va + kSlabBytes), &range);
}

}  // namespace
}  // namespace spillway::test
