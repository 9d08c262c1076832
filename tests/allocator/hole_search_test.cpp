#include "allocator/hole_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

constexpr uint32_t kNone = ~0u;

uint64_t quanta_of(const Hole& hole) {
  return hole.head_quanta + uint64_t{hole.pages} * kPageQuanta + hole.tail_quanta;
}

// Whole free pages of the hole in which a block of `quanta` that begins at `begin` (counted from the hole's
// first quantum) has a byte.
uint32_t pages_touched(const Hole& hole, uint64_t begin, uint32_t quanta) {
  const uint64_t first = std::max<uint64_t>(begin, hole.head_quanta);
  const uint64_t last =
      std::min(begin + quanta, hole.head_quanta + uint64_t{hole.pages} * kPageQuanta);  // one past
  if (first >= last) return 0;
  return static_cast<uint32_t>((last - 1 - hole.head_quanta) / kPageQuanta -
                               (first - hole.head_quanta) / kPageQuanta + 1);
}

// By trying every position.
uint32_t fewest_pages(const Hole& hole, uint32_t quanta) {
  uint32_t fewest = kNone;
  for (uint64_t begin = 0; begin + quanta <= quanta_of(hole); ++begin)
    fewest = std::min(fewest, pages_touched(hole, begin, quanta));
  return fewest;
}

// Returns where the fit begins, counted from the hole's first quantum; negative where that is before the
// hole.
int64_t begin_of(const Hole& hole, const Fit& fit) {
  return (int64_t{fit.first} - int64_t{hole.first}) * kPageQuanta + hole.head_quanta - fit.head_quanta;
}

bool lies_in(const Hole& hole, const Fit& fit, uint32_t quanta) {
  const int64_t begin = begin_of(hole, fit);
  return begin >= 0 && static_cast<uint64_t>(begin) + quanta <= quanta_of(hole);
}

void expect_whole(const Fit& fit) {
  EXPECT_EQ(fit.head_page, fit.head_quanta == 0 ? kNoPage : fit.first - 1);
  EXPECT_LT(fit.head_quanta, kPageQuanta);
}

Hole random_hole(Random& random, PageId first) {
  const auto end = [&] { return random() % 3 == 0 ? 0 : random() % kPageQuanta; };
  return {end(), first, random() % 4, end()};
}

// Sizes about whole pages, about what fits just so, and any others.
uint32_t random_quanta(Random& random, const Hole& hole) {
  const auto total = static_cast<uint32_t>(quanta_of(hole));
  switch (random() % 4) {
    case 0:
      return (1 + random() % 4) * kPageQuanta;
    case 1:
      return total > 2 ? total - random() % 2 : 1;
    case 2:
      return hole.pages * kPageQuanta + 1 + random() % kPageQuanta;
    default:
      return 1 + random() % (5 * kPageQuanta);
  }
}

TEST(HoleSearch, AFitLiesInItsHoleAndConsumesTheFewestPages) {
  Random random(11);
  int fits = 0;
  for (int round = 0; round < 3000; ++round) {
    const Hole hole = random_hole(random, 10);
    const uint32_t quanta = random_quanta(random, hole);
    HoleSearch search(quanta, random() % 2 == 0);
    search.consider(hole);
    const Fit& fit = search.best();
    const uint32_t fewest = fewest_pages(hole, quanta);
    ASSERT_EQ(fit.consumed, fewest) << quanta << " quanta in " << hole.head_quanta << " + " << hole.pages
                                    << " pages + " << hole.tail_quanta;
    if (fewest == kNone) continue;
    ++fits;
    ASSERT_TRUE(lies_in(hole, fit, quanta));
    ASSERT_EQ(pages_touched(hole, static_cast<uint64_t>(begin_of(hole, fit)), quanta), fit.consumed);
    EXPECT_EQ(fit.hole_pages, hole.pages);
    expect_whole(fit);
  }
  EXPECT_GT(fits, 1000);
}

TEST(HoleSearch, OfManyHolesOneWithTheFewestPagesIsTaken) {
  Random random(12);
  for (int round = 0; round < 300; ++round) {
    std::vector<Hole> holes;
    for (uint32_t i = 0; i < 5; ++i) holes.push_back(random_hole(random, 100 * (i + 1)));
    const uint32_t quanta = random_quanta(random, holes[random() % holes.size()]);
    HoleSearch search(quanta, false);
    uint32_t fewest = kNone;
    uint32_t smallest_hole = kNone;  // of those that consume no more
    for (const Hole& hole : holes) {
      search.consider(hole);
      const uint32_t here = fewest_pages(hole, quanta);
      if (here == kNone || here > fewest) continue;
      smallest_hole = here < fewest ? hole.pages : std::min(smallest_hole, hole.pages);
      fewest = here;
    }
    const Fit& fit = search.best();
    ASSERT_EQ(fit.consumed, fewest);
    if (fewest == kNone) continue;
    EXPECT_EQ(fit.hole_pages, smallest_hole);
    EXPECT_EQ(std::count_if(holes.begin(), holes.end(),
                            [&](const Hole& hole) { return lies_in(hole, fit, quanta); }),
              1);
    expect_whole(fit);
  }
}

TEST(HoleSearch, ABrokenPageLeavesTheKindOfFragmentThatIsWanted) {
  const uint32_t quanta = kPageQuanta + 100;
  const Hole hole{0, 10, 4, 0};
  HoleSearch suffix(quanta, false);
  suffix.consider(hole);
  EXPECT_EQ(begin_of(hole, suffix.best()), 0) << "the end of the second page is left";
  HoleSearch prefix(quanta, true);
  prefix.consider(hole);
  EXPECT_EQ(begin_of(hole, prefix.best()) + quanta, 4 * kPageQuanta) << "the beginning of the third is left";
}

TEST(HoleSearch, OfTwoEndsTheOneIsTakenThatLeavesLess) {
  HoleSearch search(100, false);
  search.consider({300, 10, 0, 150});
  EXPECT_EQ(search.best().leftover, 50u);
  EXPECT_EQ(search.best().head_page, kNoPage) << "the beginning of page 10";
  EXPECT_EQ(search.best().first, 10u);
  search.consider({120, 20, 0, 150});
  EXPECT_EQ(search.best().leftover, 20u);
  EXPECT_EQ(search.best().head_page, 19u);
}

}  // namespace
}  // namespace spillway::test
