#include "allocator/free_pages.h"

#include <algorithm>
#include <bitset>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/allocator/seeded.h"
#include "tests/allocator/stores.h"

namespace spillway::test {
namespace {

CachedRange range_at(uint32_t quanta, const Layout& layout) {
  CachedRange range;
  range.quanta = quanta;
  range.va = layout.va;
  range.view = layout.view;
  if (layout.view != nullptr) range.view_generation = layout.view->generation.load();
  range.head_page = layout.head_page;
  range.head_begin = layout.head_begin;
  range.head_end = layout.head_end;
  range.runs.assign({layout.runs.begin(), layout.runs.end()});
  range.tail_page = layout.tail_page;
  range.tail_end = layout.tail_end;
  return range;
}

// Whole pages in a row.
CachedRange range_of_pages(const PageStore& store, PageId first, uint32_t count) {
  Layout layout;
  layout.va = store.page(first).va;
  layout.runs = RunList(PageRun{first, count});
  return range_at(count * kPageQuanta, layout);
}

// A piece of one page.
CachedRange piece(const PageStore& store, PageId page, uint32_t begin, uint32_t end) {
  Layout layout;
  layout.va = store.page(page).va + begin * kQuantumBytes;
  layout.head_page = page;
  layout.head_begin = static_cast<uint16_t>(begin);
  layout.head_end = static_cast<uint16_t>(end);
  return range_at(end - begin, layout);
}

// Which bytes of which pages are used, one flag for each quantum.
class ByteMap {
 public:
  explicit ByteMap(const PageStore& store) : store_(store) {}

  void add(PageId first, uint32_t count) {
    for (PageId id = first; id < first + count; ++id) used_[id];
  }
  void drop(PageId page) { used_.erase(page); }
  void mark(const CachedRange& range, bool is_used) {
    for_each_piece(range, [&](PageId page, uint32_t begin, uint32_t end) {
      for (uint32_t quantum = begin; quantum < end; ++quantum) used_.at(page).set(quantum, is_used);
    });
  }

  size_t owned() const { return used_.size(); }
  bool is_free(PageId page) const { return used_.count(page) != 0 && used_.at(page).none(); }
  bool is_free(PageId page, uint32_t begin, uint32_t end) const {
    const auto found = used_.find(page);
    if (found == used_.end()) return false;
    for (uint32_t quantum = begin; quantum < end; ++quantum) {
      if (found->second.test(quantum)) return false;
    }
    return true;
  }
  uint32_t free_count() const {
    return static_cast<uint32_t>(
        std::count_if(used_.begin(), used_.end(), [](const auto& entry) { return entry.second.none(); }));
  }
  // Whether the range is where its bytes are now, and nobody uses them.
  bool fits(const CachedRange& range) const {
    if (is_lost(range)) return false;
    bool fits = true;
    uint64_t va = range.va;
    for_each_piece(range, [&](PageId page, uint32_t begin, uint32_t end) {
      fits = fits && is_free(page, begin, end) && (range.view != nullptr || va_of(page, begin) == va);
      va += (end - begin) * kQuantumBytes;
    });
    return fits;
  }
  std::set<PageId> missing(const CachedRange& range) const {
    std::set<PageId> missing;
    if (is_lost(range)) return missing;
    for_each_piece(range, [&](PageId page, uint32_t begin, uint32_t end) {
      if (!is_free(page, begin, end)) missing.insert(page);
    });
    return missing;
  }
  // Free pieces in partly used pages, of those that the range covers.
  int64_t fragments_around(const CachedRange& range) const {
    int64_t fragments = 0;
    for_each_piece(range, [&](PageId page, uint32_t, uint32_t) {
      const std::bitset<kPageQuanta>& used = used_.at(page);
      for (uint32_t quantum = 0; used.any() && quantum < kPageQuanta; ++quantum)
        fragments += !used.test(quantum) && (quantum == 0 || used.test(quantum - 1));
    });
    return fragments;
  }
  int64_t free_pages_under(const CachedRange& range) const {
    int64_t count = 0;
    for_each_piece(range, [&](PageId page, uint32_t, uint32_t) { count += is_free(page); });
    return count;
  }
  // The most free quanta in a row, over the borders of pages whose numbers follow each other.
  uint64_t longest_run() const {
    uint64_t longest = 0;
    uint64_t run = 0;
    PageId last = kNoPage;
    for (const auto& [page, used] : used_) {
      if (last == kNoPage || page != last + 1) run = 0;
      last = page;
      for (uint32_t quantum = 0; quantum < kPageQuanta; ++quantum) {
        run = used.test(quantum) ? 0 : run + 1;
        longest = std::max(longest, run);
      }
    }
    return longest;
  }
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& [page, used] : used_) visit(page);
  }

