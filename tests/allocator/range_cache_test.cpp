#include "allocator/range_cache.h"

#include <array>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "allocator/address_map.h"
#include "allocator/sequence_predictor.h"
#include "tests/support/page_stores.h"
#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

// Nothing here is ever used: addresses and numbers of pages are made up.
constexpr uint64_t kBase = uint64_t{121} << 33;
// A heap remembers so many ranges.
constexpr uint32_t kMostRanges = 1u << 15;
constexpr uint32_t kFirstQuanta = 99;

class RangeCacheTest : public testing::Test {
 protected:
  RangeCacheTest() : heap(of.heap()), cache(std::make_unique<RangeCache>()) {}

  // A whole page.
  CachedRange& make(PageId page, uint32_t quanta = kPageQuanta, View* view = nullptr,
                    bool keeps_views = false) {
    Layout layout;
    layout.va = kBase + page * kPageBytes;
    layout.view = view;
    layout.runs = RunList(PageRun{page, 1});
    return cache->make(*heap, quanta, std::move(layout), {.keeps_views = keeps_views});
  }
  // With live ranges, of which the first to be looked at have a size of their own.
  void fill() {
    for (PageId page = 0; page < kMostRanges; ++page) {
      made.push_back(&make(page, page < 64 ? kFirstQuanta : kPageQuanta));
      made.back()->last_use = 1000;
      made.back()->state = BlockState::kLive;
    }
  }
  const CachedRange* any_of_size(uint32_t quanta) const {
    return cache->best_of_size(
        quanta, [] { return SequencePredictor::kNever; }, [](const CachedRange&) { return true; });
  }

  StoreOf<VirtualMemory> of;
  std::unique_ptr<Heap> heap;
  std::unique_ptr<RangeCache> cache;
  std::vector<CachedRange*> made;
};

TEST_F(RangeCacheTest, ARangeIsAsItsLayoutSays) {
  View view;
  view.generation = 9;
  Layout layout;
  layout.va = kBase + 512;
  layout.view = &view;
  layout.head_page = 3;
  layout.head_begin = 1;
  layout.head_end = kPageQuanta;
  layout.runs.assign({{7, 2}, {4, 1}});
  layout.tail_page = 12;
  layout.tail_end = 5;
  const uint32_t quanta = 4 * kPageQuanta + 4;
  const CachedRange& range = cache->make(*heap, quanta, std::move(layout), {});
  EXPECT_EQ(range.va, kBase + 512);
  EXPECT_EQ(range.quanta, quanta);
  EXPECT_EQ(range.heap, heap.get());
  EXPECT_EQ(range.state, BlockState::kFree);
  EXPECT_EQ(range.view_generation, 9u);
  EXPECT_FALSE(is_lost(range));
  EXPECT_EQ(pages_of(range), (std::vector<PageId>{3, 7, 8, 4, 12}));
  EXPECT_EQ(range.head_begin, 1);
  EXPECT_EQ(range.tail_end, 5);
}

// The one that nobody expects soon and that was used last, else the one expected last; by looking at all.
TEST_F(RangeCacheTest, TheBestOfASizeIsTheBestOfAllThatServe) {
  Random random(5);
  constexpr uint64_t kMarked = 5000;
  const std::array<uint32_t, 3> sizes = {1, kPageQuanta, 3 * kPageQuanta};
  for (PageId page = 0; page < 200; ++page) made.push_back(&make(page, sizes[page % 3]));
  for (int round = 0; round < 2000; ++round) {
    CachedRange& changed = *made[random() % made.size()];
    // No two have the same.
    changed.last_use = uint64_t{random() % 5000} * 1000 + changed.va % 997;
    changed.expected_at = kMarked - 300 + random() % 800;
    changed.state = static_cast<BlockState>(random() % 3);
    const uint32_t quanta = sizes[random() % 3];
    const uint32_t modulus = 1 + random() % 4;
    const auto serves = [&](const CachedRange& range) { return range.va / kPageBytes % modulus == 0; };
    const auto is_expected = [&](const CachedRange& range) {
      return range.expected_at >= kMarked && range.expected_at < kMarked + SequencePredictor::kHorizon;
    };
    std::pair<bool, uint64_t> highest;
    bool any = false;
    for (const CachedRange* range : made) {
      if (range->quanta != quanta || range->state != BlockState::kFree || !serves(*range)) continue;
      const bool expected = is_expected(*range);
      const std::pair rank(!expected, expected ? range->expected_at : range->last_use);
      if (!any || rank > highest) highest = rank;
      any = true;
    }
    const CachedRange* best = cache->best_of_size(
        quanta, [] { return kMarked; }, serves);
    ASSERT_EQ(best != nullptr, any);
    if (!any) continue;
    ASSERT_EQ(best->quanta, quanta);
    ASSERT_EQ(best->state, BlockState::kFree);
    ASSERT_TRUE(serves(*best));
    const bool expected = is_expected(*best);
    ASSERT_EQ(std::pair(!expected, expected ? best->expected_at : best->last_use), highest);
  }
}

