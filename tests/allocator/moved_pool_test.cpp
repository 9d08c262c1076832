#include "allocator/moved_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace spillway::test {
namespace {

using enum PoolStay;

constexpr PoolStay kAll[] = {kHere, kLeaving, kLeft, kAway, kReturning, kArriving};
const std::set<std::pair<PoolStay, PoolStay>> kLegal = {
    {kHere, kLeaving},   {kLeaving, kLeft},   {kLeaving, kHere},
    {kLeft, kAway},      {kAway, kReturning}, {kReturning, kArriving},
    {kReturning, kAway}, {kArriving, kHere},  {kArriving, kReturning},
};
// A way from kHere to each state.
const std::vector<PoolStay> kTour = {kLeaving, kLeft, kAway, kReturning, kArriving};

void bring_to(MovablePool& pool, PoolStay stay) {
  for (const PoolStay next : kTour) {
    if (pool.stay() == stay) return;
    ASSERT_TRUE(pool.go(next).ok());
  }
}

TEST(MovedPool, EveryOtherChangeIsRefusedAndChangesNothing) {
  for (const PoolStay from : kAll) {
    for (const PoolStay to : kAll) {
      MovablePool pool;
      bring_to(pool, from);
      ASSERT_EQ(pool.stay(), from);
      const bool legal = kLegal.count({from, to}) != 0;
      const Status status = pool.go(to);
      EXPECT_EQ(status.ok(), legal) << name_of(from) << " to " << name_of(to);
      EXPECT_EQ(pool.stay(), legal ? to : from);
      if (legal) continue;
      EXPECT_EQ(status.code(), SPW_ERROR_INTERNAL);
      EXPECT_NE(status.text().find(std::string(name_of(from)) + " cannot become " + name_of(to)),
                std::string::npos)
          << status.text();
    }
  }
}

TEST(MovedPool, ItCountsForNothingFromWhenItLeftToWhenItArrives) {
  const std::set<PoolStay> away = {kLeft, kAway, kReturning};
  const std::set<PoolStay> moving = {kLeaving, kLeft, kReturning, kArriving};
  for (const PoolStay stay : kAll) {
    MovablePool pool;
    bring_to(pool, stay);
    EXPECT_EQ(pool.is_away(), away.count(stay) != 0) << name_of(stay);
    EXPECT_EQ(pool.is_moving(), moving.count(stay) != 0) << name_of(stay);
  }
}

}  // namespace
}  // namespace spillway::test
