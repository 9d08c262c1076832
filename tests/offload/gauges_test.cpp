// Counters of pinned memory: what they are at, their highest point, and all that came and went.
#include "offload/gauges.h"

#include <gtest/gtest.h>

namespace spillway::test {
namespace {

TEST(Gauges, AStatHasItsPeakAndAllThatCameAndWent) {
  spw_stat stat{};
  for (const int64_t change : {10, 5, -12, 4}) count(stat, change);
  EXPECT_EQ(stat.current, 7);
  EXPECT_EQ(stat.peak, 15);
  EXPECT_EQ(stat.allocated, 19);
  EXPECT_EQ(stat.freed, 12);
}

TEST(Gauges, APeakStartsAgainFromWhatIsHeld) {
  spw_stat stat{};
  for (const int64_t change : {10, -4}) count(stat, change);
  reset_peak(stat);
  EXPECT_EQ(stat.peak, 6);
  EXPECT_EQ(stat.allocated, 10) << "of the peak alone";
  count(stat, 1);
  EXPECT_EQ(stat.peak, 7);
}

TEST(Gauges, WhatCameAndWentStartsAgainFromNothing) {
  spw_stat stat{};
  for (const int64_t change : {10, -4}) count(stat, change);
  reset_accumulated(stat);
  EXPECT_EQ(stat.allocated, 0);
  EXPECT_EQ(stat.freed, 0);
  EXPECT_EQ(stat.current, 6);
  EXPECT_EQ(stat.peak, 10);
}

TEST(Gauges, ADurationHasItsExtremesAndItsSum) {
  spw_duration duration{};
  for (const int64_t time_us : {30, 10, 40, 20}) count(duration, time_us);
  EXPECT_EQ(duration.count, 4);
  EXPECT_EQ(duration.total_us, 100);
  EXPECT_EQ(duration.shortest_us, 10);
  EXPECT_EQ(duration.longest_us, 40);
}

TEST(Gauges, ExtremesOfADurationStartAgainWithTheNext) {
  spw_duration duration{};
  for (const int64_t time_us : {30, 10}) count(duration, time_us);
  reset_peak(duration);
  EXPECT_EQ(duration.shortest_us, 0);
  EXPECT_EQ(duration.longest_us, 0);
  EXPECT_EQ(duration.total_us, 40);
  count(duration, 20);
  EXPECT_EQ(duration.shortest_us, 20);
  EXPECT_EQ(duration.longest_us, 20);
}

TEST(Gauges, TheSumOfADurationStartsAgainFromNothing) {
  spw_duration duration{};
  for (const int64_t time_us : {30, 10}) count(duration, time_us);
  reset_accumulated(duration);
  EXPECT_EQ(duration.count, 0);
  EXPECT_EQ(duration.total_us, 0);
  EXPECT_EQ(duration.shortest_us, 10);
  EXPECT_EQ(duration.longest_us, 30);
}

}  // namespace
}  // namespace spillway::test
