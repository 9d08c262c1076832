#include "cli/replay/capacity_search.h"

#include <gtest/gtest.h>

#include <set>

namespace spillway {
namespace {

constexpr uint64_t kPeak = 2'000'000'000;  // one step of the grid is a million bytes

// Runs the search against a set of grid points that fail, and keeps what was asked.
struct Search {
  std::set<uint64_t> failing = {};
  std::set<uint64_t> asked = {};
  unsigned width = 1;
  CapacityGrid grid{kPeak};

  std::optional<uint64_t> run(uint64_t unlimited_bytes) {
    const auto found =
        smallest_capacity(grid, unlimited_bytes, width, [&](const std::vector<uint64_t>& capacities) {
          EXPECT_LE(capacities.size(), width);
          std::vector<bool> out;
          for (const uint64_t capacity : capacities) {
            const uint64_t k = (capacity - kPeak) / 1'000'000;
            asked.insert(k);
            out.push_back(!failing.contains(k));
          }
          return Result<std::vector<bool>>(out);
        });
    EXPECT_TRUE(found.ok());
    return found.value();
  }
};

std::set<uint64_t> range(uint64_t first, uint64_t last) {
  std::set<uint64_t> out;
  for (uint64_t k = first; k <= last; ++k) out.insert(k);
  return out;
}

TEST(CapacityGrid, PointsAreStepsOfPeakRoundedUp) {
  const CapacityGrid grid{1999};
  EXPECT_EQ(grid.at(0), 1999u);
  EXPECT_EQ(grid.at(1), 2000u);
  EXPECT_EQ(grid.at(200), 1999u + 200);
  EXPECT_EQ(grid.first_from(1999), 0u);
  EXPECT_EQ(grid.first_from(2001), 2u);
  const CapacityGrid large{uint64_t{1} << 48};
  EXPECT_EQ(large.at(CapacityGrid::kSteps), uint64_t{1} << 49);
}

TEST(CapacitySearch, WhatTheUnlimitedRunHeldIsEnough) {
  for (const unsigned width : {1u, 2u, 8u}) {
    Search search{.failing = range(0, 4), .width = width};
    EXPECT_EQ(search.run(search.grid.at(9)), search.grid.at(5));
    EXPECT_EQ(*search.asked.rbegin(), 9u)
        << "points above what the unlimited run held are decided without a run";
    for (uint64_t k = 5; k <= 9; ++k)
      EXPECT_TRUE(search.asked.contains(k)) << "every point below it has a run";
  }
}

TEST(CapacitySearch, AFailureAboveASuccessCounts) {
  Search search{.failing = {0, 1, 2, 7}};
  EXPECT_EQ(search.run(search.grid.at(20)), search.grid.at(8));
  EXPECT_FALSE(search.asked.contains(3)) << "nothing below the first failure can be the answer";
}

TEST(CapacitySearch, PeakLiveItselfCanBeEnough) {
  Search search;
  EXPECT_EQ(search.run(kPeak), kPeak);
  EXPECT_EQ(search.asked, range(0, 0));
  EXPECT_EQ(search.run(search.grid.at(3)), kPeak);
}

TEST(CapacitySearch, AnAllocatorThatLooksAtTheCapacityHasEveryPointRun) {
  // It held 9 steps without a limit, and yet fails on a device of 9 steps and of 150.
  Search search{.failing = {0, 1, 9, 150}};
  EXPECT_EQ(search.run(search.grid.at(9)), search.grid.at(151));
  for (uint64_t k = 151; k <= 200; ++k) EXPECT_TRUE(search.asked.contains(k));
}

TEST(CapacitySearch, GoesCoarselyAboveTheGridAndFinelyInTheLastStep) {
  Search search{.failing = range(0, 643), .width = 2};
  EXPECT_EQ(search.run(search.grid.at(881)), search.grid.at(644));
  EXPECT_TRUE(search.asked.contains(890));
  EXPECT_TRUE(search.asked.contains(650));
  EXPECT_FALSE(search.asked.contains(655));
}

TEST(CapacitySearch, FromAboveTheGridIntoIt) {
  Search search{.failing = range(0, 150)};
  EXPECT_EQ(search.run(search.grid.at(300)), search.grid.at(151));
  for (uint64_t k = 151; k <= 200; ++k) EXPECT_TRUE(search.asked.contains(k));
}

TEST(CapacitySearch, NoCapacityAtAll) {
  Search search{.failing = range(0, 5000)};
  EXPECT_EQ(search.run(search.grid.at(10)), std::nullopt);
  EXPECT_EQ(search.run(search.grid.at(1000)), std::nullopt);
}

TEST(CapacitySearch, AFailureOfTheProbeIsPassedOn) {
  const auto found = smallest_capacity(CapacityGrid{kPeak}, kPeak, 1, [](const std::vector<uint64_t>&) {
    return Result<std::vector<bool>>(Status::internal("the worker died"));
  });
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().text(), "the worker died");
}

}  // namespace
}  // namespace spillway