TEST_F(RangeCacheTest, OfASizeThatNeverWasThereIsNone) {
  make(1);
  EXPECT_EQ(any_of_size(kPageQuanta + 1), nullptr);
  EXPECT_NE(any_of_size(kPageQuanta), nullptr);
}

TEST_F(RangeCacheTest, AFullCacheRecyclesAFreeRangeThatWasUsedLongAgo) {
  fill();
  const uint64_t full = cache->metadata_bytes();
  made[7]->state = made[9]->state = made[11]->state = BlockState::kFree;
  made[7]->last_use = 5;
  made[9]->last_use = 3;
  made[11]->last_use = 4;
  AddressMap& map = AddressMap::instance();
  ASSERT_TRUE(map.set(made[9]->va, 1, made[9]));
  const uint64_t old_va = made[9]->va;
  const CachedRange& recycled = make(kMostRanges, 77);
  EXPECT_EQ(&recycled, made[9]);
  EXPECT_EQ(recycled.generation, 1u) << "who remembers it can tell";
  EXPECT_EQ(recycled.quanta, 77u);
  EXPECT_EQ(map.find(old_va), nullptr);
  EXPECT_EQ(any_of_size(77), &recycled);
  // Those of its old size are found past it.
  made[9]->last_use = 5000;
  EXPECT_EQ(any_of_size(kFirstQuanta), made[7]);
  made[7]->state = BlockState::kLive;
  EXPECT_EQ(any_of_size(kFirstQuanta), made[11]);
  made[11]->state = BlockState::kLive;
  EXPECT_EQ(any_of_size(kFirstQuanta), nullptr);
  // The next turn of the clock comes to others, all of them live: then there is one more.
  const CachedRange& another = make(kMostRanges + 1, 78);
  EXPECT_EQ(another.generation, 0u);
  EXPECT_GT(cache->metadata_bytes(), full);
}

TEST_F(RangeCacheTest, ARangeWhoseViewIsGoneIsRecycledFirst) {
  fill();
  View view;
  for (const size_t at : {3u, 5u, 8u}) made[at]->state = BlockState::kFree;
  made[3]->last_use = 1;
  made[5]->view = &view;
  made[5]->view_generation = view.generation;
  view.lose_ranges();
  EXPECT_EQ(&make(kMostRanges), made[5]);
}

TEST_F(RangeCacheTest, RangesInViewsAndSavedOnesAreKeptWhereTheyMustBe) {
  fill();
  View view;
  for (const size_t at : {3u, 5u, 8u}) {
    made[at]->state = BlockState::kFree;
    made[at]->last_use = at;
  }
  made[3]->view = &view;
  made[5]->is_saved = true;
  EXPECT_EQ(&make(kMostRanges, 77, nullptr, true), made[8]);
  // Otherwise they are as any others; the clock has to come around.
  for (CachedRange* range : made) range->state = BlockState::kFree;
  made[64 + 3]->last_use = 3;
  made[64 + 3]->view = &view;
  EXPECT_EQ(&make(kMostRanges + 1), made[64 + 3]);
}

TEST_F(RangeCacheTest, TellsThePagesThatItsPoolUsed) {
  std::unordered_set<PageId> pages;
  make(1).last_use = 10;
  make(2).last_use = 20;
  EXPECT_FALSE(cache->list_pages_of_pool(pages)) << "since when is not known";
  cache->serve_pool_since(20);
  make(3).last_use = 30;
  EXPECT_TRUE(cache->list_pages_of_pool(pages));
  EXPECT_EQ(pages, (std::unordered_set<PageId>{2, 3}));
}

TEST_F(RangeCacheTest, WhatItsPoolUsedIsNotKnownOnceARangeOfItIsRecycled) {
  fill();
  cache->serve_pool_since(1);
  made[0]->state = BlockState::kFree;
  std::unordered_set<PageId> pages;
  EXPECT_TRUE(cache->list_pages_of_pool(pages));
  EXPECT_EQ(pages.size(), kMostRanges);
  make(kMostRanges, kPageQuanta, nullptr, true);
  EXPECT_FALSE(cache->list_pages_of_pool(pages));
}

