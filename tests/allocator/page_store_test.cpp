#include "allocator/page_store.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/page_stores.h"
#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

constexpr uint64_t kLong = uint64_t{1} << 40;

template <typename Kind>
class PageStoreKinds : public testing::Test {};
TYPED_TEST_SUITE(PageStoreKinds, StoreKinds, KindName);

TYPED_TEST(PageStoreKinds, PagesAreUsableAtHomeAndGoAgain) {
  StoreOf<TypeParam> of;
  PageStore& store = of.store();
  const auto owner = of.heap();
  const ArenaLock lock(of.mutex);
  EXPECT_EQ(store.home_end(), 0u);
  const PageId first = of.must_give(3, owner.get());
  std::set<uint64_t> serials;
  for (PageId id = first; id < first + 3; ++id) {
    const Page& page = store.page(id);
    EXPECT_TRUE(store.backed(id));
    EXPECT_EQ(page.owner.load(), owner.get());
    EXPECT_EQ(page.va, store.page(first).va + (id - first) * kPageBytes);
    EXPECT_EQ(page.va % kSlabBytes, 0u);
    EXPECT_TRUE(page.is_home);
    EXPECT_TRUE(page.free_quanta.empty());
    EXPECT_EQ(page.aliases, nullptr);
    EXPECT_TRUE(serials.insert(page.serial).second);
  }
  of.device.touch(nullptr, reinterpret_cast<void*>(store.page(first).va), 3 * kPageBytes);
  EXPECT_EQ(of.device.driver->cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(of.device.reports(), "");

  of.release([](PageId) { return true; });
  for (PageId id = first; id < first + 3; ++id) {
    EXPECT_FALSE(store.backed(id));
    EXPECT_EQ(store.page(id).owner.load(), nullptr);
  }
  EXPECT_EQ(store.page_count(), 0u);
  EXPECT_EQ(store.live_mappings(), 0u);
  if (of.device.simulated()) {
    EXPECT_EQ(of.device.live_handles(), 0u);
    EXPECT_EQ(of.device.live_mappings(), 0u);
  }
  // A page that comes anew is another, under the same number or not.
  const PageId again = of.must_give(3, owner.get());
  for (PageId id = again; id < again + 3; ++id) EXPECT_TRUE(serials.insert(store.page(id).serial).second);
}

// Against a plain model: which pages there are, and of which segment.
TYPED_TEST(PageStoreKinds, CountsAndNumbersAgreeWithWhatIsThere) {
  StoreOf<TypeParam> of("capacity:1GiB,backing:none,races:off");
  PageStore& store = of.store();
  const auto owner = of.heap();
  const ArenaLock lock(of.mutex);
  Random random(3);
  std::map<PageId, uint32_t> given;  // first page and count
  PageId highest = 0;
  for (int step = 0; step < 400; ++step) {
    if (random() % 5 < 3 && store.page_count() < 200) {
      const uint32_t count = 1 + random() % 12;
      const PageId first = of.must_give(count, owner.get());
      for (const auto& [other, others] : given) {
        // Segments are kept apart by a page that is none.
        const uint32_t gap = TypeParam::kHasViews ? 0 : 1;
        ASSERT_TRUE(first + count + gap <= other || other + others + gap <= first) << first;
      }
      given[first] = count;
      highest = std::max(highest, first + count);
    } else if (!given.empty()) {
      const auto gone = std::next(given.begin(), static_cast<ptrdiff_t>(random() % given.size()));
      const auto [first, count] = *gone;
      given.erase(gone);
      of.release([first = first, count = count](PageId id) { return id >= first && id < first + count; });
    }
    uint32_t pages = 0;
    std::vector<bool> is_there(highest + 1, false);
    for (const auto& [first, count] : given) {
      pages += count;
      std::fill_n(is_there.begin() + first, count, true);
    }
    for (PageId id = 0; id <= highest; ++id) ASSERT_EQ(store.backed(id), is_there[id]) << id;
    ASSERT_EQ(store.page_count(), pages);
    ASSERT_EQ(store.reserved_bytes(), pages * kPageBytes);
    ASSERT_EQ(of.counted_bytes(), static_cast<int64_t>(pages * kPageBytes));
    ASSERT_EQ(store.live_mappings(), pages);
    // The lowest run of numbers without memory.
    const uint32_t wanted = 1 + random() % 8;
    PageId lowest = 0;
    for (PageId id = 0; id < lowest + wanted; ++id) {
      if (id <= highest && is_there[id]) lowest = id + 1;
    }
    ASSERT_EQ(store.find_unbacked(wanted), lowest);
  }
  // What went is given out again, so that the numbers of many small pages do not run out.
  EXPECT_LT(highest, 450u);
}

TYPED_TEST(PageStoreKinds, NumbersRunOutInsteadOfMeetingOthers) {
  StoreOf<TypeParam> of("capacity:64MiB");
  if (!of.device.simulated()) GTEST_SKIP() << "needs a small device";
  const ArenaLock lock(of.mutex);
  EXPECT_NE(of.store().find_unbacked(of.store().id_capacity()), kNoPage);
  EXPECT_EQ(of.store().find_unbacked(of.store().id_capacity() + 1), kNoPage);
  const auto owner = of.heap();
  of.must_give(1, owner.get());
  EXPECT_EQ(of.store().find_unbacked(of.store().id_capacity()), kNoPage);
}

TYPED_TEST(PageStoreKinds, SegmentsGoOnlyWhole) {
  StoreOf<TypeParam> of;
  PageStore& store = of.store();
  const auto owner = of.heap();
  const ArenaLock lock(of.mutex);
  const PageId one = of.must_give(4, owner.get());
  const PageId two = of.must_give(2, owner.get());
  of.release([&](PageId id) { return id != one + 2; });
  EXPECT_FALSE(store.backed(two));
  EXPECT_FALSE(store.backed(two + 1));
  EXPECT_TRUE(store.backed(one + 2));
  EXPECT_EQ(store.page_count(), TypeParam::kHasViews ? 1u : 4u);
  EXPECT_EQ(of.counted_bytes(), static_cast<int64_t>(store.reserved_bytes()));
  of.release([](PageId) { return true; });
  EXPECT_EQ(store.page_count(), 0u);
}

TYPED_TEST(PageStoreKinds, TellsHowManyPagesMoreThereMayBe) {
  StoreOf<TypeParam> of;
  PageStore& store = of.store();
  const auto owner = of.heap();
  const ArenaLock lock(of.mutex);
  store.set_most_pages(10);
  store.set_soft_most_pages(6);
  of.must_give(4, owner.get());
  EXPECT_EQ(store.room_pages(), 6u);
  EXPECT_EQ(store.easy_room_pages(), 2u);
  EXPECT_TRUE(store.may_have_room(2));
  EXPECT_FALSE(store.may_have_room(3));
  of.must_give(3, owner.get());
  EXPECT_EQ(store.room_pages(), 3u);
  EXPECT_EQ(store.easy_room_pages(), 0u);
  // A limit below what is held takes nothing away.
  store.set_most_pages(5);
  EXPECT_EQ(store.room_pages(), 0u);
  EXPECT_EQ(store.page_count(), 7u);
  // The soft limit allows no more than the other.
  store.set_soft_most_pages(kLong);
  store.set_most_pages(9);
  EXPECT_EQ(store.easy_room_pages(), 2u);
}

TYPED_TEST(PageStoreKinds, AFullDeviceLeavesTheStoreAsItWas) {
  StoreOf<TypeParam> of("capacity:64MiB");
  if (!of.device.simulated()) GTEST_SKIP() << "needs a small device";
  PageStore& store = of.store();
  const auto owner = of.heap();
  const ArenaLock lock(of.mutex);
  PageId first = kNoPage;
  const uint32_t held = 20;
  of.must_give(held, owner.get());
  const Status status = of.give(40, owner.get(), &first);
  EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY) << status.text();
  if (TypeParam::kHasViews) {
    // Those that could be made are there.
    EXPECT_EQ(store.page_count(), 32u);
    EXPECT_TRUE(store.device_is_full());
    EXPECT_FALSE(store.may_have_room(1));
    store.note_room();
    EXPECT_TRUE(store.may_have_room(1));
  } else {
    EXPECT_EQ(store.page_count(), held);
  }
  EXPECT_EQ(of.counted_bytes(), static_cast<int64_t>(store.reserved_bytes()));
}

