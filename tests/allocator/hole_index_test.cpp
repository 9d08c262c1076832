// The index against a look at every page, while pages and parts of them come free and are taken at random.
#include "allocator/hole_index.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/hole_search.h"
#include "tests/support/page_stores.h"
#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

// Some pages of a home view, of which every so many-th is another heap's.
class Home {
 public:
  Home(uint32_t count, const Heap* owner, const Heap* other, uint32_t others_every = 17)
      : pages(std::make_unique<Page[]>(count + 1)), free(count), count_(count), others_every_(others_every) {
    for (PageId id = 0; id < count; ++id) pages[id].owner = const_cast<Heap*>(is_own(id) ? owner : other);
    // The end of what there is.
    free.set(0, count);
    free.clear(0, count);
  }
  ~Home() {
    for (PageId id = 0; id < count_; ++id) pages[id].free_quanta.reset();
  }

  bool is_own(PageId id) const { return id < count_ && id % others_every_ != others_every_ - 1; }
  // From now on of the page these quanta are used; none, where both are the same.
  void use(HoleIndex& index, PageId id, uint32_t begin, uint32_t end) {
    pages[id].free_quanta.clear();
    const bool was_free = free.test(id);
    begin == end ? free.set(id) : free.clear(id);
    if (free.test(id) != was_free) index.note(id, 1);
    if (begin != end) pages[id].free_quanta.fill_outside(begin, end);
    touched.push_back(id);
  }
  // A run of whole pages, as a large block leaves and takes them: no page is touched.
  void use_whole(HoleIndex& index, PageId first, uint32_t pages_in_row, bool is_used) {
    is_used ? free.clear(first, pages_in_row) : free.set(first, pages_in_row);
    index.note(first, pages_in_row);
  }
  bool is_whole(PageId id) const { return pages[id].free_quanta.empty(); }

  uint32_t end_before(PageId id) const {
    return id > 0 && is_own(id - 1) && !free.test(id - 1) ? pages[id - 1].free_quanta.suffix() : 0;
  }
  uint32_t beginning_of(PageId id) const {
    return is_own(id) && !free.test(id) ? pages[id].free_quanta.prefix() : 0;
  }
  std::vector<Hole> holes(bool joins_ends) const {
    std::vector<Hole> out;
    for (PageId id = 0; id <= count_; ++id) {
      if (id > 0 && free.test(id - 1)) continue;
      PageId last = id;
      while (last < count_ && free.test(last)) ++last;
      const uint32_t before = joins_ends ? end_before(id) : 0;
      const uint32_t after = joins_ends ? beginning_of(last) : 0;
      if (last > id || before > 0 || after > 0) out.push_back({before, id, last - id, after});
    }
    return out;
  }
  // Quanta of each page's largest piece that touches no boundary, and where it begins.
  std::vector<std::pair<uint64_t, HoleIndex::Position>> inner_pieces() const {
    std::vector<std::pair<uint64_t, HoleIndex::Position>> out;
    for (PageId id = 0; id < count_; ++id) {
      const QuantumInterval piece = pages[id].free_quanta.largest_middle();
      if (is_own(id) && !free.test(id) && piece.quanta() > 0)
        out.push_back({piece.quanta(), {id, piece.begin}});
    }
    return out;
  }
  PageId lowest_with_piece(uint32_t quanta) const {
    for (PageId id = 0; id < count_; ++id) {
      if (!is_own(id) || free.test(id)) continue;
      for (const QuantumInterval& piece : pages[id].free_quanta) {
        if (piece.quanta() >= quanta) return id;
      }
    }
    return kNoPage;
  }

  std::unique_ptr<Page[]> pages;
  Bitmap free;
  std::vector<PageId> touched;

 private:
  const uint32_t count_;
  const uint32_t others_every_;
};

uint64_t quanta_of(const Hole& hole) {
  return hole.head_quanta + uint64_t{hole.pages} * kPageQuanta + hole.tail_quanta;
}

