#include "cli/size.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(Size, WritesTheLargestFittingUnit) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1536), "1.500 KiB");
  EXPECT_EQ(format_size(uint64_t{46} << 30), "46.000 GiB");
  EXPECT_EQ(format_bound(uint64_t{46} << 30), "46 GiB");
  EXPECT_EQ(format_bound(1536), "1.500 KiB");
}

TEST(Size, GroupsDigitsByThree) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(123456), "123,456");
  EXPECT_EQ(grouped(uint64_t{1} << 30), "1,073,741,824");
}

}  // namespace
}  // namespace spillway