TEST(PageStore, NumbersOfSegmentsRunOutAndComeBack) {
  StoreOf<SourcedSegments> of("capacity:64MiB");
  if (!of.device.simulated()) GTEST_SKIP() << "needs a small device";
  PageStore& store = of.store();
  const ArenaLock lock(of.mutex);
  // Nobody touches this memory.
  const SegmentMemory nowhere{reinterpret_cast<void*>(kLong), 100 * kPageBytes};
  PageId first = kNoPage;
  Status status;
  uint32_t segments = 0;
  while ((status = store.add_segment(nowhere, 100, nullptr, &first)).ok()) ++segments;
  EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(segments, store.id_capacity() / 101);
  EXPECT_EQ(store.page_count(), segments * 100);
  // The last numbers, too few for a segment of that size, are taken.
  SPW_EXPECT_OK(store.add_segment(nowhere, store.id_capacity() - segments * 101 - 1, nullptr, &first));
  const auto of_second = [](PageId id) { return id >= 101 && id < 201; };
  ASSERT_EQ(store.take_segments(of_second, [](PageId) {}).size(), 1u);
  // The gap between two segments takes a number of what came back.
  SPW_EXPECT_OK(store.add_segment(nowhere, 50, nullptr, &first));
  EXPECT_EQ(first, 101u);
  EXPECT_FALSE(store.add_segment(nowhere, 50, nullptr, &first).ok());
  SPW_EXPECT_OK(store.add_segment(nowhere, 49, nullptr, &first));
  EXPECT_EQ(first, 152u);
}

