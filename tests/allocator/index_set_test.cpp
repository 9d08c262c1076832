#include <gtest/gtest.h>

#include <set>

#include "allocator/index_set.h"
#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

uint32_t least_of(const std::set<uint32_t>& model) {
  return model.empty() ? IndexSet::kNone : *model.begin();
}

void expect_same(IndexSet set, std::set<uint32_t> model) {
  while (!model.empty()) {
    ASSERT_EQ(set.least(), *model.begin());
    set.erase(*model.begin());
    model.erase(model.begin());
  }
  EXPECT_EQ(set.least(), IndexSet::kNone);
}

TEST(IndexSet, IsEmptyAtFirst) {
  EXPECT_EQ(IndexSet().least(), IndexSet::kNone);
}

// One level, two, three and four: 64 numbers to each word.
TEST(IndexSet, AgreesWithASet) {
  for (const uint32_t range : {60u, 4000u, 200'000u, 20'000'000u}) {
    Random random(range);
    IndexSet set;
    std::set<uint32_t> model;
    for (int step = 0; step < 3000; ++step) {
      const uint32_t index = random() % range;
      if (random() % 2 == 0 || model.empty()) {
        set.insert(index);
        model.insert(index);
      } else {
        const auto gone = random() % 2 == 0 ? model.begin() : model.lower_bound(index);
        const uint32_t erased = gone == model.end() ? *model.begin() : *gone;
        set.erase(erased);
        model.erase(erased);
      }
      ASSERT_EQ(set.least(), least_of(model)) << range << ", step " << step;
    }
    expect_same(set, model);
  }
}

TEST(IndexSet, HoldsTheNumbersAroundTheBordersOfWordsAndLevels) {
  IndexSet set;
  std::set<uint32_t> model;
  for (const uint32_t border : {64u, 4096u, 262'144u, 16'777'216u}) {
    for (const uint32_t index : {border - 1, border, border + 1}) {
      set.insert(index);
      model.insert(index);
      ASSERT_EQ(set.least(), 63u);
    }
  }
  expect_same(set, model);
}

TEST(IndexSet, InsertsTwiceWhatItErasesOnce) {
  IndexSet set;
  set.insert(5);
  set.insert(5);
  set.erase(5);
  EXPECT_EQ(set.least(), IndexSet::kNone);
}

TEST(IndexSet, ReservingLeavesTheContentAsItWas) {
  for (const bool is_empty : {true, false}) {
    IndexSet set;
    std::set<uint32_t> model;
    if (!is_empty) model = {3, 40};
    for (const uint32_t index : model) set.insert(index);
    for (const uint32_t index : {0u, 63u, 64u, 5000u, 300'000u, 7u, 20'000'000u}) {
      set.reserve(index);
      ASSERT_EQ(set.least(), least_of(model)) << index;
    }
    expect_same(set, model);
    // What was reserved is inserted as anything else.
    set.insert(300'000);
    model.insert(300'000);
    expect_same(set, model);
  }
}

}  // namespace
}  // namespace spillway::test
