#include "cli/report/moved_lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace spillway {
namespace {

using Pairs = std::set<std::pair<std::string, std::string>>;

// Names that go together; "-" is none.
Pairs pairs_of(const std::vector<std::string>& before, const std::vector<std::string>& after) {
  Pairs out;
  for (const Match& match : match_lines(before, after))
    out.emplace(match.before ? before[*match.before] : "-", match.after ? after[*match.after] : "-");
  return out;
}

TEST(MovedLines, EqualNamesGoTogetherWhereNoMoveFitsBetter) {
  EXPECT_EQ(pairs_of({"f (a.py:3)", "f (a.py:7)"}, {"f (a.py:7)", "f (a.py:9)"}),
            (Pairs{{"f (a.py:7)", "f (a.py:7)"}, {"f (a.py:3)", "f (a.py:9)"}}));
}

// Two lines were added above: a line that stands where another stood is not that one.
TEST(MovedLines, WhatMostLinesSayIsHowFarTheyMoved) {
  EXPECT_EQ(pairs_of({"f (a.py:229)", "f (a.py:230)", "f (a.py:232)"},
                     {"f (a.py:234)", "f (a.py:231)", "f (a.py:232)"}),
            (Pairs{{"f (a.py:229)", "f (a.py:231)"},
                   {"f (a.py:230)", "f (a.py:232)"},
                   {"f (a.py:232)", "f (a.py:234)"}}));
  // Between them: what is above stays.
  EXPECT_EQ(
      pairs_of({"f (a.py:10)", "f (a.py:20)", "f (a.py:30)"}, {"f (a.py:10)", "f (a.py:22)", "f (a.py:32)"}),
      (Pairs{
          {"f (a.py:10)", "f (a.py:10)"}, {"f (a.py:20)", "f (a.py:22)"}, {"f (a.py:30)", "f (a.py:32)"}}));
}

TEST(MovedLines, CallsOfOneFunctionKeepTheirOrder) {
  EXPECT_EQ(pairs_of({"f /a.py:30", "f /a.py:9"}, {"f /a.py:110", "f /a.py:40"}),
            (Pairs{{"f /a.py:9", "f /a.py:40"}, {"f /a.py:30", "f /a.py:110"}}));
}

TEST(MovedLines, OtherFunctionsAndFilesAreOthers) {
  EXPECT_EQ(pairs_of({"f (a.py:1)", "MmBackward0"}, {"g (a.py:1)", "f (b.py:1)", "AddBackward0"}),
            (Pairs{{"f (a.py:1)", "-"},
                   {"MmBackward0", "-"},
                   {"-", "g (a.py:1)"},
                   {"-", "f (b.py:1)"},
                   {"-", "AddBackward0"}}));
}

TEST(MovedLines, WhatIsMoreOnOneSideIsLeftAlone) {
  EXPECT_EQ(pairs_of({"f (a.py:1)"}, {"f (a.py:5)", "f (a.py:8)"}),
            (Pairs{{"f (a.py:1)", "f (a.py:5)"}, {"-", "f (a.py:8)"}}));
  EXPECT_EQ(pairs_of({}, {}), Pairs{});
}

// A colon without a number behind it, or with more than a number, is no line's.
TEST(MovedLines, NamesWithoutALineMatchAsTheyAre) {
  EXPECT_EQ(pairs_of({"at::_ops::mm", "requests up to 2 KiB", "", "a:1b"},
                     {"at::_ops::add", "requests up to 2 KiB", "", "a:2b"}),
            (Pairs{{"at::_ops::mm", "-"},
                   {"-", "at::_ops::add"},
                   {"requests up to 2 KiB", "requests up to 2 KiB"},
                   {"", ""},
                   {"a:1b", "-"},
                   {"-", "a:2b"}}));
}

}  // namespace
}  // namespace spillway
