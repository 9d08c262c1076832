#include "allocator/quantum_set.h"

#include <gtest/gtest.h>

#include <bitset>
#include <utility>

#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

TEST(QuantumSet, JoinsNeighboursAndSplitsInside) {
  QuantumSet set{};
  set.give(100, 200);
  set.give(300, 400);
  EXPECT_EQ(set.size(), 2u);
  set.give(200, 300);
  ASSERT_EQ(set.size(), 1u);
  EXPECT_TRUE(set.contains(100, 400));
  EXPECT_FALSE(set.contains(99, 101));
  set.take(150, 160);
  EXPECT_EQ(set.size(), 2u);
  EXPECT_FALSE(set.contains(140, 155));
  EXPECT_TRUE(set.contains(160, 400));
  set.reset();
}

TEST(QuantumSet, KnowsPrefixSuffixAndMiddle) {
  QuantumSet set{};
  set.give(0, 10);
  set.give(20, 25);
  set.give(40, 60);
  set.give(kPageQuanta - 7, kPageQuanta);
  EXPECT_EQ(set.prefix(), 10u);
  EXPECT_EQ(set.suffix(), 7u);
  EXPECT_EQ(set.largest_middle().begin, 40);
  EXPECT_EQ(set.largest_middle().quanta(), 20u);
  set.reset();
}

TEST(QuantumSet, OutsideOfABlockIsTheRestOfThePage) {
  for (const auto& [first, last] :
       {std::pair{0u, 10u}, {10u, 20u}, {4000u, kPageQuanta}, {0u, kPageQuanta}}) {
    QuantumSet set{};
    set.fill_outside(first, last);
    EXPECT_EQ(set.total_quanta(), kPageQuanta - (last - first));
    EXPECT_TRUE(set.is_all_outside(first, last));
    EXPECT_FALSE(set.is_all_outside(first, last - 1));
    EXPECT_FALSE(set.is_all_outside(first + 1, last));
    set.clear();
    EXPECT_TRUE(set.empty());
    set.reset();
  }
}

// Against a plain set of bits, over seeded random operations that stay legal.
TEST(QuantumSet, AgreesWithBits) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    QuantumSet set{};
    std::bitset<kPageQuanta> bits;
    for (int step = 0; step < 2000; ++step) {
      const uint32_t begin = random() % kPageQuanta;
      const uint32_t end = std::min<uint32_t>(kPageQuanta, begin + 1 + random() % 200);
      bool all = true;
      bool none = true;
      for (uint32_t quantum = begin; quantum < end; ++quantum) (bits[quantum] ? none : all) = false;
      ASSERT_EQ(set.contains(begin, end), all) << "seed " << seed << " step " << step;
      if (all) {
        set.take(begin, end);
        for (uint32_t quantum = begin; quantum < end; ++quantum) bits[quantum] = false;
      } else if (none) {
        set.give(begin, end);
        for (uint32_t quantum = begin; quantum < end; ++quantum) bits[quantum] = true;
      }
      ASSERT_EQ(set.total_quanta(), bits.count());
    }
    set.reset();
  }
}

}  // namespace
}  // namespace spillway::test
