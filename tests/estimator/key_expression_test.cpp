#include "estimator/inputs/key_expression.h"

#include <gtest/gtest.h>

namespace spillway::estimator {
namespace {

const std::map<std::string, std::string> kKeys = {{"m.h", "64"},
                                                  {"m.ratio", "2.0"},
                                                  {"m.on", "true"},
                                                  {"m.none", "null"},
                                                  {"m.word", "gelu"},
                                                  {"m.half", "0.5"},
                                                  {"m.kinds", R"(["conv","full_attention","conv"])"},
                                                  {"m.ids", "[0,2]"},
                                                  {"m.per_layer_config.03.h", "96"}};

class KeyExpression : public testing::Test {
 protected:
  int64_t value(const char* expression) { return in_.evaluate(expression); }
  std::string complaint(const char* expression) {
    KeyValues values(kKeys);
    KeyExpressions in(values, "m.");
    in.set("layer", 0);
    in.evaluate(expression);
    return values.status().text();
  }
  void SetUp() override { in_.set("layer", 0); }

  KeyValues values_{kKeys};
  KeyExpressions in_{values_, "m."};
};

TEST_F(KeyExpression, Counts) {
  EXPECT_EQ(value("2+3*4-1"), 13);
  EXPECT_EQ(value("(2+3)*h"), 320);
  EXPECT_EQ(value("h/3"), 21);
  EXPECT_EQ(value("h%3"), 1);
  EXPECT_EQ(value("ceil(h,3)"), 22);
  EXPECT_EQ(value("min(h,3)+max(h,3)"), 67);
  EXPECT_EQ(value("h==64"), 1);
  EXPECT_EQ(value("(h<64)+(h>=64)*2+(h!=1)"), 3);
  EXPECT_EQ(value("ratio*h"), 128);
}

// Numbers of layers have zeros in front, as many as the longest number needs. An empty section counts too:
// no layer has anything for itself.
TEST_F(KeyExpression, TakesWhatALayerHasForItself) {
  EXPECT_EQ(value("has_section(per_layer_config)"), 1);
  EXPECT_EQ(value("own(h)"), 64);
  in_.set("layer", 3);
  EXPECT_EQ(value("own(h)"), 96);
  std::map<std::string, std::string> keys = {{"m.h", "64"}};
  const auto has_section = [&] {
    KeyValues values(keys);
    KeyExpressions in(values, "m.");
    return in.evaluate("has_section(per_layer_config)");
  };
  EXPECT_EQ(has_section(), 0);
  keys["m.per_layer_config"] = "{}";
  EXPECT_EQ(has_section(), 1);
}

TEST_F(KeyExpression, TakesADefaultWhereTheFileSaysNothing) {
  EXPECT_EQ(value("absent:7"), 7);
  EXPECT_EQ(value("none:h*2"), 128);
  EXPECT_EQ(value("absent:(h/2)"), 32);
  EXPECT_EQ(value("h:1"), 64);
  EXPECT_EQ(value("absent|h"), 64);
  EXPECT_EQ(values_.assumed().front(), "m.absent = 7");
}

TEST_F(KeyExpression, AsksWhatAFileSays) {
  EXPECT_EQ(value("on+has(h)+has(none)+has(absent)"), 2);
  EXPECT_EQ(value("is(word,relu,gelu)"), 1);
  EXPECT_EQ(value("says(word,el)"), 1);
  EXPECT_EQ(value("count(kinds)"), 3);
  EXPECT_EQ(value("count(kinds,conv)+10*before(kinds,conv)"), 2);
  EXPECT_EQ(value("at(kinds,conv)+10*in(ids)"), 11);
  in_.set("layer", 1);
  EXPECT_EQ(value("before(kinds,conv)"), 1);
  EXPECT_EQ(value("before(kinds,conv,full_attention)"), 1);
  EXPECT_EQ(value("at(kinds,conv)+10*in(ids)"), 0);
  in_.set("layer", 9);
  EXPECT_EQ(value("at(kinds,conv)"), 0);
}

TEST_F(KeyExpression, NamesStandForTheirExpressions) {
  in_.define("wide", "4*h");
  in_.define("wider", "2*wide");
  EXPECT_EQ(value("wider+wide"), 768);
}

TEST_F(KeyExpression, EvaluatesOnlyWhatIsChosen) {
  EXPECT_EQ(value("if(h>1,min(h,5),absent)"), 5);
  EXPECT_EQ(value("if(0,absent,if(1,2,absent))"), 2);
  EXPECT_TRUE(values_.status().ok());
}

TEST_F(KeyExpression, ComplainsOfTheFile) {
  EXPECT_EQ(complaint("absent*2"), "m.absent: missing; allowed: whole numbers from 0 to 16777216");
  EXPECT_EQ(complaint("half"), "m.half: '0.5' is not allowed; allowed: whole numbers from 0 to 16777216");
  EXPECT_EQ(complaint("word"), "m.word: 'gelu' is not allowed; allowed: whole numbers from 0 to 16777216");
  EXPECT_NE(complaint("h*h*h*h*h*h*h*h*h*h*h*h"), "");
  EXPECT_EQ(complaint("h/0+h%0"), "");
}

TEST_F(KeyExpression, ComplainsOfADescriptionThatIsNone) {
  for (const char* bad :
       {"", "2+", "(2", "2)", "if(1,2)", "min(1)", "nothing(h)", "h h", "*", "if(1", "at(kinds"})
    EXPECT_NE(complaint(bad), "") << bad;
  KeyValues values(kKeys);
  KeyExpressions in(values, "m.");
  in.define("a", "b");
  in.define("b", "a");
  in.evaluate("a");
  EXPECT_FALSE(values.status().ok());
}

}  // namespace
}  // namespace spillway::estimator