TEST_F(RangeCacheTest, LeavesNoAddressBehind) {
  AddressMap& map = AddressMap::instance();
  CachedRange& block = make(1);
  CachedRange& slab = make(2, kSlabQuanta);
  ASSERT_TRUE(map.set(block.va, 1, &block));
  ASSERT_TRUE(map.set(slab.va, kSlabBytes / kGranuleBytes, &slab));
  // What another block has by now stays.
  CachedRange other;
  CachedRange& gone = make(3);
  ASSERT_TRUE(map.set(gone.va, 1, &other));
  const uint64_t kept = gone.va;
  const uint64_t begin = block.va;
  cache.reset();
  for (uint64_t va = begin; va < kept; va += kGranuleBytes) ASSERT_EQ(map.find(va), nullptr);
  EXPECT_EQ(map.find(kept), &other);
  map.clear_if(kept, &other);
}

TEST_F(RangeCacheTest, OfASizeThatIsAskedForOftenTheNewestAreFound) {
  for (PageId page = 0; page < 3000; ++page) {
    made.push_back(&make(page));
    made.back()->state = BlockState::kLive;
  }
  made[3000 - 513]->state = BlockState::kFree;
  EXPECT_EQ(any_of_size(kPageQuanta), nullptr) << "so many are not looked at";
  made[3000 - 512]->state = BlockState::kFree;
  EXPECT_EQ(any_of_size(kPageQuanta), made[3000 - 512]);
}

TEST_F(RangeCacheTest, AShortOneIsRecycledAsSoonAsItIsDead) {
  const auto make_short = [&](PageId page) {
    Layout layout;
    layout.va = kBase + page * kPageBytes;
    layout.runs = RunList(PageRun{page, 1});
    CachedRange& range =
        cache->make(*heap, kPageQuanta, std::move(layout), {.memory = RangeCache::Memory::kNone});
    range.state = BlockState::kLive;
    return &range;
  };
  std::unordered_set<CachedRange*> all;
  std::vector<CachedRange*> live;
  for (PageId page = 0; page < 3000; ++page) {
    live.push_back(make_short(page));
    all.insert(live.back());
    ASSERT_EQ(live.back()->va, kBase + page * kPageBytes);
    if (live.size() <= 100) continue;
    std::swap(live[page % 100], live.back());
    live.back()->state = BlockState::kFree;
    live.pop_back();
  }
  EXPECT_LE(all.size(), 256u) << "about twice as many as were ever live";
  EXPECT_EQ(any_of_size(kPageQuanta), nullptr) << "it is not looked for by its size";
  // Those that are remembered are recycled too, and then are not found any more.
  CachedRange& remembered = make(5000);
  EXPECT_EQ(any_of_size(kPageQuanta), &remembered);
  for (PageId page = 0; page < 600; ++page) make_short(6000 + page);
  EXPECT_EQ(any_of_size(kPageQuanta), nullptr);
}

TEST_F(RangeCacheTest, AShortOneTakesTheObjectThatIsEnteredAtItsAddress) {
  AddressMap& map = AddressMap::instance();
  const auto make_short = [&](uint64_t va, uint32_t quanta) -> CachedRange& {
    Layout layout;
    layout.va = va;
    layout.head_page = 0;
    layout.head_end = static_cast<uint16_t>(quanta);
    return cache->make(*heap, quanta, std::move(layout), {.memory = RangeCache::Memory::kNone});
  };
  CachedRange& first = make_short(kBase, 40);
  ASSERT_TRUE(map.set(first.va, 1, &first));
  const uint32_t generation = first.generation;
  CachedRange& again = make_short(kBase + 2 * kQuantumBytes, 50);
  EXPECT_EQ(&again, &first);
  EXPECT_NE(again.generation, generation);
  EXPECT_EQ(map.find(again.va), &again) << "where it was entered already";
  // Not while the block lives, nor that of a slab, which is entered at four places.
  again.state = BlockState::kLive;
  CachedRange& other = make_short(kBase + 4 * kQuantumBytes, 40);
  EXPECT_NE(&other, &again);
  again.state = BlockState::kFree;
  other.state = BlockState::kLive;
  CachedRange& slab = make_short(kBase + kPageBytes, kSlabQuanta);
  ASSERT_TRUE(map.set(slab.va, kSlabBytes / kGranuleBytes, &slab));
  slab.state = BlockState::kLive;
  again.state = BlockState::kLive;
  slab.state = BlockState::kFree;
  CachedRange& behind = make_short(kBase + kPageBytes + kGranuleBytes, 40);
  ASSERT_EQ(&behind, &slab) << "the only dead one";
  EXPECT_EQ(map.find(kBase + kPageBytes), nullptr) << "its other entries went";
}

}  // namespace
}  // namespace spillway::test