TEST(PageStore, NumbersOfNeighboursJoinWhenTheyComeBack) {
  StoreOf<SourcedSegments> of;
  PageStore& store = of.store();
  const ArenaLock lock(of.mutex);
  const SegmentMemory nowhere{reinterpret_cast<void*>(kLong), 4 * kPageBytes};
  std::vector<PageId> firsts(4);
  for (PageId& first : firsts) SPW_EXPECT_OK(store.add_segment(nowhere, 3, nullptr, &first));
  for (const size_t gone : {0u, 2u, 1u}) {
    const auto goes = [&](PageId id) { return id >= firsts[gone] && id < firsts[gone] + 3; };
    EXPECT_EQ(store.take_segments(goes, [](PageId) {}).size(), 1u);
  }
  PageId first = kNoPage;
  SPW_EXPECT_OK(store.add_segment(nowhere, 12, nullptr, &first));
  EXPECT_EQ(first, firsts[3] + 4) << "a number is missing";
  SPW_EXPECT_OK(store.add_segment(nowhere, 11, nullptr, &first));
  EXPECT_EQ(first, firsts[0]);
}

TEST(PageStore, ASourcesMemoryBeginsWhereSlabsMay) {
  StoreOf<SourcedSegments> of;
  const ArenaLock lock(of.mutex);
  const SegmentMemory nowhere{reinterpret_cast<void*>(kLong + 512), kPageBytes + kSlabBytes};
  PageId first = kNoPage;
  SPW_EXPECT_OK(of.store().add_segment(nowhere, 1, nullptr, &first));
  EXPECT_EQ(of.store().page(first).va, kLong + kSlabBytes);
  const std::vector<SegmentMemory> taken =
      of.store().take_segments([](PageId) { return true; }, [](PageId) {});
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].pointer, nowhere.pointer);
  EXPECT_EQ(taken[0].bytes, nowhere.bytes);
}

