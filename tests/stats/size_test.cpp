#include "stats/size.h"

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

TEST(Size, IsNothingOrAFractionWhereThatIsAsked) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("0.5"), 0.5);
  EXPECT_EQ(parse_bytes("0MiB"), 0);
  EXPECT_EQ(parse_bytes("1.5k"), 1536);
  for (const char* text : {"", "-0", "-1", "1e9", "MiB"}) EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
}

}  // namespace
}  // namespace spillway
