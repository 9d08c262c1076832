// Free pages against a map of every byte, in programs drawn at random.

#include <algorithm>
#include <bitset>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "allocator/free_pages.h"
#include "tests/support/free_ranges.h"
#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

// Knows which bytes of which pages are used, one flag for each quantum.
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
  // Tells whether the range is where its bytes are now, and nobody uses them.
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
        random_(seed) {}

  void step() SPW_REQUIRES(kArenaLock) {
    const uint32_t what = random_() % 20;
    if (what < 8) {
      random_() % 3 == 0 ? take_closely(random_request()) : take_any(random_request());
    } else if (what < 15) {
      give_any();
    } else if (what < 17) {
      take_remembered();
    } else if (what < 18) {
      if (model.owned() < 20) add_pages(1 + random_() % 4);
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
    switch (random_() % 4) {
      case 0:
        request.quanta = 1 + random_() % 200;
        if (random_() % 2 == 0) request = Request::for_slab(3);
        break;
      case 1:
        request.quanta = 1 + random_() % kPageQuanta;
        break;
      case 2:
        request.quanta = (1 + random_() % 3) * kPageQuanta;
        break;
      default:
        request.quanta = 1 + random_() % (4 * kPageQuanta);
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

  // A close fit is found wherever a request fits in a row, and lies where bytes are free: take_layout()
  // checks.
  void take_closely(const Request& request) {
    const std::optional<Layout> layout = pages.find_close_fit(request);
    if (request.align_quanta == 1 && request.quanta >= kPageQuanta) {
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
    std::swap(live_[random_() % live_.size()], live_.back());
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
    CachedRange& range = *ranges_[random_() % ranges_.size()];
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
    pages.choose_free(1 + random_() % 4, free);
    const auto goes = [&](PageId id) {
      return model.is_free(id) && (!Kind::kHasViews || std::find(free.begin(), free.end(), id) != free.end());
    };
    if constexpr (!Kind::kHasViews) {
      if (random_() % 4 != 0) return;
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

  Random random_;
  std::vector<std::unique_ptr<CachedRange>> ranges_;
  std::vector<CachedRange*> live_;
  std::map<PageId, uint64_t> freed_at_;
  uint64_t epoch_ = 0;
};

template <typename Kind>
class FreePagesModel : public testing::Test {};
TYPED_TEST_SUITE(FreePagesModel, StoreKinds, KindName);

TYPED_TEST(FreePagesModel, AgreeWithAByteMap) {
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

}  // namespace
}  // namespace spillway::test
