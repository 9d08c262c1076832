#include "allocator/new_sizes.h"

#include <gtest/gtest.h>

namespace spillway::test {
namespace {

TEST(NewSizes, AreManyFromThreeQuartersOfTheLast64On) {
  NewSizes sizes;
  for (uint32_t i = 0; i < 47; ++i) sizes.note(1000 + i);
  EXPECT_FALSE(sizes.are_many());
  sizes.note(2000);
  EXPECT_TRUE(sizes.are_many());
  for (uint32_t i = 0; i < 16; ++i) sizes.note(2000);
  EXPECT_TRUE(sizes.are_many());
  sizes.note(2000);
  EXPECT_FALSE(sizes.are_many()) << "the first of 65 counts no more";
}

TEST(NewSizes, AreFewWhenFiveHundredComeAgain) {
  NewSizes sizes;
  for (uint32_t i = 0; i < 500; ++i) sizes.note(3 * i);
  EXPECT_TRUE(sizes.are_many());
  for (uint32_t i = 0; i < 500; ++i) sizes.note(3 * i);
  EXPECT_FALSE(sizes.are_many());
}

TEST(NewSizes, AreCountedAnewAndStayKnown) {
  NewSizes sizes;
  for (uint32_t i = 0; i < 64; ++i) sizes.note(1000 + i);
  sizes.forget();
  EXPECT_FALSE(sizes.are_many());
  for (uint32_t i = 0; i < 64; ++i) sizes.note(1000 + i);
  EXPECT_FALSE(sizes.are_many());
  for (uint32_t i = 0; i < 64; ++i) sizes.note(5000 + i);
  EXPECT_TRUE(sizes.are_many());
}

}  // namespace
}  // namespace spillway::test