void expect_agreement(const HoleIndex& index, const Home& home, bool joins_ends, Random& random) {
  std::vector<std::pair<uint64_t, HoleIndex::Position>> all = home.inner_pieces();
  for (const Hole& hole : home.holes(joins_ends)) {
    const HoleIndex::Position place =
        hole.head_quanta == 0 ? HoleIndex::Position{hole.first, 0}
                              : HoleIndex::Position{hole.first - 1, kPageQuanta - hole.head_quanta};
    all.emplace_back(quanta_of(hole), place);
  }
  const uint32_t quanta = 1 + random() % (random() % 2 == 0 ? 2 * kPageQuanta : 40 * kPageQuanta);
  std::optional<uint64_t> smallest;
  for (const auto& [size, place] : all) {
    if (size >= quanta) smallest = std::min(smallest.value_or(~uint64_t{0}), size);
  }
  const std::optional<HoleIndex::Position> found = index.find_closest(quanta);
  ASSERT_EQ(found.has_value(), smallest.has_value()) << quanta;
  if (found.has_value()) {
    const auto same = std::find_if(all.begin(), all.end(), [&](const auto& each) {
      return each.second.page == found->page && each.second.quantum == found->quantum;
    });
    ASSERT_NE(same, all.end()) << "nothing is free at " << found->page;
    ASSERT_GE(same->first, quanta);
    // Of many it looks at some.
    if (all.size() <= 16) {
      ASSERT_EQ(same->first, *smallest);
    }
  }
  const uint32_t piece = 1 + random() % index.most_piece();
  ASSERT_EQ(index.find_piece(piece), home.lowest_with_piece(piece));
}

void follow_changes(uint32_t pages, bool joins_ends, uint32_t seed) {
  SCOPED_TRACE(testing::Message() << pages << " pages, seed " << seed);
  StoreOf<VirtualMemory> of;
  const auto owner = of.heap();
  const auto other = of.heap();
  Home home(pages, owner.get(), other.get());
  HoleIndex index(home.pages.get(), home.free, *owner, joins_ends);
  Random random(seed);
  index.build();
  for (int round = 0; round < 4000; ++round) {
    const PageId page = random() % pages;
    if (random() % 3 != 0) {
      if (!home.is_own(page)) continue;
      const uint32_t begin = random() % 2 == 0 ? 0 : random() % kPageQuanta;
      const uint32_t end = random() % 3 == 0 ? kPageQuanta : begin + random() % (kPageQuanta - begin + 1);
      home.use(index, page, begin, end);
    } else {
      const bool is_used = random() % 2 == 0;
      const auto changes = [&](PageId id) {
        return home.is_own(id) && home.is_whole(id) && home.free.test(id) == is_used;
      };
      uint32_t count = 0;
      while (count < 1 + random() % 40 && changes(page + count)) ++count;
      if (count > 0) home.use_whole(index, page, count, is_used);
    }
    if (random() % 4 == 0) continue;  // several changes at once
    index.update(home.touched);
    home.touched.clear();
    expect_agreement(index, home, joins_ends, random);
    if (testing::Test::HasFatalFailure()) return;
    if (random() % 500 == 0) {
      index.forget();
      EXPECT_FALSE(index.is_built());
      EXPECT_EQ(index.metadata_bytes(), 0u);
      index.build();
    }
  }
}

TEST(HoleIndex, AgreesWithALookAtEveryPage) {
  for (uint32_t seed = 0; seed < 4; ++seed) {
    follow_changes(12, true, seed);
    follow_changes(300, true, seed);
    follow_changes(40, false, seed);
  }
}

