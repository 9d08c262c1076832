#include "allocator/fragments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

TEST(FragmentIndex, FindsAFittingFragmentWheneverThereIsOne) {
  Random random(7);
  constexpr PageId kPages = 200;
  const auto pages = std::make_unique<Page[]>(kPages);
  FragmentIndex index(pages.get());
  std::vector<uint32_t> prefix(kPages, 0);
  for (int step = 0; step < 5000; ++step) {
    const PageId page = random() % kPages;
    QuantumSet& quanta = pages[page].free_quanta;
    quanta.reset();
    prefix[page] = random() % 3 == 0 ? 0 : random() % (kPageQuanta - 1);
    if (prefix[page] > 0) quanta.give(0, prefix[page]);
    index.update(page);
    const uint32_t wanted = 1 + random() % kPageQuanta;
    uint32_t smallest = ~0u;
    for (const uint32_t size : prefix) {
      if (size >= wanted) smallest = std::min(smallest, size);
    }
    const PageId found = index.find(kPrefix, wanted);
    if (smallest == ~0u) {
      ASSERT_EQ(found, kNoPage);
    } else {
      // Bins are 32 quanta wide and only their first pages are looked at: about the smallest, never too
      // small.
      ASSERT_NE(found, kNoPage);
      ASSERT_GE(prefix[found], wanted);
    }
    ASSERT_EQ(index.count(kSuffix), 0u);
  }
  for (PageId page = 0; page < kPages; ++page) pages[page].free_quanta.reset();
}

TEST(FragmentIndex, TellsTheTwoLargestOfEachKind) {
  Random random(8);
  constexpr PageId kPages = 40;
  const auto pages = std::make_unique<Page[]>(kPages);
  FragmentIndex index(pages.get());
  for (int round = 0; round < 2000; ++round) {
    const PageId page = random() % kPages;
    pages[page].free_quanta.reset();
    const uint32_t suffix = random() % 2 == 0 ? 0 : 1 + random() % 300;
    if (suffix > 0) pages[page].free_quanta.give(kPageQuanta - suffix, kPageQuanta);
    if (random() % 2 == 0) pages[page].free_quanta.give(10, 20);
    index.update(page);
    const PageId excluded = random() % kPages;
    std::vector<uint32_t> sizes;
    uint32_t suffixes = 0;
    for (PageId id = 0; id < kPages; ++id) {
      const uint32_t size = pages[id].free_quanta.suffix();
      suffixes += size > 0;
      if (id != excluded) sizes.push_back(size);
    }
    std::sort(sizes.rbegin(), sizes.rend());
    const LargestTwo found = index.largest_two(kSuffix, [&](PageId id) { return id != excluded; });
    ASSERT_EQ(found.first.quanta, sizes[0]);
    ASSERT_EQ(found.second.quanta, sizes[1]);
    if (found.second.page != kNoPage) {
      ASSERT_NE(found.first.page, found.second.page);
    }
    ASSERT_EQ(index.count(kSuffix), suffixes);
  }
  for (PageId page = 0; page < kPages; ++page) pages[page].free_quanta.reset();
}

TEST(FragmentIndex, VisitsEveryPageWithEnoughUntilToldToStop) {
  constexpr PageId kPages = 30;
  const auto pages = std::make_unique<Page[]>(kPages);
  FragmentIndex index(pages.get());
  for (PageId page = 0; page < kPages; ++page) {
    pages[page].free_quanta.give(100, 100 + 10 * (page + 1));
    index.update(page);
  }
  std::vector<PageId> visited;
  index.for_each(kMiddle, 200, [&](PageId page) {
    visited.push_back(page);
    return true;
  });
  std::sort(visited.begin(), visited.end());
  std::vector<PageId> expected;
  for (PageId page = 19; page < kPages; ++page) expected.push_back(page);
  EXPECT_EQ(visited, expected);
  int looks = 0;
  index.for_each(kMiddle, 1, [&](PageId) { return ++looks < 3; });
  EXPECT_EQ(looks, 3);
  PageId largest = kNoPage;
  index.for_each_from_largest(kMiddle, [&](PageId page) {
    largest = page;
    return false;
  });
  EXPECT_EQ(largest, kPages - 1);
  index.remove(kPages - 1);
  EXPECT_EQ(index.find(kMiddle, 300), kNoPage);
  EXPECT_EQ(index.find(kMiddle, 290), kPages - 2);
}

TEST(PageEnds, OfOnePageOnlyOneEndCounts) {
  LargestTwo suffixes;
  LargestTwo prefixes;
  suffixes.add({1, 100});
  suffixes.add({2, 50});
  prefixes.add({1, 200});
  prefixes.add({3, 120});
  const PageEnds ends = largest_ends(suffixes, prefixes);
  EXPECT_EQ(ends.quanta(), 250u);
  EXPECT_EQ(ends.head.page, 2u);
  EXPECT_EQ(ends.tail.page, 1u);
  EXPECT_EQ(largest_ends(suffixes, {}).quanta(), 100u);
}

}  // namespace
}  // namespace spillway::test
