#include "allocator/cached_range.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

// ---- Lists of runs

std::vector<PageId> listed(const RunList& runs) {
  std::vector<PageId> pages;
  for (const PageRun& run : runs) {
    for (uint32_t i = 0; i < run.count; ++i) pages.push_back(run.first + i);
  }
  return pages;
}

TEST(RunList, HoldsWhatItWasGivenLast) {
  RunList runs;
  EXPECT_EQ(runs.begin(), runs.end());
  EXPECT_EQ(runs.pages(), 0u);
  runs.assign({{4, 2}, {9, 1}, {1, 1}});
  EXPECT_EQ(listed(runs), (std::vector<PageId>{4, 5, 9, 1})) << "in the order of addresses, not of numbers";
  EXPECT_EQ(runs.pages(), 4u);
  runs.assign({{7, 3}});
  EXPECT_EQ(listed(runs), (std::vector<PageId>{7, 8, 9}));
  EXPECT_EQ(runs.pages(), 3u);
  runs.assign({{2, 1}, {5, 1}});
  EXPECT_EQ(listed(runs), (std::vector<PageId>{2, 5}));
  runs.assign({});
  EXPECT_EQ(runs.begin(), runs.end());
  EXPECT_EQ(runs.pages(), 0u);
}

TEST(RunList, IsMadeOfOneRunOrOfSeveral) {
  EXPECT_EQ(listed(RunList(PageRun{3, 2})), (std::vector<PageId>{3, 4}));
  EXPECT_EQ(listed(RunList(std::vector<PageRun>{{3, 1}, {8, 1}})), (std::vector<PageId>{3, 8}));
}

TEST(RunList, MovesWithWhatItHolds) {
  for (const std::vector<PageRun>& given : {std::vector<PageRun>{{6, 2}}, {{6, 2}, {1, 1}, {30, 4}}}) {
    RunList from(given);
    const std::vector<PageId> pages = listed(from);
    RunList to(std::move(from));
    EXPECT_EQ(listed(to), pages);
    RunList assigned(PageRun{99, 1});
    assigned = std::move(to);
    EXPECT_EQ(listed(assigned), pages);
  }
}

// ---- Pieces

using Quantum = std::pair<PageId, uint32_t>;

std::vector<Quantum> quanta_of(const CachedRange& range) {
  std::vector<Quantum> quanta;
  for_each_piece(range, [&](PageId page, uint32_t begin, uint32_t end) {
    EXPECT_LT(begin, end);
    for (uint32_t quantum = begin; quantum < end; ++quantum) quanta.emplace_back(page, quantum);
  });
  return quanta;
}

CachedRange head_only(PageId page, uint32_t begin, uint32_t end) {
  CachedRange range;
  range.quanta = end - begin;
  range.head_page = page;
  range.head_begin = static_cast<uint16_t>(begin);
  range.head_end = static_cast<uint16_t>(end);
  return range;
}

TEST(CachedRange, ItsPiecesAreItsBytesInTheOrderOfAddresses) {
  CachedRange range = head_only(9, kPageQuanta - 2, kPageQuanta);
  range.runs.assign({{4, 1}, {2, 2}});
  range.tail_page = 7;
  range.tail_end = 3;
  range.quanta = 2 + 3 * kPageQuanta + 3;
  EXPECT_EQ(range.bytes(), range.quanta * kQuantumBytes);
  EXPECT_EQ(pages_of(range), (std::vector<PageId>{9, 4, 2, 3, 7}));
  const std::vector<Quantum> quanta = quanta_of(range);
  ASSERT_EQ(quanta.size(), range.quanta);
  EXPECT_EQ(quanta.front(), Quantum(9, kPageQuanta - 2));
  EXPECT_EQ(quanta[2], Quantum(4, 0));
  EXPECT_EQ(quanta[2 + kPageQuanta], Quantum(2, 0));
  EXPECT_EQ(quanta[quanta.size() - 3], Quantum(7, 0));
  EXPECT_EQ(quanta.back(), Quantum(7, 2));
}

TEST(CachedRange, OneThatHasNothingHasNoPieces) {
  EXPECT_TRUE(pages_of(CachedRange()).empty());
  EXPECT_EQ(CachedRange().bytes(), 0u);
}

TEST(CachedRange, TheBytesOfTheLargestOneAreCountedInFull) {
  CachedRange range;
  range.quanta = static_cast<uint32_t>(bytes_to_quanta(kLargestRequestBytes));
  EXPECT_EQ(range.bytes(), kLargestRequestBytes);
}

TEST(CachedRange, NeighboursInOnePageShareNothing) {
  const CachedRange first = head_only(3, 10, 20);
  EXPECT_FALSE(share_a_quantum(first, head_only(3, 20, 30)));
  EXPECT_FALSE(share_a_quantum(first, head_only(3, 0, 10)));
  EXPECT_FALSE(share_a_quantum(first, head_only(4, 10, 20)));
  EXPECT_TRUE(share_a_quantum(first, head_only(3, 19, 30)));
  EXPECT_TRUE(share_a_quantum(first, head_only(3, 0, 11)));
  EXPECT_TRUE(share_a_quantum(first, first));
  CachedRange tail;
  tail.tail_page = 3;
  tail.tail_end = 10;
  EXPECT_FALSE(share_a_quantum(first, tail));
  EXPECT_FALSE(share_a_quantum(tail, first));
  tail.tail_end = 11;
  EXPECT_TRUE(share_a_quantum(first, tail));
  EXPECT_TRUE(share_a_quantum(tail, first));
}

// Any range of a few pages, each at most once.
CachedRange random_range(Random& random) {
  std::vector<PageId> pages = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto draw = [&] {
    const auto at = pages.begin() + static_cast<ptrdiff_t>(random() % pages.size());
    const PageId page = *at;
    pages.erase(at);
    return page;
  };
  CachedRange range;
  if (random() % 3 == 0) {
    const uint32_t begin = random() % kPageQuanta;
    return head_only(draw(), begin, begin + 1 + random() % (kPageQuanta - begin));
  }
  if (random() % 2 == 0) range = head_only(draw(), 1 + random() % (kPageQuanta - 1), kPageQuanta);
  std::vector<PageRun> runs;
  for (uint32_t i = random() % 3; i > 0; --i) runs.push_back({draw(), 1});
  range.runs.assign(runs);
  if (random() % 2 == 0) {
    range.tail_page = draw();
    range.tail_end = static_cast<uint16_t>(1 + random() % (kPageQuanta - 1));
  }
  return range;
}

TEST(CachedRange, SharingAgreesWithSetsOfQuanta) {
  int shared = 0;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const CachedRange a = random_range(random);
    const CachedRange b = random_range(random);
    const std::vector<Quantum> quanta = quanta_of(a);
    const std::set<Quantum> in_a(quanta.begin(), quanta.end());
    ASSERT_EQ(in_a.size(), quanta.size());
    bool expected = false;
    for (const Quantum& quantum : quanta_of(b)) expected = expected || in_a.count(quantum) > 0;
    ASSERT_EQ(share_a_quantum(a, b), expected) << "seed " << seed;
    ASSERT_EQ(share_a_quantum(b, a), expected) << "seed " << seed;
    shared += expected;
  }
  EXPECT_GT(shared, 40);
  EXPECT_LT(shared, 160);
}

}  // namespace
}  // namespace spillway::test