 private:
  uint64_t va_of(PageId page, uint32_t quantum) const {
    return store_.page(page).va + quantum * kQuantumBytes;
  }

  const PageStore& store_;
  std::map<PageId, std::bitset<kPageQuanta>> used_;
};

// The free pages of one heap beside the model of them, with all ranges that ever were.
template <typename Kind>
class Modelled {
 public:
  explicit Modelled(uint32_t seed)
      : of("capacity:1GiB,backing:none,races:off"),
        owner(of.heap()),
        store(of.store()),
        pages(store, *owner, BlockGrain::kQuantum),
        model(store),
        random(seed) {}

  void step() SPW_REQUIRES(kArenaLock) {
    const uint32_t what = random() % 20;
    if (what < 8) {
      take_any(random_request());
    } else if (what < 15) {
      give_any();
    } else if (what < 17) {
      take_remembered();
    } else if (what < 18) {
      if (model.owned() < 20) add_pages(1 + random() % 4);
    } else if (what < 19) {
      release_pages();
    } else if (Kind::kHasViews) {
      take_planned(random_request());
    }
    expect_same();
  }

  StoreOf<Kind> of;
  std::unique_ptr<Heap> owner;
  PageStore& store;
  FreePages pages;
  ByteMap model;
  int taken_in_views = 0;
  int found = 0;

 private:
  Request random_request() {
    Request request;
    switch (random() % 4) {
      case 0:
        request.quanta = 1 + random() % 200;
        if (random() % 2 == 0) request = Request::for_slab(3);
        break;
      case 1:
        request.quanta = 1 + random() % kPageQuanta;
        break;
      case 2:
        request.quanta = (1 + random() % 3) * kPageQuanta;
        break;
      default:
        request.quanta = 1 + random() % (4 * kPageQuanta);
    }
    return request;
  }

  void take_any(const Request& request) {
    std::optional<Layout> layout;
    if (request.quanta < kPageQuanta) layout = pages.find_fragment(request);
    if (!layout.has_value()) layout = pages.find_hole(request, false);
    if (request.align_quanta == 1) {
      ASSERT_EQ(layout.has_value(), model.longest_run() >= request.quanta) << request.quanta;
    }
    if (!layout.has_value()) return;
    ++found;
    ASSERT_EQ(layout->view, nullptr);
    take_layout(request, *layout);
  }

  void take_layout(const Request& request, const Layout& layout) {
    ranges_.push_back(std::make_unique<CachedRange>(range_at(request.quanta, layout)));
    CachedRange& range = *ranges_.back();
    uint64_t quanta = 0;
    for_each_piece(range, [&](PageId, uint32_t begin, uint32_t end) { quanta += end - begin; });
    ASSERT_EQ(quanta, request.quanta);
    ASSERT_EQ(range.va % (request.align_quanta * kQuantumBytes), 0u);
    ASSERT_TRUE(model.fits(range));
    take(range);
  }

  void take(CachedRange& range) {
    const bool fits = model.fits(range);
    ASSERT_EQ(pages.fits(range), fits);
    if (Kind::kHasViews) {
      std::vector<PageId> missing = {kNoPage};
      pages.list_missing(range, missing);
      ASSERT_EQ(std::set<PageId>(missing.begin(), missing.end()), model.missing(range));
    }
    if (!fits) {
      ASSERT_FALSE(pages.take(range));
      ASSERT_EQ(range.state, BlockState::kFree);
      return;
    }
    const int64_t free_before = model.free_pages_under(range);
    const int64_t fragments_before = model.fragments_around(range);
    ASSERT_TRUE(pages.take(range));
    model.mark(range, true);
    ASSERT_EQ(range.state, BlockState::kLive);
    ASSERT_FALSE(pages.fits(range));
    ASSERT_EQ(pages.taken().pages, free_before);
    ASSERT_EQ(pages.taken().fragments, model.fragments_around(range) - fragments_before);
    live_.push_back(&range);
  }

