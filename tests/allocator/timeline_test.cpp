#include "allocator/timeline.h"

#include <gtest/gtest.h>

namespace spillway::test {
namespace {

TEST(Timeline, AStreamThatTakesOverHasWaitedForNothing) {
  Timeline other;
  Timeline timeline;
  timeline.note_wait(&other, other.epoch() + 1);
  EXPECT_TRUE(timeline.has_waited(&other, other.epoch()));
  timeline.seal(false);
  timeline.end_wait(timeline.begin_wait());
  timeline.reopen();
  EXPECT_FALSE(timeline.has_waited(&other, other.epoch()));
}

TEST(Timeline, WhatWasStampedBeforeAWaitOfTheHostIsCompleteAfterIt) {
  Timeline timeline;
  const uint64_t before = timeline.epoch();
  EXPECT_TRUE(timeline.is_complete(0)) << "pages that were never used";
  EXPECT_FALSE(timeline.is_complete(before));
  const uint64_t awaited = timeline.begin_wait();
  const uint64_t meanwhile = timeline.epoch();
  EXPECT_FALSE(timeline.is_complete(before));
  timeline.end_wait(awaited);
  EXPECT_TRUE(timeline.is_complete(before));
  EXPECT_FALSE(timeline.is_complete(meanwhile));
}

TEST(Timeline, OfTwoWaitsAtATimeTheOneThatEndsLastTakesNothingBack) {
  Timeline timeline;
  const uint64_t first = timeline.begin_wait();
  const uint64_t between = timeline.epoch();
  const uint64_t second = timeline.begin_wait();
  timeline.end_wait(second);
  EXPECT_TRUE(timeline.is_complete(between));
  timeline.end_wait(first);
  EXPECT_TRUE(timeline.is_complete(between));
}

TEST(Timeline, RemembersTheLatestWaitForEachOther) {
  Timeline one;
  Timeline two;
  Timeline timeline;
  EXPECT_FALSE(timeline.has_waited(&one, 0));
  timeline.note_wait(&one, 5);
  timeline.note_wait(&two, 3);
  timeline.note_wait(&one, 4);
  EXPECT_TRUE(timeline.has_waited(&one, 4));
  EXPECT_FALSE(timeline.has_waited(&one, 5));
  EXPECT_TRUE(timeline.has_waited(&two, 2));
  EXPECT_FALSE(timeline.has_waited(&two, 3));
}

TEST(Timeline, OfAStreamThatIsGoneAllIsCoveredOrNothing) {
  for (const bool covered : {false, true}) {
    Timeline timeline;
    timeline.seal(covered);
    EXPECT_EQ(timeline.is_covered(), covered);
    EXPECT_GT(timeline.recorded(), timeline.epoch());
    EXPECT_FALSE(timeline.is_over());
    timeline.end_wait(timeline.begin_wait());
    EXPECT_TRUE(timeline.is_over());
    timeline.reopen();
    EXPECT_FALSE(timeline.is_over());
    EXPECT_FALSE(timeline.is_covered());
    EXPECT_FALSE(timeline.is_complete(timeline.epoch()));
  }
}

}  // namespace
}  // namespace spillway::test
