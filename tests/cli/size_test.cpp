#include "cli/size.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(Size, ReadsNumbersWithAndWithoutUnits) {
  EXPECT_EQ(parse_size("1"), 1u);
  EXPECT_EQ(parse_size("4096B"), 4096u);
  EXPECT_EQ(parse_size("2KiB"), 2048u);
  EXPECT_EQ(parse_size("512M"), 512u << 20);
  EXPECT_EQ(parse_size("1.5GiB"), 3u << 29);
  EXPECT_EQ(parse_size("80GiB"), uint64_t{80} << 30);
  EXPECT_EQ(parse_size("1TiB"), uint64_t{1} << 40);
  EXPECT_EQ(parse_size("1.5 GiB"), 3u << 29);
  EXPECT_EQ(parse_size("1gib"), 1u << 30);
  EXPECT_EQ(parse_size("1g"), 1u << 30);
}

TEST(Size, ReadsPowersOfAThousandByTheirOwnNames) {
  EXPECT_EQ(parse_size("80GB"), 80'000'000'000u);
  EXPECT_EQ(parse_size("2.5 mb"), 2'500'000u);
  EXPECT_EQ(parse_size("1TB"), 1'000'000'000'000u);
}

TEST(Size, RefusesEverythingElse) {
  for (const char* text : {"", "banana", "GiB", "0", "-1GiB", "1  GiB", "1GiB ", "1 ", "nan", "inf", "1e9",
                           "0x10", "99999999999TiB", "1.2.3", "1KiBB", "+1"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
  }
}

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
