#include "allocator/free_pages.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/free_ranges.h"

namespace spillway::test {
namespace {

template <typename Kind>
class FreePagesKinds : public testing::Test {};
TYPED_TEST_SUITE(FreePagesKinds, StoreKinds, KindName);

TYPED_TEST(FreePagesKinds, ThoseOfTheLongestRunsAreChosenFirst) {
  // Free: two pages, five, three.
  Row<TypeParam> row(12);
  row.use(2, 1);
  row.use(8, 1);
  using Numbers = std::vector<uint32_t>;
  EXPECT_EQ(row.chosen(0), Numbers());
  EXPECT_EQ(row.chosen(4), (Numbers{3, 4, 5, 6}));
  EXPECT_EQ(row.chosen(3), (Numbers{9, 10, 11})) << "the shortest run that suffices";
  EXPECT_EQ(row.chosen(2), (Numbers{0, 1}));
  EXPECT_EQ(row.chosen(7), (Numbers{3, 4, 5, 6, 7, 0, 1}));
  EXPECT_EQ(row.chosen(8), (Numbers{3, 4, 5, 6, 7, 9, 10, 11}));
  EXPECT_EQ(row.chosen(100).size(), 10u);
}

TYPED_TEST(FreePagesKinds, KnowUntilWhenEachWasUsed) {
  Row<TypeParam> row(200);
  EXPECT_EQ(row.pages.last_use(row.first), 0u) << "never";
  CachedRange early = range_of_pages(row.store, row.first, 1);
  CachedRange late = range_of_pages(row.store, row.first + 150, 10);
  ASSERT_TRUE(row.pages.take(early));
  ASSERT_TRUE(row.pages.take(late));
  row.pages.give(early, 5);
  row.pages.give(late, 9);
  EXPECT_EQ(row.pages.last_use(row.first), 5u);
  EXPECT_EQ(row.pages.last_use(row.first + 159), 9u);
  // A page of which a part is still used is not free, and its end says nothing.
  CachedRange& one = row.use_piece(100, 0, 10);
  CachedRange& other = row.use_piece(100, 10, 20);
  row.pages.give(one, 11);
  row.pages.give(other, 12);
  EXPECT_EQ(row.pages.last_use(row.first + 100), 12u);
  row.pages.stamp_all(20);
  EXPECT_EQ(row.pages.last_use(row.first), 20u);
  EXPECT_EQ(row.pages.last_use(row.first + 199), 20u);
}

TYPED_TEST(FreePagesKinds, MoveFromOneHeapToAnother) {
  Row<TypeParam> row(8);
  const auto other = row.of.heap();
  FreePages receiver(row.store, *other, BlockGrain::kQuantum);
  row.use(0, 1);
  CachedRange& rest = row.use_piece(1, 0, 100);
  row.pages.give(rest, 3);
  const PageId moved = row.first + 1;
  receiver.receive(row.pages, {moved, moved + 2}, 17);
  for (const PageId id : {moved, moved + 2}) row.store.page(id).owner.store(other.get());
  EXPECT_EQ(row.pages.owned(), 6u);
  EXPECT_EQ(row.pages.free_count(), 5u);
  EXPECT_EQ(receiver.owned(), 2u);
  EXPECT_EQ(receiver.free_count(), 2u);
  EXPECT_FALSE(row.pages.is_free(moved));
  EXPECT_TRUE(receiver.is_free(moved));
  EXPECT_EQ(receiver.last_use(moved), 17u);
  // A range of the first heap over pages that are not its any more: it misses those.
  const CachedRange over = range_of_pages(row.store, row.first + 1, 3);
  EXPECT_FALSE(row.pages.fits(over));
  std::vector<PageId> missing;
  row.pages.list_missing(over, missing);
  EXPECT_EQ(missing, (std::vector<PageId>{moved, moved + 2}));
  EXPECT_FALSE(row.pages.fits(piece(row.store, moved, 0, 100)));
  EXPECT_TRUE(receiver.find_fragment({100, 1}) == std::nullopt);
  EXPECT_TRUE(receiver.find_hole({100, 1}, false).has_value());
}

TYPED_TEST(FreePagesKinds, ARangeThatIsNotFreeMissesNothing) {
  Row<TypeParam> row(3);
  CachedRange range = range_of_pages(row.store, row.first, 2);
  ASSERT_TRUE(row.pages.take(range));
  const CachedRange over = range_of_pages(row.store, row.first + 1, 2);
  std::vector<PageId> missing;
  row.pages.list_missing(over, missing);
  EXPECT_EQ(missing, std::vector<PageId>{row.first + 1});
  row.pages.list_missing(range, missing);
  EXPECT_TRUE(missing.empty());
}

TYPED_TEST(FreePagesKinds, ASmallBlockIsCutFromTheSmallestPieceThatHoldsIt) {
  Row<TypeParam> row(3);
  row.use_piece(0, 300, kPageQuanta);      // the first 300 quanta are free
  row.use_piece(1, 0, kPageQuanta - 200);  // the last 200
  CachedRange& hole = row.use_piece(2, 0, kPageQuanta);
  CachedRange rest_before = piece(row.store, row.first + 2, 0, 1000);
  CachedRange rest_behind = piece(row.store, row.first + 2, 1100, kPageQuanta);
  row.pages.give(hole, 1);
  ASSERT_TRUE(row.pages.take(rest_before));
  ASSERT_TRUE(row.pages.take(rest_behind));
  const auto begin_of = [&](uint32_t quanta) {
    const std::optional<Layout> found = row.pages.find_fragment({quanta, 1});
    return found.has_value() ? std::pair{found->head_page - row.first, uint32_t{found->head_begin}}
                             : std::pair{kNoPage, 0u};
  };
  EXPECT_EQ(begin_of(100), (std::pair{PageId{2}, 1000u}));
  EXPECT_EQ(begin_of(150), (std::pair{PageId{1}, kPageQuanta - 200}));
  EXPECT_EQ(begin_of(250), (std::pair{PageId{0}, 50u})) << "what remains stays a prefix";
  EXPECT_EQ(begin_of(301).first, kNoPage);
  // Slabs may begin at multiples of 32 quanta.
  const std::optional<Layout> slab = row.pages.find_fragment(Request::for_slab(0));
  ASSERT_TRUE(slab.has_value());
  EXPECT_EQ(slab->va % kGranuleBytes, 0u);
  EXPECT_EQ(slab->head_end - slab->head_begin, static_cast<int>(kSlabQuanta));
}

TYPED_TEST(FreePagesKinds, BlocksOfWholePagesShareNoneOfThem) {
  Row<TypeParam> row(6, BlockGrain::kPage);
  row.use_piece(0, 0, 100);
  row.use_piece(3, 0, 100);
  const std::optional<Layout> two = row.pages.find_hole({2 * kPageQuanta, 1}, false);
  ASSERT_TRUE(two.has_value());
  EXPECT_EQ(two->head_page, kNoPage);
  EXPECT_EQ(two->tail_page, kNoPage);
  EXPECT_EQ(row.pages.find_hole({3 * kPageQuanta, 1}, false), std::nullopt);
  // Smaller ones do.
  const std::optional<Layout> less = row.pages.find_hole({200, 1}, false);
  ASSERT_TRUE(less.has_value());
  EXPECT_EQ(less->head_page, row.first);
}

TYPED_TEST(FreePagesKinds, ABlockOfAWholeSegmentTakesTheSmallestThatIsNotMuchLarger) {
  StoreOf<TypeParam> of;
  const auto owner = of.heap(nullptr, BlockGrain::kSegment);
  FreePages pages(of.store(), *owner, BlockGrain::kSegment);
  const ArenaLock lock(of.mutex);
  std::map<uint32_t, PageId> given;
  for (const uint32_t count : {9u, 3u, 5u}) {
    given[count] = of.must_give(count, owner.get());
    pages.add(given[count], count);
    if (TypeParam::kHasViews) of.must_give(1, nullptr);  // between two
  }
  const auto found = [&](uint32_t quanta) {
    const std::optional<PageRun> run = pages.find_segment({quanta, 1});
    return run.has_value() ? std::pair{run->first, run->count} : std::pair{kNoPage, 0u};
  };
  EXPECT_EQ(found(2 * kPageQuanta), (std::pair{given[3], 3u}));
  EXPECT_EQ(found(2 * kPageQuanta + 1), (std::pair{given[3], 3u}));
  EXPECT_EQ(found(4 * kPageQuanta), (std::pair{given[5], 5u}));
  EXPECT_EQ(found(6 * kPageQuanta), (std::pair{given[9], 9u}));
  EXPECT_EQ(found(10 * kPageQuanta).first, kNoPage);
  EXPECT_EQ(found(kPageQuanta).first, kNoPage) << "three pages are more than twice as many as one";
}

TYPED_TEST(FreePagesKinds, AFrugalSearchBreaksNoPageWhileFewAreFree) {
  Row<TypeParam> row(20);
  row.use(0, 17);
  const Request broken{2 * kPageQuanta + 10, 1};
  EXPECT_EQ(row.pages.find_hole(broken, true), std::nullopt);
  EXPECT_TRUE(row.pages.find_hole({2 * kPageQuanta, 1}, true).has_value()) << "no page is broken";
  EXPECT_TRUE(row.pages.find_hole(broken, false).has_value());
  row.pages.break_pages(true);
  EXPECT_TRUE(row.pages.find_hole(broken, true).has_value()) << "until hardly any page is free";
  row.pages.break_pages(false);
  row.pages.give(*row.ranges.front(), 1);
  EXPECT_TRUE(row.pages.find_hole(broken, true).has_value()) << "many are free";
}

// ---- Segments whose numbers serve again

TEST(FreePagesOfSegments, ARangeOfASegmentThatIsGoneDoesNotFit) {
  StoreOf<SourcedSegments> of;
  const auto owner = of.heap();
  PageStore& store = of.store();
  FreePages pages(store, *owner, BlockGrain::kQuantum);
  const ArenaLock lock(of.mutex);
  // Nobody touches this memory.
  const auto nowhere = [](uint64_t tib) {
    return SegmentMemory{reinterpret_cast<void*>(tib << 40), 4 * kPageBytes};
  };
  PageId first = kNoPage;
  SPW_EXPECT_OK(store.add_segment(nowhere(1), 4, owner.get(), &first));
  pages.add(first, 4);
  std::vector<CachedRange> ranges;
  ranges.push_back(range_of_pages(store, first, 2));
  ranges.push_back(piece(store, first + 1, 10, 20));
  ranges.push_back(range_at(kPageQuanta + 5, pages.lay_out_at_home(kPageQuanta + 5, kNoPage, 0, first + 2)));
  ranges.push_back(range_at(7, pages.lay_out_at_home(7, kNoPage, 0, first)));
  for (const CachedRange& range : ranges) EXPECT_TRUE(pages.fits(range));
  pages.drop(first, 4);
  (void)store.take_segments([](PageId) { return true; }, [](PageId) {});
  for (const CachedRange& range : ranges) EXPECT_FALSE(pages.fits(range));
  PageId again = kNoPage;
  SPW_EXPECT_OK(store.add_segment(nowhere(2), 4, owner.get(), &again));
  ASSERT_EQ(again, first);
  pages.add(first, 4);
  for (CachedRange& range : ranges) {
    EXPECT_FALSE(pages.fits(range));
    EXPECT_FALSE(pages.take(range));
  }
  EXPECT_EQ(pages.free_count(), 4u);
  // The same memory once more.
  pages.drop(first, 4);
  (void)store.take_segments([](PageId) { return true; }, [](PageId) {});
  SPW_EXPECT_OK(store.add_segment(nowhere(1), 4, owner.get(), &again));
  pages.add(first, 4);
  for (const CachedRange& range : ranges) EXPECT_TRUE(pages.fits(range));
}

TEST(FreePagesOfSegments, APlanIsOneSegment) {
  Row<Segments> row(1);
  const ArenaLock lock(row.of.mutex);
  const Plan plan = row.pages.plan({2 * kPageQuanta + 1, 1}, 0);
  EXPECT_EQ(plan.kind, Plan::Kind::kSegment);
  EXPECT_EQ(plan.new_pages, 3u);
}

TEST(FreePagesOfSegments, ARangeOfASegmentThatIsGoneMissesNothing) {
  StoreOf<SourcedSegments> of;
  const auto owner = of.heap();
  const auto other = of.heap();
  PageStore& store = of.store();
  FreePages pages(store, *owner, BlockGrain::kQuantum);
  const ArenaLock lock(of.mutex);
  const SegmentMemory before{reinterpret_cast<void*>(uint64_t{1} << 40), 2 * kPageBytes};
  const SegmentMemory after{reinterpret_cast<void*>(uint64_t{2} << 40), 2 * kPageBytes};
  PageId first = kNoPage;
  SPW_EXPECT_OK(store.add_segment(before, 2, owner.get(), &first));
  pages.add(first, 2);
  CachedRange range;
  range.va = store.page(first).va;
  range.quanta = 2 * kPageQuanta;
  range.runs = RunList(PageRun{first, 2});
  pages.drop(first, 2);
  (void)store.take_segments([](PageId) { return true; }, [](PageId) {});
  // Another heap's segment by the same numbers, at other addresses.
  SPW_EXPECT_OK(store.add_segment(after, 2, other.get(), &first));
  EXPECT_FALSE(pages.fits(range));
  std::vector<PageId> missing;
  pages.list_missing(range, missing);
  EXPECT_TRUE(missing.empty()) << "it could not be taken even with those pages";
}

TEST(FreePagesClosely, FragmentsAreTheLowestUpTo128KiBAndElseTheSmallest) {
  Row<VirtualMemory> row(8);
  row.use_piece(1, 0, 3000);
  row.use_piece(2, 0, kPageQuanta - 100);
  row.use_piece(3, 0, kPageQuanta - 300);
  const auto place_of = [&](const Request& request) {
    const std::optional<Layout> layout = row.pages.find_low_fragment(request);
    return layout.has_value() ? (layout->va - row.store.page(row.first).va) / kQuantumBytes : ~uint64_t{0};
  };
  EXPECT_EQ(place_of({100, 1}), kPageQuanta + 3000);
  EXPECT_EQ(place_of({256, 1}), kPageQuanta + 3000);
  EXPECT_EQ(place_of({257, 1}), 3 * kPageQuanta + kPageQuanta - 300);
  row.use_piece(1, 3000, kPageQuanta);
  row.use_piece(2, kPageQuanta - 100, kPageQuanta);
  row.use_piece(3, kPageQuanta - 300, kPageQuanta);
  EXPECT_EQ(place_of({100, 1}), ~uint64_t{0}) << "only a hole would do";
  // The end of a page begins at a multiple of any alignment: as much as a slab needs is enough there.
  row.use_piece(5, 0, kPageQuanta - 140);
  EXPECT_EQ(place_of(Request::for_slab(0)), 5 * kPageQuanta + kPageQuanta - kSlabQuanta);
}

// Small blocks lie low, larger ones where least is left over.
TEST(FreePagesClosely, SmallOnesLieLowAndLargeOnesWhereLeastIsLeft) {
  Row<VirtualMemory> row(40);
  row.use(0, 4);
  row.use(6, 1);   // behind a hole of two pages
  row.use(12, 1);  // of five
  row.use_piece(20, 1000, kPageQuanta);
  row.use_piece(21, 0, 3000);
  const auto place_of = [&](const Request& request) {
    const std::optional<Layout> layout = row.pages.find_close_fit(request);
    return layout.has_value() ? (layout->va - row.store.page(row.first).va) / kQuantumBytes : ~uint64_t{0};
  };
  EXPECT_EQ(place_of({2 * kPageQuanta, 1}), 4 * kPageQuanta);
  EXPECT_EQ(place_of({2 * kPageQuanta + 1, 1}), 7 * kPageQuanta);
  EXPECT_EQ(place_of({7 * kPageQuanta + 900, 1}), 13 * kPageQuanta) << "seven pages and the beginning of one";
  EXPECT_EQ(place_of({18 * kPageQuanta + 1000, 1}), 21 * kPageQuanta + 3000) << "from the end of a page on";
  EXPECT_EQ(place_of({19 * kPageQuanta, 1}), ~uint64_t{0}) << "in a row there is less";
  // Below 256 KiB: what remains of a beginning goes on being one; for a slab at a multiple of 16 KiB.
  EXPECT_EQ(place_of({100, 1}), 20 * kPageQuanta + 900);
  EXPECT_EQ(place_of(Request::for_slab(0)), 20 * kPageQuanta + 864);
  row.use_piece(20, 0, 1000);
  EXPECT_EQ(place_of({100, 1}), 21 * kPageQuanta + 3000);
  row.use_piece(21, 3000, kPageQuanta);
  EXPECT_EQ(place_of({100, 1}), 4 * kPageQuanta) << "the lowest free page";
  row.pages.forget_holes();
  EXPECT_EQ(place_of({2 * kPageQuanta, 1}), 4 * kPageQuanta) << "after a look at all";
}

}  // namespace
}  // namespace spillway::test
