// A block may make some changes of place: every pair that is not legal is refused, and changes nothing.
#include "offload/spill/block.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace spillway::test {
namespace {

using enum SpillState;

const std::vector<SpillState> kAll{kResident, kEvicting,  kHost,      kWriting, kDisk,
                                   kReading,  kRestoring, kDiscarded, kPoisoned};

// As the header tells it; where a block is after each way there.
const std::set<std::pair<SpillState, SpillState>> kLegal{
    {kResident, kEvicting},  {kEvicting, kHost},      {kEvicting, kDisk},       {kEvicting, kResident},
    {kHost, kWriting},       {kWriting, kDisk},       {kWriting, kHost},        {kDisk, kReading},
    {kReading, kHost},       {kReading, kDisk},       {kReading, kPoisoned},    {kHost, kRestoring},
    {kDisk, kRestoring},     {kRestoring, kResident}, {kRestoring, kHost},      {kRestoring, kDisk},
    {kRestoring, kPoisoned}, {kResident, kDiscarded}, {kDiscarded, kRestoring}, {kRestoring, kDiscarded},
    {kPoisoned, kDiscarded},
};

TEST(SpillBlock, GoesOnlyWhereTheTableSays) {
  for (const SpillState from : kAll) {
    for (const SpillState to : kAll) {
      SpillBlock block(4096, from);
      const Status status = block.go(to);
      const bool is_legal = kLegal.count({from, to}) != 0;
      EXPECT_EQ(status.ok(), is_legal) << name_of(from) << " to " << name_of(to);
      EXPECT_EQ(block.state(), is_legal ? to : from);
    }
  }
}

TEST(SpillBlock, WhatIsLostCanOnlyBeGivenUp) {
  for (const SpillState to : kAll) {
    SpillBlock block(4096, kPoisoned);
    EXPECT_EQ(block.go(to).ok(), to == kDiscarded) << name_of(to);
  }
}

TEST(SpillBlock, EveryPlaceHasAName) {
  std::set<std::string> names;
  for (const SpillState place : kAll) names.insert(name_of(place));
  EXPECT_EQ(names.size(), kAll.size());
}

}  // namespace
}  // namespace spillway::test
