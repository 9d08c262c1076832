#include "allocator/bitmap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

TEST(Bitmap, AgreesWithASet) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    Bitmap bitmap(1000);
    std::set<PageId> model;
    for (int step = 0; step < 2000; ++step) {
      const PageId first = random() % 900;
      const uint32_t count = 1 + random() % 100;
      if (random() % 2 == 0) {
        bitmap.set(first, count);
        for (PageId id = first; id < first + count; ++id) model.insert(id);
      } else {
        bitmap.clear(first, count);
        for (PageId id = first; id < first + count; ++id) model.erase(id);
      }
      const PageId from = random() % 1000;
      bool all = true;
      for (PageId id = from; id < std::min<PageId>(1000, from + count); ++id)
        all = all && model.count(id) != 0;
      if (from + count <= 1000) {
        ASSERT_EQ(bitmap.all_set(from, count), all);
      }
      const auto next = model.lower_bound(from);
      ASSERT_EQ(bitmap.next_set(from), next == model.end() ? bitmap.end() : *next);
      PageId clear = from;
      while (model.count(clear) != 0) ++clear;
      ASSERT_EQ(bitmap.next_clear(from), std::min(clear, bitmap.end()));
    }
  }
}

TEST(Bitmap, ClearsARunOnlyIfAllOfItIsSet) {
  Random random(3);
  for (int round = 0; round < 2000; ++round) {
    Bitmap bitmap(400);
    std::set<PageId> model;
    bitmap.set(0, 400);
    for (PageId id = 0; id < 400; ++id) model.insert(id);
    for (uint32_t holes = random() % 3; holes > 0; --holes) {
      const PageId hole = random() % 400;
      bitmap.clear(hole);
      model.erase(hole);
    }
    const PageId first = random() % 200;
    const uint32_t count = 1 + random() % 200;
    const auto in_run =
        static_cast<uint32_t>(std::distance(model.lower_bound(first), model.lower_bound(first + count)));
    ASSERT_EQ(bitmap.clear_if_all_set(first, count), in_run == count);
    if (in_run == count) model.erase(model.lower_bound(first), model.lower_bound(first + count));
    for (PageId id = 0; id < 400; ++id) ASSERT_EQ(bitmap.test(id), model.count(id) != 0) << id;
  }
}

TEST(Bitmap, EndsBehindTheHighestBitThatEverWasSet) {
  Bitmap bitmap(1000);
  EXPECT_EQ(bitmap.end(), 0u);
  EXPECT_EQ(bitmap.next_set(0), 0u);
  bitmap.set(70);
  bitmap.set(130, 5);
  EXPECT_EQ(bitmap.end(), 135u);
  bitmap.clear(130, 5);
  EXPECT_EQ(bitmap.end(), 135u);
  EXPECT_EQ(bitmap.next_set(71), bitmap.end());
}

TEST(Bitmap, FindsWhereARunBegins) {
  Random random(9);
  Bitmap bitmap(1000);
  EXPECT_EQ(bitmap.next_clear_within(5), 5u) << "beyond what was ever set";
  for (int round = 0; round < 2000; ++round) {
    const PageId first = random() % 900;
    const uint32_t count = 1 + random() % 100;
    random() % 2 == 0 ? bitmap.set(first, count) : bitmap.clear(first, count);
    const PageId bit = random() % 1000;
    ASSERT_EQ(bitmap.word(bit / 64) >> (bit % 64) & 1, bitmap.test(bit) ? 1u : 0u);
    if (!bitmap.test(bit)) continue;
    PageId begin = bit;
    while (begin > 0 && bitmap.test(begin - 1)) --begin;
    ASSERT_EQ(bitmap.run_begin(bit), begin);
  }
}

}  // namespace
}  // namespace spillway::test
