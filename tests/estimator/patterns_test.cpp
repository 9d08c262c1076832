#include "estimator/inputs/patterns.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace spillway::estimator {
namespace {

int64_t experts(const char* text, int64_t layers) {
  Result<std::vector<bool>> parsed = parse_layer_frequency(text, layers);
  EXPECT_TRUE(parsed.ok()) << parsed.status().text();
  return parsed.ok() ? std::count(parsed.value().begin(), parsed.value().end(), true) : -1;
}

TEST(LayerFrequency, CountsListsAndSteps) {
  EXPECT_EQ(experts("1", 12), 12);
  EXPECT_EQ(experts("2", 12), 6);
  EXPECT_EQ(experts("([0]*3+[1]*13)", 16), 13);
  EXPECT_EQ(experts("[0, 1]*4", 8), 4);
}

class BadFrequency : public testing::TestWithParam<const char*> {};
TEST_P(BadFrequency, IsRefused) {
  EXPECT_FALSE(parse_layer_frequency(GetParam(), 4).ok()) << GetParam();
}
INSTANTIATE_TEST_SUITE_P(Texts, BadFrequency,
                         testing::Values("", "0", "-1", "[2]*4", "[1]*3", "[1]*99999999999", "[1", "[]",
                                         "[1]*", "x", "__import__('os')"));

TEST(ListedWords, AreTheSameHoweverTheyAreWritten) {
  const std::vector<std::string> both = {"attn", "moe_act"};
  for (const char* text : {"attn moe_act", "[attn moe_act]", "attn,moe_act", "['attn', \"moe_act\"]"})
    EXPECT_EQ(listed_words(text), both) << text;
  EXPECT_TRUE(listed_words(" [] ").empty());
}

TEST(Layout, IsWrittenOut) {
  Result<std::string> layout = expand_layout("Et*3\\|\\(tt\\|\\)*6tL");
  ASSERT_TRUE(layout.ok()) << layout.status().text();
  EXPECT_EQ(layout.value(), "Ettt|tt|tt|tt|tt|tt|tt|tL");
  EXPECT_EQ(split_stages(layout.value()).size(), 8u);
}

class BadLayout : public testing::TestWithParam<const char*> {};
TEST_P(BadLayout, IsRefused) {
  EXPECT_FALSE(expand_layout(GetParam()).ok()) << GetParam();
}
INSTANTIATE_TEST_SUITE_P(Texts, BadLayout, testing::Values("Ex", "(tt", "t*", "t*-1", "t*1000000000", "*3"));

}  // namespace
}  // namespace spillway::estimator