TEST(HoleIndex, KnowsRunsAcrossWordsOfTheBitmap) {
  StoreOf<VirtualMemory> of;
  const auto owner = of.heap();
  const auto other = of.heap();
  constexpr uint32_t kPages = 300;
  Home home(kPages, owner.get(), other.get(), kPages + 1);
  HoleIndex index(home.pages.get(), home.free, *owner, true);
  index.build();
  EXPECT_FALSE(index.find_closest(1).has_value());
  home.use_whole(index, 0, kPages, false);
  index.update({});
  ASSERT_TRUE(index.find_closest(kPages * kPageQuanta).has_value());
  EXPECT_FALSE(index.find_closest(kPages * kPageQuanta + 1).has_value());
  // From the middle of a word to the middle of one three words on.
  home.use_whole(index, 40, 200, true);
  index.update({});
  EXPECT_EQ(index.find_closest(1)->page, 0u);
  EXPECT_EQ(index.find_closest(41 * kPageQuanta)->page, 240u);
  EXPECT_FALSE(index.find_closest(61 * kPageQuanta).has_value());
  home.use_whole(index, 40, 200, false);
  index.update({});
  EXPECT_EQ(index.find_closest(kPages * kPageQuanta)->page, 0u);
}

TEST(HoleIndex, KnowsRunsOfThousandsOfPages) {
  StoreOf<VirtualMemory> of;
  const auto owner = of.heap();
  const auto other = of.heap();
  constexpr uint32_t kPages = 13'000;
  Home home(kPages, owner.get(), other.get(), kPages + 1);
  HoleIndex index(home.pages.get(), home.free, *owner, true);
  index.build();
  home.use_whole(index, 0, kPages, false);
  index.update({});
  EXPECT_EQ(index.find_closest(kPages * kPageQuanta)->page, 0u);
  // Somewhere in a run, at the ends of what one word of 64 words tells, and around.
  Random random(3);
  for (const PageId at : {4095u, 4096u, 4097u, 64u, 12'287u, 12'288u, 1u, 12'999u, 0u}) {
    for (const uint32_t count : {1u, 2u, 63u, 65u}) {
      const uint32_t here = std::min(count, kPages - at);
      home.use_whole(index, at, here, true);
      index.update({});
      expect_agreement(index, home, true, random);
      const uint32_t before = at;
      const uint32_t after = kPages - at - here;
      EXPECT_TRUE(index.find_closest(std::max(before, after) * kPageQuanta).has_value());
      EXPECT_FALSE(index.find_closest(std::max(before, after) * kPageQuanta + 1).has_value());
      home.use_whole(index, at, here, false);
      index.update({});
      EXPECT_EQ(index.find_closest(kPages * kPageQuanta)->page, 0u);
    }
  }
}

TEST(HoleIndex, GrowsWithThePagesThatCome) {
  StoreOf<VirtualMemory> of;
  const auto owner = of.heap();
  constexpr uint32_t kPages = 20'000;
  const auto pages = std::make_unique<Page[]>(kPages + 1);
  Bitmap free(kPages);
  HoleIndex index(pages.get(), free, *owner, true);
  index.build();
  PageId end = 0;
  for (const uint32_t count : {1u, 62u, 1u, 1u, 127u, 3'904u, 1u, 4'095u, 8'000u}) {
    for (PageId id = end; id < end + count; ++id) pages[id].owner = owner.get();
    free.set(end, count);
    index.note(end, count);
    end += count;
    index.update({});
    EXPECT_EQ(index.find_closest(end * kPageQuanta)->page, 0u) << end;
    EXPECT_FALSE(index.find_closest(end * kPageQuanta + 1).has_value()) << end;
    EXPECT_FALSE(free.test(end));
  }
}

TEST(HoleIndex, LooksAtEveryPageWhereMoreChangedThanItNotes) {
  StoreOf<VirtualMemory> of;
  const auto owner = of.heap();
  const auto other = of.heap();
  constexpr uint32_t kPages = 200;
  Home home(kPages, owner.get(), other.get());
  HoleIndex index(home.pages.get(), home.free, *owner, true);
  index.build();
  Random random(5);
  for (int round = 0; round < 3; ++round) {
    for (int change = 0; change < 2000; ++change) {
      const PageId page = random() % kPages;
      if (home.is_own(page)) home.use_whole(index, page, 1, home.free.test(page));
    }
    index.update({});
    for (int i = 0; i < 50; ++i) expect_agreement(index, home, true, random);
  }
}

}  // namespace
}  // namespace spillway::test
