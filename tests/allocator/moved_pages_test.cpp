// Pages that leave the device and come back (moved_pages.cpp).

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/views.h"

namespace spillway::test {
namespace {

class PagesOut : public Views {};

TEST_F(PagesOut, KeepTheirAddressesAndComeBackToThem) {
  const ArenaLock lock(of.mutex);
  const auto owner = of.heap();
  of.must_give(6, owner.get());
  View* kept = must_map({1, 4});
  View* lost = must_map({2, 4});
  const CachedRange in_kept = range_in(*kept);
  const CachedRange in_lost = range_in(*lost);
  const uint64_t home = store.page(4).va;
  const uint64_t serial = store.page(4).serial;
  store.count_out({2, 4}, true);
  EXPECT_EQ(store.page_count(), 4u);
  EXPECT_EQ(of.counted_bytes(), static_cast<int64_t>(4 * kPageBytes));
  store.take_out({2, 4}, [&](const View* view, uint32_t) { return view == kept; });
  for (const PageId id : {2u, 4u}) {
    EXPECT_TRUE(store.backed(id)) << "its number is not another's";
    EXPECT_EQ(store.page(id).owner.load(), owner.get());
    EXPECT_EQ(store.page(id).handle, 0u);
  }
  EXPECT_EQ(store.stuck_bytes({2, 4}), 0u);
  EXPECT_EQ(store.live_mappings(), 4u + 1);
  if (of.device.simulated()) {
    EXPECT_EQ(of.device.live_handles(), 4u);
    EXPECT_EQ(of.device.live_mappings(), 5u);
  }
  EXPECT_TRUE(is_lost(in_lost));
  EXPECT_FALSE(is_lost(in_kept));
  EXPECT_EQ(kept->pages, (std::vector<PageId>{1, 4}));
  EXPECT_EQ(views(), 1u);

  SPW_EXPECT_OK(store.put_back({2, 4}));
  store.count_out({2, 4}, false);
  EXPECT_EQ(store.page_count(), 6u);
  EXPECT_EQ(of.counted_bytes(), static_cast<int64_t>(6 * kPageBytes));
  EXPECT_EQ(store.page(4).va, home);
  EXPECT_NE(store.page(4).serial, serial) << "other memory";
  write(home + 7, 42);
  EXPECT_EQ(read(kept->va + kPageBytes + 7), 42);
  EXPECT_EQ(store.live_mappings(), 6u + 2);
}

TEST_F(PagesOut, StayOutWhereTheyCannotComeBack) {
  if (!of.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  const ArenaLock lock(of.mutex);
  of.must_give(4, nullptr);
  must_map({3, 1});
  store.take_out({1, 2}, [](const View*, uint32_t) { return true; });
  for (const auto& [call, nth] : {std::pair{"cuMemCreate", 2}, {"cuMemMap", 3}, {"cuMemSetAccess", 2}}) {
    SCOPED_TRACE(call);
    of.device.inject_fault(call, static_cast<uint64_t>(nth), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(store.put_back({1, 2}).code(), SPW_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(store.page(1).handle, 0u);
    EXPECT_EQ(store.page(2).handle, 0u);
    EXPECT_EQ(of.device.live_handles(), 2u);
    EXPECT_EQ(of.device.live_mappings(), 3u);
    EXPECT_EQ(store.live_mappings(), 3u);
  }
  SPW_EXPECT_OK(store.put_back({1, 2}));
  EXPECT_EQ(of.device.live_mappings(), 6u);
}

TEST_F(PagesOut, WhatTheDriverDoesNotUnmapIsStuckAndComesBackAsItIs) {
  if (!of.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  const ArenaLock lock(of.mutex);
  of.must_give(3, nullptr);
  write(store.page(0).va, 9);
  of.device.inject_fault("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  store.take_out({0, 2}, [](const View*, uint32_t) { return true; });
  EXPECT_EQ(store.stuck_bytes({0, 2}), kPageBytes);
  SPW_EXPECT_OK(store.put_back({0, 2}));
  EXPECT_EQ(read(store.page(0).va), 9);
}

TEST_F(PagesOut, ThatNobodyNeedsGiveTheirNumbersBack) {
  const ArenaLock lock(of.mutex);
  of.must_give(4, nullptr);
  View* view = must_map({0, 2});
  const CachedRange range = range_in(*view);
  store.count_out({1, 2}, true);
  store.take_out({1, 2}, [](const View*, uint32_t) { return true; });
  store.forget_out({1, 2});
  EXPECT_FALSE(store.backed(1));
  EXPECT_FALSE(store.backed(2));
  EXPECT_TRUE(is_lost(range));
  EXPECT_EQ(store.find_unbacked(2), 1u);
  EXPECT_EQ(store.page_count(), 2u);
  EXPECT_EQ(of.must_give(2, nullptr), 1u);
}

}  // namespace
}  // namespace spillway::test