  void give_any() {
    if (live_.empty()) return;
    std::swap(live_[random() % live_.size()], live_.back());
    CachedRange& range = *live_.back();
    live_.pop_back();
    const int64_t fragments_before = model.fragments_around(range);
    model.mark(range, false);
    const FreePages::Change change = pages.give(range, ++epoch_);
    ASSERT_EQ(range.state, BlockState::kFree);
    ASSERT_EQ(change.pages, model.free_pages_under(range));
    ASSERT_EQ(change.fragments, model.fragments_around(range) - fragments_before);
    for_each_piece(range, [&](PageId page, uint32_t, uint32_t) {
      if (model.is_free(page)) freed_at_[page] = epoch_;
    });
  }

  void take_remembered() {
    if (ranges_.empty()) return;
    CachedRange& range = *ranges_[random() % ranges_.size()];
    if (range.state == BlockState::kFree) take(range);
  }

  void take_planned(const Request& request) SPW_REQUIRES(kArenaLock) {
    const Plan plan = pages.plan(request, 0);
    PageId first = kNoPage;
    if (plan.new_pages > 0) {
      // As the last page of a view may be half used, one more would be a waste.
      ASSERT_LE(plan.new_pages, bytes_to_pages(uint64_t{request.quanta} * kQuantumBytes));
      first = plan.kind == Plan::Kind::kExtend ? plan.first_new : store.find_unbacked(plan.new_pages);
      uint32_t created = 0;
      SPW_EXPECT_OK(store.create_pages(first, plan.new_pages, owner.get(), &created));
      pages.add(first, created);
      model.add(first, created);
    } else {
      ASSERT_EQ(plan.kind, Plan::Kind::kView);
    }
    Result<Layout> layout = pages.lay_out(request, plan, first);
    ASSERT_TRUE(layout.ok()) << layout.status().text();
    if (layout->view != nullptr) {
      ++taken_in_views;
      const View& view = *layout->view;
      const CachedRange range = range_at(request.quanta, layout.value());
      uint64_t va = range.va;
      for_each_piece(range, [&](PageId page, uint32_t begin, uint32_t end) {
        ASSERT_EQ(view.pages[(va - view.va) / kPageBytes], page);
        ASSERT_EQ(va % kPageBytes, begin * kQuantumBytes);
        va += (end - begin) * kQuantumBytes;
      });
    }
    take_layout(request, layout.value());
  }

  void add_pages(uint32_t count) SPW_REQUIRES(kArenaLock) {
    const PageId first = of.must_give(count, owner.get());
    pages.add(first, count);
    model.add(first, count);
  }

  void release_pages() SPW_REQUIRES(kArenaLock) {
    std::vector<PageId> free;
    pages.choose_free(1 + random() % 4, free);
    const auto goes = [&](PageId id) {
      return model.is_free(id) && (!Kind::kHasViews || std::find(free.begin(), free.end(), id) != free.end());
    };
    if constexpr (!Kind::kHasViews) {
      if (random() % 4 != 0) return;
    }
    std::vector<PageId> before;
    model.for_each([&](PageId id) { before.push_back(id); });
    // The page's place in the index of fragments is brought up to date before it goes.
    std::vector<PageId> gone;
    for (const PageId id : before) {
      if (goes(id)) gone.push_back(id);
    }
    if constexpr (!Kind::kHasViews) {
      // Only segments without a used byte: those are separated by numbers that nobody owns.
      std::erase_if(gone, [&](PageId id) {
        PageId first = id;
        while (std::binary_search(before.begin(), before.end(), first - 1)) --first;
        for (PageId page = first; std::binary_search(before.begin(), before.end(), page); ++page) {
          if (!goes(page)) return true;
        }
        return false;
      });
    }
    for (const PageId id : gone) {
      pages.drop(id, 1);
      model.drop(id);
      freed_at_.erase(id);
    }
    of.release([&](PageId id) { return std::find(gone.begin(), gone.end(), id) != gone.end(); });
  }

