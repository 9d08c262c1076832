#include "estimator/inputs/key_values.h"

#include <gtest/gtest.h>

namespace spillway::estimator {
namespace {

TEST(KeyValues, KeepsTheFirstComplaintWithKeyValueAndWhatIsAllowed) {
  KeyValues values({{"layers", "-4"}, {"heads", "many"}});
  EXPECT_EQ(values.whole("layers", 12), 12);
  EXPECT_EQ(values.whole("heads", 8), 8);
  EXPECT_EQ(values.status().text(), "layers: '-4' is not allowed; allowed: whole numbers from 1 to 1048576");
}

class BadWhole : public testing::TestWithParam<const char*> {};
TEST_P(BadWhole, IsRefused) {
  KeyValues values(std::map<std::string, std::string>{{"n", GetParam()}});
  values.whole("n", 1);
  EXPECT_FALSE(values.status().ok()) << GetParam();
}
INSTANTIATE_TEST_SUITE_P(Values, BadWhole,
                         testing::Values("", "0", "1.5", "nan", "inf", "1e3", " 1", "1 ",
                                         "99999999999999999999", "1048577"));

class BadNumber : public testing::TestWithParam<const char*> {};
TEST_P(BadNumber, IsRefused) {
  KeyValues values(std::map<std::string, std::string>{{"x", GetParam()}});
  values.number("x", 0.5, 0, 1);
  EXPECT_FALSE(values.status().ok()) << GetParam();
}
INSTANTIATE_TEST_SUITE_P(Values, BadNumber,
                         testing::Values("", "nan", "-nan", "inf", "1.01", "-0.1", "0.1x"));

TEST(KeyValues, EchoesEveryDefaultAndKnowsWhatNobodyRead) {
  KeyValues values({{"a", "3"}, {"b", "4"}});
  EXPECT_EQ(values.whole("a", 1), 3);
  EXPECT_EQ(values.whole("c", 7), 7);
  EXPECT_EQ(values.assumed(), std::vector<std::string>{"c = 7"});
  EXPECT_EQ(values.unread(), std::vector<std::string>{"b"});
}

TEST(KeyValues, WhatIsOfferedIsADefaultThatIsReadWhereNothingIsSaid) {
  KeyValues values(std::map<std::string, std::string>{{"heads", "12"}});
  values.offer("heads", "32");
  values.offer("head_dim", "128");
  values.offer("never", "1");
  EXPECT_TRUE(values.has("head_dim"));
  EXPECT_FALSE(values.is_said("head_dim"));
  EXPECT_EQ(values.whole("heads", 1), 12);
  EXPECT_EQ(values.required("head_dim"), 128);
  EXPECT_EQ(values.assumed(), std::vector<std::string>{"head_dim = 128"});
  EXPECT_TRUE(values.unread().empty());
}

TEST(KeyValues, RequiresWhatIsRequired) {
  KeyValues values(std::map<std::string, std::string>{});
  values.required("hidden-size");
  EXPECT_EQ(values.status().text(), "hidden-size: missing; allowed: whole numbers from 1 to 1048576");
}

}  // namespace
}  // namespace spillway::estimator
