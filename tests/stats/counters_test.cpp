// The counters against the obvious way to keep them: one set of sums and peaks, brought up to date at each
// step.
#include "stats/counters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace spillway {
namespace {

constexpr int64_t kPage = 2 << 20;

spw_stat rows_all(const spw_pool_stat& stat) {
  return stat.all;
}

TEST(Counters, OneBlock) {
  DeviceCounters device;
  HeapCounters heap(device);
  device.on_reserve(kPage, 1);
  heap.on_pages(kPage);
  heap.on_allocate(SizePool::kLarge, 1000, 1024, kPage);
  DeviceStats stats = device.snapshot();
  EXPECT_EQ(stats.allocation.all.current, 1);
  EXPECT_EQ(stats.allocated_bytes.large_pool.current, 1024);
  EXPECT_EQ(stats.requested_bytes.all.current, 1000);
  EXPECT_EQ(stats.reserved_bytes.all.current, kPage);
  EXPECT_EQ(stats.inactive_split_bytes.all.current, kPage - 1024);
  EXPECT_EQ(stats.cached_free_bytes, 0);

  heap.on_free_requested(SizePool::kLarge, 1024);
  stats = device.snapshot();
  EXPECT_EQ(stats.allocation.all.current, 0);
  EXPECT_EQ(stats.active.all.current, 1);
  EXPECT_EQ(stats.pending_bytes, 1024);
  heap.on_free_completed(SizePool::kLarge, 1000, 1024, kPage);
  stats = device.snapshot();
  EXPECT_EQ(stats.active.all.current, 0);
  EXPECT_EQ(stats.pending_bytes, 0);
  EXPECT_EQ(stats.inactive_split_bytes.all.current, 0);
  EXPECT_EQ(stats.inactive_split_bytes.all.peak, kPage - 1024);
  EXPECT_EQ(stats.cached_free_bytes, kPage);
  EXPECT_EQ(rows_all(stats.active_bytes).peak, 1024);
  EXPECT_EQ(stats.active_bytes.all.allocated, 1024);
  EXPECT_EQ(stats.active_bytes.all.freed, 1024);
}

}  // namespace
}  // namespace spillway