  void expect_same() {
    ASSERT_EQ(pages.owned(), model.owned());
    ASSERT_EQ(pages.free_count(), model.free_count());
    model.for_each([&](PageId id) {
      ASSERT_EQ(pages.is_free(id), model.is_free(id)) << id;
      ASSERT_TRUE(pages.owns(store.page(id)));
      // Never an earlier epoch than that of the free that left the page free.
      if (model.is_free(id) && freed_at_.count(id) != 0) {
        ASSERT_GE(pages.last_use(id), freed_at_[id]);
      }
    });
  }

  Random random;
  std::vector<std::unique_ptr<CachedRange>> ranges_;
  std::vector<CachedRange*> live_;
  std::map<PageId, uint64_t> freed_at_;
  uint64_t epoch_ = 0;
};

template <typename Kind>
class FreePagesKinds : public testing::Test {};
TYPED_TEST_SUITE(FreePagesKinds, StoreKinds, KindName);

TYPED_TEST(FreePagesKinds, AgreeWithAByteMap) {
  int found = 0;
  int taken_in_views = 0;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    Modelled<TypeParam> both(seed);
    const ArenaLock lock(both.of.mutex);
    for (int step = 0; step < 1200; ++step) {
      both.step();
      if (this->HasFatalFailure()) FAIL() << "seed " << seed << ", step " << step;
    }
    found += both.found;
    taken_in_views += both.taken_in_views;
  }
  EXPECT_GT(found, 300);
  EXPECT_EQ(taken_in_views > 50, TypeParam::kHasViews);
}

// Free pages of one heap, all of them in a row.
template <typename Kind>
struct Row {
  explicit Row(uint32_t count, BlockGrain grain = BlockGrain::kQuantum)
      : owner(of.heap()), store(of.store()), pages(store, *owner, grain) {
    const ArenaLock lock(of.mutex);
    first = of.must_give(count, owner.get());
    pages.add(first, count);
  }

  // From now on [at, at + count), counted from the first, are used.
  void use(uint32_t at, uint32_t count) {
    ranges.push_back(std::make_unique<CachedRange>(range_of_pages(store, first + at, count)));
    EXPECT_TRUE(pages.take(*ranges.back()));
  }
  CachedRange& use_piece(uint32_t at, uint32_t begin, uint32_t end) {
    ranges.push_back(std::make_unique<CachedRange>(piece(store, first + at, begin, end)));
    EXPECT_TRUE(pages.take(*ranges.back()));
    return *ranges.back();
  }
  std::vector<uint32_t> chosen(uint32_t most) const {
    std::vector<PageId> out;
    pages.choose_free(most, out);
    for (PageId& id : out) id -= first;
    return out;
  }

  StoreOf<Kind> of;
  std::unique_ptr<Heap> owner;
  PageStore& store;
  FreePages pages;
  PageId first = kNoPage;
  std::vector<std::unique_ptr<CachedRange>> ranges;
};

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
  // Where slabs may begin: at multiples of 32 quanta.
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

// ---- Views

TEST(FreePagesInViews, AViewJoinsScatteredPagesAndTheEndsOfOthers) {
  Row<VirtualMemory> row(6);
  row.use(0, 1);
  row.use_piece(2, 0, kPageQuanta - 300);  // its last 300 quanta are free
  row.use_piece(4, 500, kPageQuanta);      // its first 500
  const ArenaLock lock(row.of.mutex);
  // Pages 1, 3 and 5 are free, no two in a row.
  const Plan whole = row.pages.plan({3 * kPageQuanta, 1}, 0);
  EXPECT_EQ(whole.kind, Plan::Kind::kView);
  EXPECT_EQ(whole.new_pages, 0u);
  EXPECT_EQ(whole.full_pages, 3u);
  EXPECT_EQ(whole.head_page, kNoPage);
  const Plan with_ends = row.pages.plan({3 * kPageQuanta + 800, 1}, 0);
  EXPECT_EQ(with_ends.new_pages, 0u);
  EXPECT_EQ(with_ends.full_pages, 3u);
  EXPECT_EQ(with_ends.head_page, row.first + 2);
  EXPECT_EQ(with_ends.head_quanta, 300u);
  EXPECT_EQ(with_ends.tail_page, row.first + 4);
  EXPECT_EQ(with_ends.tail_quanta, 500u);
  EXPECT_EQ(row.pages.plan({3 * kPageQuanta + 801, 1}, 0).new_pages, 1u);
  // What begins at a multiple takes whole pages.
  EXPECT_EQ(row.pages.plan({3 * kPageQuanta + 800, 32}, 0).new_pages, 1u);
  Result<Layout> layout = row.pages.lay_out({3 * kPageQuanta + 800, 1}, with_ends, kNoPage);
  ASSERT_TRUE(layout.ok());
  ASSERT_NE(layout->view, nullptr);
  CachedRange range = range_at(3 * kPageQuanta + 800, layout.value());
  EXPECT_TRUE(row.pages.take(range));
  EXPECT_EQ(row.pages.free_count(), 0u);
  row.pages.give(range, 1);
  EXPECT_EQ(row.pages.free_count(), 3u);
  // The range is lost with a page of its view.
  row.pages.drop(row.first + 3, 1);
  SPW_EXPECT_OK(row.store.release_page(row.first + 3));
  row.of.must_give(1, row.owner.get());
  row.pages.add(row.first + 3, 1);
  EXPECT_FALSE(row.pages.fits(range));
  std::vector<PageId> missing = {0};
  row.pages.list_missing(range, missing);
  EXPECT_TRUE(missing.empty()) << "it could not be taken even so";
}

