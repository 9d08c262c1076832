#include "estimator/reserved.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "estimator/verdict.h"
#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

const char* kind_name(ReservedKind kind) {
  switch (kind) {
    case ReservedKind::kPlain:
      return "plain";
    case ReservedKind::kRecomputed:
      return "recomputed";
    case ReservedKind::kRoutedExperts:
      return "routed";
    case ReservedKind::kSharded:
      return "sharded";
  }
  return "";
}

// Shares of one allocator in the recorded runs of one kind, the smallest first.
std::vector<double> recorded(const ReservedShare& share) {
  std::ifstream file(SPILLWAY_RESERVED_ROWS);
  std::vector<double> out;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (row["kind"] != kind_name(share.kind) || !row.contains(allocator_name(share.allocator))) continue;
    out.push_back(row[allocator_name(share.allocator)].get<double>());
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST(Reserved, SharesAreThoseOfTheRecordedRuns) {
  for (const ReservedShare& share : kReservedShares) {
    const std::vector<double> rows = recorded(share);
    const std::string what = std::string(allocator_name(share.allocator)) + " " + kind_name(share.kind);
    ASSERT_EQ(rows.size(), static_cast<size_t>(share.rows)) << what;
    ASSERT_FALSE(rows.empty()) << what;
    const size_t middle = rows.size() / 2;
    const double median = rows.size() % 2 == 1 ? rows[middle] : (rows[middle - 1] + rows[middle]) / 2;
    EXPECT_EQ(share.lowest, rows.front()) << what;
    EXPECT_NEAR(share.expected, median, 5e-5 + 1e-9) << what;
    EXPECT_EQ(share.highest, rows.back()) << what;
  }
}

TEST(Reserved, EveryAllocatorHasEveryKind) {
  for (const AllocatorModel allocator : kAllocators) {
    for (const ReservedKind kind : {ReservedKind::kPlain, ReservedKind::kRecomputed,
                                    ReservedKind::kRoutedExperts, ReservedKind::kSharded}) {
      EXPECT_EQ(std::count_if(kReservedShares.begin(), kReservedShares.end(),
                              [&](const ReservedShare& share) {
                                return share.allocator == allocator && share.kind == kind;
                              }),
                1)
          << allocator_name(allocator) << " " << kind_name(kind);
    }
    EXPECT_EQ(find_allocator(allocator_name(allocator)), allocator);
  }
  EXPECT_FALSE(find_allocator("jemalloc").has_value());
}

TEST(Reserved, TheKindFollowsFromTheRun) {
  const RunKeys keys = llama32_3b();
  const auto kind = [&](const RunKeys& more) { return reserved_kind(must_read(with(keys, more))); };
  EXPECT_EQ(kind({}), ReservedKind::kPlain);
  EXPECT_EQ(kind({{"train.recompute", "full"}}), ReservedKind::kRecomputed);
  EXPECT_EQ(kind({{"parallel.zero", "3"}}), ReservedKind::kPlain);  // one GPU shards nothing
  EXPECT_EQ(kind({{"parallel.zero", "3"}, {"parallel.gpus", "8"}, {"train.recompute", "full"}}),
            ReservedKind::kSharded);
  EXPECT_EQ(kind({{"model.model_type", "mixtral"}, {"model.num_local_experts", "8"}}),
            ReservedKind::kRoutedExperts);
}

TEST(Reserved, NeededIsWhatTheAllocatorReservesAndWhatLiesOutside) {
  for (const AllocatorModel allocator : kAllocators) {
    const TrainingRun run = must_read(
        with(llama32_3b(), {{"allocator.model", allocator_name(allocator)}, {"overhead.context", "1GiB"}}));
    ASSERT_EQ(run.allocator, allocator);
    const Estimate answer = must_estimate(run);
    const ReservedBytes reserved = reserved_bytes(run, answer.peak().peak_bytes);
    EXPECT_EQ(needed_bytes(run, answer), reserved.expected + (1 << 30));
    EXPECT_LE(answer.peak().peak_bytes, reserved.lowest);
    EXPECT_LE(reserved.lowest, reserved.expected);
    EXPECT_LE(reserved.expected, reserved.highest);
  }
}

// What the allocator reserves beside tensors moves no bucket; only the native one's rounding does.
TEST(Reserved, BucketsStay) {
  const auto peak = [](const char* allocator) {
    return must_estimate(must_read(with(llama32_3b(), {{"allocator.model", allocator}}))).peak().peak_bytes;
  };
  EXPECT_EQ(peak("spillway"), peak("expandable"));
  EXPECT_EQ(must_read(with(llama32_3b(), {{"allocator.model", "native"}})).allocator,
            AllocatorModel::kPytorch);
}

}  // namespace
}  // namespace spillway::estimator::test