// ---- Failures of the driver

struct Faults {
  const char* call;
  uint64_t nth;
  uint32_t created;  // of four pages
};

TEST(PageStore, PagesBeforeAFailureAreThereAndThoseBehindItAreNot) {
  for (const Faults& fault : {Faults{"cuMemCreate", 1, 0}, Faults{"cuMemCreate", 3, 2},
                              Faults{"cuMemMap", 4, 3}, Faults{"cuMemSetAccess", 1, 0}}) {
    SCOPED_TRACE(std::string(fault.call) + " " + std::to_string(fault.nth));
    StoreOf<VirtualMemory> of;
    if (!of.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
    PageStore& store = of.store();
    const auto owner = of.heap();
    const ArenaLock lock(of.mutex);
    of.must_give(2, owner.get());
    of.device.inject_fault(fault.call, fault.nth, CUDA_ERROR_OUT_OF_MEMORY);
    uint32_t created = 77;
    EXPECT_EQ(store.create_pages(2, 4, owner.get(), &created).code(), SPW_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(created, fault.created);
    for (PageId id = 2; id < 6; ++id) EXPECT_EQ(store.backed(id), id < 2 + fault.created) << id;
    EXPECT_EQ(store.page_count(), 2 + fault.created);
    EXPECT_EQ(of.counted_bytes(), static_cast<int64_t>(store.reserved_bytes()));
    EXPECT_EQ(of.device.live_handles(), store.page_count());
    EXPECT_EQ(of.device.live_mappings(), store.page_count());
    // What is there can be used, and what is missing made.
    SPW_EXPECT_OK(store.create_pages(2 + created, 4 - created, owner.get(), &created));
    of.device.touch(nullptr, reinterpret_cast<void*>(store.page(0).va), 6 * kPageBytes);
    of.device.driver->cuCtxSynchronize();
    EXPECT_EQ(of.device.reports(), "");
  }
}

TEST(PageStore, AnotherErrorDoesNotSayThatTheDeviceIsFull) {
  StoreOf<VirtualMemory> of;
  if (!of.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  const ArenaLock lock(of.mutex);
  of.device.inject_fault("cuMemCreate", 1, CUDA_ERROR_NOT_PERMITTED);
  uint32_t created = 0;
  EXPECT_EQ(of.store().create_pages(0, 1, nullptr, &created).code(), SPW_ERROR_DRIVER);
  EXPECT_FALSE(of.store().device_is_full());
}

TEST(PageStore, PagesThatTheDriverHoldsOnToAreNotGivenOut) {
  StoreOf<VirtualMemory> of;
  if (!of.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  PageStore& store = of.store();
  const ArenaLock lock(of.mutex);
  of.device.inject_fault("cuMemSetAccess", 1, CUDA_ERROR_OUT_OF_MEMORY);
  of.device.inject_fault("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  of.device.inject_fault("cuMemUnmap", 2, CUDA_ERROR_UNKNOWN);
  uint32_t created = 0;
  EXPECT_FALSE(store.create_pages(0, 2, nullptr, &created).ok());
  EXPECT_EQ(created, 0u);
  EXPECT_EQ(store.page_count(), 0u);
  EXPECT_EQ(store.find_unbacked(1), 2u);
}

TEST(PageStore, ASegmentThatTheDriverRefusesChangesNothing) {
  StoreOf<Segments> of;
  if (!of.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  const ArenaLock lock(of.mutex);
  of.device.inject_fault("cuMemAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
  PageId first = kNoPage;
  EXPECT_EQ(of.store().create_segment(3, nullptr, &first).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(of.store().page_count(), 0u);
  SPW_EXPECT_OK(of.store().create_segment(3, nullptr, &first));
  EXPECT_EQ(first, 0u);
}

}  // namespace
}  // namespace spillway::test