TEST(FreePagesInViews, ViewsThatThereAreServeAgain) {
  Row<VirtualMemory> row(8);
  const ArenaLock lock(row.of.mutex);
  std::vector<PageId> scattered;
  for (const uint32_t at : {7u, 5u, 3u, 1u}) scattered.push_back(row.first + at);
  Result<View*> view = row.store.map_view(scattered);
  ASSERT_TRUE(view.ok());
  const auto found = [&](uint32_t quanta, uint32_t most_pages, bool spare) SPW_REQUIRES(kArenaLock) {
    return row.pages.find_in_view({quanta, 1}, most_pages, spare);
  };
  EXPECT_EQ(found(3 * kPageQuanta, 100, false), std::nullopt) << "for a view of its own";
  EXPECT_EQ(found(kPageQuanta, 100, true), std::nullopt) << "for any free page";
  std::optional<Layout> layout = found(3 * kPageQuanta, 100, true);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->view, view.value());
  EXPECT_TRUE(row.pages.fits(range_at(3 * kPageQuanta, *layout)));
  EXPECT_EQ(found(3 * kPageQuanta, 2, true), std::nullopt) << "too many pages";
  EXPECT_EQ(found(5 * kPageQuanta, 100, true), std::nullopt);
  // The second slot is used in part: its end and the slots behind it remain.
  row.use_piece(5, 0, 100);
  layout = found(3 * kPageQuanta - 100, 100, true);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->head_page, row.first + 5);
  EXPECT_EQ(layout->va, view.value()->va + kPageBytes + 100 * kQuantumBytes);
  EXPECT_EQ(found(3 * kPageQuanta - 99, 100, true), std::nullopt);
  view.value()->retired = true;
  EXPECT_EQ(found(2 * kPageQuanta, 100, true), std::nullopt);
}

TEST(FreePagesInViews, ThePagesAtTheEndOfTheHomeViewAreExtended) {
  Row<VirtualMemory> row(6);
  row.use(0, 4);
  row.use_piece(4, 0, kPageQuanta - 50);
  const ArenaLock lock(row.of.mutex);
  // The last 50 quanta of a page, a free page, and new ones behind it.
  const Plan plan = row.pages.plan({3 * kPageQuanta + 50, 1}, 0);
  EXPECT_EQ(plan.kind, Plan::Kind::kExtend);
  EXPECT_EQ(plan.head_page, row.first + 4);
  EXPECT_EQ(plan.head_quanta, 50u);
  EXPECT_EQ(plan.first_page, row.first + 5);
  EXPECT_EQ(plan.first_new, row.first + 6);
  EXPECT_EQ(plan.new_pages, 2u);
  EXPECT_EQ(row.of.must_give(2, row.owner.get()), plan.first_new);
  row.pages.add(plan.first_new, 2);
  Result<Layout> layout = row.pages.lay_out({3 * kPageQuanta + 50, 1}, plan, plan.first_new);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->view, nullptr);
  CachedRange range = range_at(3 * kPageQuanta + 50, layout.value());
  EXPECT_TRUE(row.pages.take(range));
  EXPECT_EQ(row.pages.free_count(), 0u);
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

}  // namespace
}  // namespace spillway::test
