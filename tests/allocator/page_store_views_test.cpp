// Views of a page store.

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/seeded.h"
#include "tests/support/views.h"

namespace spillway::test {
namespace {

TEST_F(Views, ShowPagesInARow) {
  const ArenaLock lock(of.mutex);
  of.must_give(8, nullptr);
  const std::vector<PageId> pages = {5, 1, 3};
  const View* view = must_map(pages);
  EXPECT_EQ(view->pages, pages);
  EXPECT_EQ(view->mapped, 3u);
  EXPECT_EQ(view->end_va(), view->va + 3 * kPageBytes);
  EXPECT_EQ(store.live_mappings(), 11u);
  EXPECT_EQ(views(), 1u);
  for (uint32_t slot = 0; slot < 3; ++slot) {
    write(store.page(pages[slot]).va + 100, static_cast<uint8_t>(slot + 1));
    EXPECT_EQ(read(view->va + slot * kPageBytes + 100), slot + 1);
    const Alias* alias = store.page(pages[slot]).aliases;
    ASSERT_NE(alias, nullptr);
    EXPECT_EQ(alias->view, view);
    EXPECT_EQ(alias->slot, slot);
  }
  EXPECT_EQ(store.page(0).aliases, nullptr);
}

TEST_F(Views, AReleasedPageIsUnmappedEverywhereAndItsViewsLoseTheirRanges) {
  const ArenaLock lock(of.mutex);
  of.must_give(6, nullptr);
  View* one = must_map({0, 2, 4});
  View* two = must_map({2, 3});
  View* other = must_map({4, 5});
  const CachedRange in_one = range_in(*one);
  const CachedRange in_two = range_in(*two);
  const CachedRange in_other = range_in(*other);
  EXPECT_FALSE(is_lost(in_one));
  SPW_EXPECT_OK(store.release_pages({2}));
  EXPECT_TRUE(is_lost(in_one));
  EXPECT_TRUE(is_lost(in_two));
  EXPECT_FALSE(is_lost(in_other));
  EXPECT_EQ(one->pages, (std::vector<PageId>{0, kNoPage, 4}));
  EXPECT_EQ(two->pages, (std::vector<PageId>{kNoPage, 3}));
  EXPECT_EQ(one->mapped, 2u);
  EXPECT_EQ(two->mapped, 1u);
  EXPECT_EQ(store.page(2).aliases, nullptr);
  EXPECT_FALSE(store.backed(2));
  EXPECT_EQ(store.live_mappings(), 5u + 2 + 1 + 2);
  if (of.device.simulated()) {
    EXPECT_EQ(of.device.live_mappings(), store.live_mappings());
    EXPECT_EQ(of.device.live_handles(), 5u);
  }
}

TEST_F(Views, AViewEndsWithItsLastSlotAndItsAddressesServeAgain) {
  const ArenaLock lock(of.mutex);
  of.must_give(6, nullptr);
  View* view = must_map({0, 1});
  const uint64_t va = view->va;
  const CachedRange range = range_in(*view);
  SPW_EXPECT_OK(store.release_pages({0}));
  EXPECT_EQ(views(), 1u);
  SPW_EXPECT_OK(store.release_pages({1}));
  EXPECT_EQ(views(), 0u);
  const View* next = must_map({3, 5});
  EXPECT_EQ(next->va, va);
  // The object serves again, but no range of its earlier life.
  EXPECT_TRUE(is_lost(range));
}

TEST_F(Views, AddressesThatAreGivenBackJoin) {
  const ArenaLock lock(of.mutex);
  of.must_give(8, nullptr);
  View* one = must_map({0, 1});
  View* two = must_map({2, 3});
  must_map({4, 5});
  EXPECT_EQ(two->va, one->end_va());
  const uint64_t va = one->va;
  for (View* view : {two, one}) {
    view->retired = true;
    view->lose_ranges();
    SPW_EXPECT_OK(store.unmap_retired());
  }
  EXPECT_EQ(must_map({0, 1, 2, 3})->va, va);
}

TEST_F(Views, RetiredOnesAreUnmappedNeighboursInOneCall) {
  const ArenaLock lock(of.mutex);
  of.must_give(8, nullptr);
  std::vector<View*> made;
  for (PageId id = 0; id < 4; ++id) made.push_back(must_map({id, id + 4}));
  SPW_EXPECT_OK(store.unmap_retired());
  EXPECT_EQ(views(), 4u);
  for (const size_t retired : {0u, 1u, 3u}) made[retired]->retired = true;
  const uint64_t before = of.device.simulated() ? of.device.calls("cuMemUnmap") : 0;
  SPW_EXPECT_OK(store.unmap_retired());
  if (of.device.simulated()) {
    EXPECT_EQ(of.device.calls("cuMemUnmap") - before, 2u) << "the first two lie in a row";
    EXPECT_EQ(of.device.live_mappings(), store.live_mappings());
  }
  EXPECT_EQ(views(), 1u);
  EXPECT_EQ(store.live_mappings(), 8u + 2);
  for (PageId id = 0; id < 8; ++id) {
    EXPECT_TRUE(store.backed(id));
    EXPECT_EQ(store.page(id).aliases != nullptr, id % 4 == 2) << id;
  }
}

TEST_F(Views, WhatCannotBeUnmappedStaysRetired) {
  if (!of.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  const ArenaLock lock(of.mutex);
  of.must_give(4, nullptr);
  View* view = must_map({0, 2});
  view->retired = true;
  of.device.inject_fault("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(store.unmap_retired().ok());
  EXPECT_TRUE(view->retired);
  EXPECT_EQ(view->mapped, 2u);
  EXPECT_EQ(store.live_mappings(), 6u);
  SPW_EXPECT_OK(store.unmap_retired());
  EXPECT_EQ(store.live_mappings(), 4u);
}

TEST_F(Views, AFailureLeavesNothingMapped) {
  if (!of.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  const ArenaLock lock(of.mutex);
  of.must_give(4, nullptr);
  uint64_t va = 0;
  for (const auto& [call, nth] : {std::pair{"cuMemMap", 1}, {"cuMemMap", 3}, {"cuMemSetAccess", 1}}) {
    SCOPED_TRACE(call);
    of.device.inject_fault(call, static_cast<uint64_t>(nth), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(store.map_view({3, 1, 2}).status().code(), SPW_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(views(), 0u);
    EXPECT_EQ(store.live_mappings(), 4u);
    EXPECT_EQ(of.device.live_mappings(), 4u);
    for (PageId id = 0; id < 4; ++id) EXPECT_EQ(store.page(id).aliases, nullptr);
    // The addresses are not lost.
    View* view = must_map({3, 1, 2});
    if (va == 0) va = view->va;
    EXPECT_EQ(view->va, va);
    view->retired = true;
    SPW_EXPECT_OK(store.unmap_retired());
  }
}

TEST_F(Views, WhatAFailureLeavesMappedServesNobodyAndGoesWithItsPages) {
  if (!of.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  const ArenaLock lock(of.mutex);
  of.must_give(4, nullptr);
  of.device.inject_fault("cuMemMap", 3, CUDA_ERROR_OUT_OF_MEMORY);
  of.device.inject_fault("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  of.device.inject_fault("cuMemUnmap", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(store.map_view({3, 1, 2}).ok());
  uint32_t retired = 0;
  store.for_each_view([&](const View& view) { retired += view.retired && view.mapped == 2; });
  EXPECT_EQ(retired, 1u);
  SPW_EXPECT_OK(store.release_pages({3}));
  SPW_EXPECT_OK(store.release_pages({1}));
  EXPECT_EQ(views(), 0u);
  EXPECT_EQ(of.device.live_mappings(), 2u);
}

}  // namespace
}  // namespace spillway::test
