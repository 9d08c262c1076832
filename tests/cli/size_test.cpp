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
}

TEST(Size, RefusesEverythingElse) {
  for (const char* text : {"", "banana", "GiB", "0", "-1GiB", "1gib", "1GB", "1 GiB", "1GiB ", "nan", "inf",
                           "1e9", "0x10", "99999999999TiB", "1.2.3", "1KiBB", "+1"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
  }
}

TEST(Size, WritesTheLargestFittingUnit) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1536), "1.500 KiB");
  EXPECT_EQ(format_size(uint64_t{46} << 30), "46.000 GiB");
}

}  // namespace
}  // namespace spillway
