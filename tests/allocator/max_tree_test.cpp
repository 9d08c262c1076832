#include "allocator/max_tree.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

TEST(MaxTree, FindsNothingBeforeItGrows) {
  const MaxTree tree;
  EXPECT_EQ(tree.find_lowest(1), MaxTree::kNone);
}

TEST(MaxTree, FindsTheLowestIndexThatSuffices) {
  Random random(3);
  MaxTree tree;
  std::vector<uint16_t> numbers;
  for (int round = 0; round < 3000; ++round) {
    if (round % 300 == 0) {
      numbers.resize(numbers.size() + 1 + random() % 90);
      tree.grow(static_cast<uint32_t>(numbers.size()));
    }
    const uint32_t index = random() % static_cast<uint32_t>(numbers.size());
    numbers[index] = static_cast<uint16_t>(random() % 3 == 0 ? 0 : random() % 5000);
    tree.set(index, numbers[index]);
    const auto least = static_cast<uint16_t>(1 + random() % 5000);
    uint32_t expected = 0;
    while (expected < numbers.size() && numbers[expected] < least) ++expected;
    ASSERT_EQ(tree.find_lowest(least), expected < numbers.size() ? expected : MaxTree::kNone) << round;
  }
  tree.grow(1);
  EXPECT_GE(tree.metadata_bytes(), numbers.size() * sizeof(uint16_t)) << "it never shrinks";
}

}  // namespace
}  // namespace spillway::test
