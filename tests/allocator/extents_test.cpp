// Extents: when they are made, and that their pages come, go, are lent and shown together.
#include "allocator/extents.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "tests/support/device.h"
#include "tests/support/page_stores.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr uint64_t kExtentBytes = kExtentPages * kPageBytes;
constexpr const char* kLarge = "capacity:16GiB,backing:none,races:off";

std::vector<PageId> pages_from(PageId first, uint32_t count) {
  std::vector<PageId> pages;
  for (uint32_t i = 0; i < count; ++i) pages.push_back(first + i);
  return pages;
}

class StoreExtents : public testing::Test {
 protected:
  // A device without controls may have more.
  StoreExtents() { store.set_most_pages(16 * kGiB / kPageBytes); }

  Status create(uint32_t count, ExtentRoom room = ExtentRoom::kMost, uint32_t most_spare = 0)
      SPW_REQUIRES(kArenaLock) {
    return store.create_pages(store.find_unbacked(count), count, owner.get(), &created, {room, most_spare});
  }
  void expect_agrees() SPW_REQUIRES(kArenaLock) {
    SPW_EXPECT_OK(store.validate_extents());
    if (!of.device.simulated()) return;
    EXPECT_EQ(of.device.live_mappings(), store.live_mappings());
    EXPECT_EQ(of.device.live_handles(), store.home_mappings());
  }

  StoreOf<VirtualMemory> of{kLarge};
  PageStore& store = of.store();
  std::unique_ptr<Heap> owner = of.heap();
  uint32_t created = 0;
};

TEST_F(StoreExtents, AreOneHandleEachAndTheRestSinglePages) {
  const ArenaLock lock(of.mutex);
  ASSERT_TRUE(create(2 * kExtentPages + 3).ok());
  EXPECT_EQ(created, 2 * kExtentPages + 3);
  EXPECT_EQ(store.home_mappings(), 2u + 3);
  EXPECT_EQ(store.unit_of(kExtentPages + 2).first, kExtentPages);
  EXPECT_EQ(store.unit_of(2 * kExtentPages + 1).count, 1u);
  expect_agrees();
  SPW_EXPECT_OK(store.release_pages(pages_from(0, created)));
  EXPECT_EQ(store.page_count(), 0u);
  EXPECT_FALSE(store.has_extents());
  expect_agrees();
}

TEST_F(StoreExtents, AreMadeWhileThereIsRoomForThem) {
  const ArenaLock lock(of.mutex);
  ASSERT_TRUE(create(2 * kExtentPages, ExtentRoom::kNone).ok());
  ASSERT_TRUE(create(2 * kExtentPages - 1).ok());
  EXPECT_FALSE(store.has_extents()) << "the run is short, and ends in none";
  ASSERT_TRUE(create(2 * kExtentPages, ExtentRoom::kQuarter).ok());
  EXPECT_FALSE(store.has_extents()) << "the run is short, of a heap that frees";
  store.set_most_pages(1024);
  ASSERT_TRUE(create(2 * kExtentPages).ok());
  EXPECT_FALSE(store.has_extents()) << "an extent is too large a part of what may be held";
  store.set_most_pages(8192);
  ASSERT_TRUE(create(1024 - store.page_count() - 4, ExtentRoom::kNone).ok());
  ASSERT_TRUE(create(4, ExtentRoom::kMost, 12).ok());
  EXPECT_FALSE(store.has_extents()) << "an eighth is held, and others would share it";
  ASSERT_TRUE(create(4096 - store.page_count() + 1, ExtentRoom::kHalf).ok());
  EXPECT_FALSE(store.has_extents()) << "half is held";
  ASSERT_TRUE(create(2 * kExtentPages).ok());
  EXPECT_TRUE(store.has_extents());
  const uint32_t homes = store.home_mappings();
  ASSERT_TRUE(create(7168 - store.page_count() + 1).ok());
  EXPECT_EQ(store.home_mappings() - homes, created) << "seven eighths are held";
}

TEST_F(StoreExtents, ARunEndsInOneWhereItsPagesMayBeSpared) {
  const ArenaLock lock(of.mutex);
  ASSERT_TRUE(create(kExtentPages + 4, ExtentRoom::kMost, 11).ok());
  EXPECT_EQ(created, kExtentPages + 4);
  EXPECT_FALSE(store.has_extents()) << "twelve pages would be spared";
  ASSERT_TRUE(create(kExtentPages + 4, ExtentRoom::kQuarter, 12).ok());
  EXPECT_FALSE(store.has_extents()) << "of a heap that frees";
  ASSERT_TRUE(create(kExtentPages + 4, ExtentRoom::kMost, 12).ok());
  EXPECT_EQ(created, 2 * kExtentPages);
  EXPECT_EQ(store.home_mappings(), 2 * (kExtentPages + 4) + 2);
  expect_agrees();
  SPW_EXPECT_OK(store.release_pages(pages_from(0, kExtentPages + 4)));
  ASSERT_TRUE(store.create_pages(10, 8, owner.get(), &created, {ExtentRoom::kMost, 12}).ok());
  EXPECT_EQ(created, 8u) << "what would be spared is there";
  expect_agrees();
}

TEST_F(StoreExtents, NothingIsSparedOfASinglePage) {
  if (!of.device.simulated()) GTEST_SKIP() << "needs faults on demand";
  const ArenaLock lock(of.mutex);
  of.device.inject_fault("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(create(kExtentPages + 4, ExtentRoom::kMost, 12).ok());
  EXPECT_EQ(created, kExtentPages + 4) << "the driver has no second extent";
  store.set_headroom(of.device.reserve_but(0) - (2 * (kExtentPages + 4) + 4) * kPageBytes);
  ASSERT_TRUE(create(kExtentPages + 4, ExtentRoom::kMost, 12).ok());
  EXPECT_EQ(created, kExtentPages + 4) << "what is to stay free on the device begins there";
  expect_agrees();
}

TEST_F(StoreExtents, SinglePagesTakeWhatIsLeftWhereTheDriverHasNoExtent) {
  if (!of.device.simulated()) GTEST_SKIP() << "needs faults on demand";
  const ArenaLock lock(of.mutex);
  of.device.inject_fault("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(create(3 * kExtentPages).ok());
  EXPECT_EQ(created, 3 * kExtentPages);
  EXPECT_EQ(store.home_mappings(), 1 + 2 * kExtentPages);
  expect_agrees();
}

TEST_F(StoreExtents, AFailureLeavesNothingHalfMade) {
  if (!of.device.simulated()) GTEST_SKIP() << "needs faults on demand";
  const ArenaLock lock(of.mutex);
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    for (uint32_t nth = 1; nth <= 5; ++nth) {
      of.device.inject_fault(call, nth, CUDA_ERROR_UNKNOWN);
      const Status status = create(3 * kExtentPages + 2);
      of.device.clear_faults();
      EXPECT_EQ(status.ok(), std::string(call) == "cuMemSetAccess" && nth > 1) << call << nth;
      EXPECT_EQ(store.page_count(), created) << call << nth;
      expect_agrees();
      SPW_EXPECT_OK(store.release_pages(pages_from(0, created)));
      EXPECT_EQ(of.device.live_handles(), 0u) << call << nth;
    }
  }
}

TEST_F(StoreExtents, AViewShowsThemWhole) {
  const ArenaLock lock(of.mutex);
  ASSERT_TRUE(create(2 * kExtentPages + 2).ok());
  std::vector<PageId> pages = pages_from(kExtentPages, kExtentPages);
  pages.insert(pages.begin(), 2 * kExtentPages + 1);
  Result<View*> view = store.map_view(pages);
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(store.live_mappings(), 2u + 2 + 2);
  SPW_EXPECT_OK(store.release_pages(pages_from(kExtentPages, kExtentPages)));
  EXPECT_EQ(view.value()->mapped, 1u);
  EXPECT_EQ(view.value()->pages[kExtentPages], kNoPage);
  view.value()->retired = true;
  SPW_EXPECT_OK(store.unmap_retired());
  EXPECT_EQ(store.live_mappings(), 1u + 2);
  SPW_EXPECT_OK(store.validate_extents());
}

TEST_F(StoreExtents, LeaveAndComeBackAsOneHandle) {
  const ArenaLock lock(of.mutex);
  ASSERT_TRUE(create(2 * kExtentPages).ok());
  const std::vector<PageId> pages = pages_from(0, created);
  Result<View*> view = store.map_view(pages_from(kExtentPages, kExtentPages));
  ASSERT_TRUE(view.ok());
  // One slot of it is enough for the extent to come back there.
  store.take_out(pages, [](const View*, uint32_t slot) { return slot == 5; });
  EXPECT_EQ(store.live_mappings(), 0u);
  ASSERT_TRUE(store.put_back(pages).ok());
  EXPECT_EQ(store.live_mappings(), 3u);
  EXPECT_EQ(view.value()->mapped, kExtentPages);
  if (of.device.simulated()) {
    EXPECT_EQ(of.device.live_handles(), 2u);
  }
  store.take_out(pages, [](const View*, uint32_t) { return false; });
  store.forget_out(pages);
  EXPECT_FALSE(store.has_extents());
}

TEST(Extents, OfAListTheWholeOnesAreKept) {
  StoreOf<VirtualMemory> of(kLarge);
  const ArenaLock lock(of.mutex);
  uint32_t created = 0;
  ASSERT_TRUE(of.store().create_pages(0, 2 * kExtentPages + 4, nullptr, &created, {ExtentRoom::kMost}).ok());
  std::vector<PageId> pages = pages_from(1, created - 1);
  keep_units(of.store().pages(), pages);
  EXPECT_EQ(pages, pages_from(kExtentPages, kExtentPages + 4)) << "the first lacks a page";
  keep_units(of.store().pages(), pages, 3);
  EXPECT_EQ(pages, pages_from(2 * kExtentPages, 3)) << "single pages are enough";
  pages = pages_from(0, 2 * kExtentPages + 1);
  keep_units(of.store().pages(), pages, 2);
  EXPECT_EQ(pages.size(), 1 + kExtentPages) << "what ends in one takes it whole";
  pages = {3, 4, kExtentPages};
  widen_to_units(of.store().pages(), pages);
  EXPECT_EQ(pages, pages_from(0, 2 * kExtentPages));
}

TEST_F(StoreExtents, AHeapReleasesWholeOnesOnly) {
  const ArenaLock lock(of.mutex);
  const Lock heap_lock(owner->mutex);
  ASSERT_TRUE(create(2 * kExtentPages).ok());
  owner->add_free(0, created);
  std::vector<PageId> pages = pages_from(0, created - 3);
  SPW_EXPECT_OK(owner->release_free(pages));
  EXPECT_EQ(pages, pages_from(0, kExtentPages));
  EXPECT_EQ(owner->pages().free_count(), kExtentPages);
  expect_agrees();
}

// ---- In an arena

TEST(Extents, FirstTouchAsksTheDriverLittleAndSoDoesATrim) {
  Device device(kLarge);
  const auto arena = device.arena();
  std::vector<void*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(must_allocate(*arena, 2 * kExtentBytes, nullptr));
  const DeviceStats stats = arena->stats();
  EXPECT_EQ(stats.driver_calls.create, 64 * 2);
  EXPECT_EQ(stats.driver_calls.map, 64 * 2);
  EXPECT_EQ(stats.live_mappings, 64 * 2);
  for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0);
  SPW_EXPECT_OK(arena->validate());
}

TEST(Extents, WhoHasFreedMuchMakesThemOfLongRunsOnly) {
  Device device(kLarge);
  const auto arena = device.arena();
  void* first = must_allocate(*arena, 2 * kExtentBytes, nullptr);
  SPW_EXPECT_OK(Arena::free(first));
  int64_t before = arena->stats().live_mappings;
  must_allocate(*arena, 4 * kExtentBytes, nullptr);
  EXPECT_EQ(arena->stats().live_mappings - before, 2 * int64_t{kExtentPages});
  before = arena->stats().live_mappings;
  must_allocate(*arena, 4 * kExtentBytes, nullptr);
  EXPECT_EQ(arena->stats().live_mappings - before, 4);
}

// So many mappings 20 blocks of 14 MiB get, of a program that has freed, where `held` is in use already.
int64_t mappings_of_short_blocks(Device& device, uint64_t limit, uint64_t held) {
  const auto arena = device.arena({.limit_bytes = limit});
  void* freed = must_allocate(*arena, 4 * kExtentBytes, nullptr);
  SPW_EXPECT_OK(Arena::free(freed));
  must_allocate(*arena, held, nullptr);
  const int64_t before = arena->stats().live_mappings;
  for (int i = 0; i < 20; ++i) must_allocate(*arena, 7 * kPageBytes, nullptr);
  SPW_EXPECT_OK(arena->validate());
  return arena->stats().live_mappings - before;
}

TEST(Extents, WhoHasFreedMuchEndsShortRunsInThemOnALargeDevice) {
  Device device("capacity:40GiB,backing:none,races:off");
  if (device.reserve_but(0) < 33 * kGiB) GTEST_SKIP() << "needs a device of 33 GiB";
  EXPECT_EQ(mappings_of_short_blocks(device, 33 * kGiB, 2 * kGiB), 9);
  EXPECT_EQ(mappings_of_short_blocks(device, 31 * kGiB, 2 * kGiB), 140);
  // An eighth of it is held, and what is left of an extent is of less use to others.
  EXPECT_EQ(mappings_of_short_blocks(device, 33 * kGiB, 5 * kGiB), 140);
}

// Blocks of 24 pages in a row, each of which has a whole extent and half of another, and no room for more.
struct HalvedExtents {
  static constexpr uint64_t kBytes = 24 * kPageBytes;

  explicit HalvedExtents(Device& device) : arena(device.arena({.limit_bytes = 8 * kGiB})) {
    must_allocate(*arena, 32 * kExtentBytes, nullptr);
    for (void*& block : blocks) block = must_allocate(*arena, kBytes, nullptr);
    SPW_EXPECT_OK(arena->set_limit(static_cast<uint64_t>(arena->stats().reserved_bytes.all.current)));
  }
  void free(size_t block) { SPW_EXPECT_OK(Arena::free(blocks[block])); }

  std::unique_ptr<Arena> arena;
  std::array<void*, 8> blocks{};
};

TEST(Extents, AViewBeginsAndEndsWithFreePartsOfTwo) {
  Device device("capacity:16GiB,backing:none");
  HalvedExtents halved(device);
  Arena& arena = *halved.arena;
  halved.free(1);  // the second half of an extent, and a whole one
  halved.free(4);  // a whole one, and the first half of the next
  const uint64_t all = 2 * HalvedExtents::kBytes;
  EXPECT_EQ(arena.stats().largest_free_bytes, static_cast<int64_t>(all));
  const int64_t before = arena.stats().live_mappings;
  void* block = must_allocate(arena, all, nullptr);
  EXPECT_EQ(arena.stats().live_mappings - before, 4);
  device.touch(nullptr, block, all);
  SPW_EXPECT_OK(arena.validate());
  EXPECT_EQ(device.reports(), "");
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(must_allocate(arena, all, nullptr), block);
}

TEST(Extents, AViewEndsWithAFreePartAndBeginsWithAPieceOfAPage) {
  Device device("capacity:16GiB,backing:none");
  HalvedExtents halved(device);
  Arena& arena = *halved.arena;
  halved.free(4);
  const uint64_t bytes = HalvedExtents::kBytes - kMiB;
  void* block = must_allocate(arena, bytes, nullptr);  // leaves a piece at the end of a page of the half
  halved.free(1);
  const uint64_t rest = HalvedExtents::kBytes - kMiB;
  void* other = must_allocate(arena, rest, nullptr);
  device.touch(nullptr, block, bytes);
  device.touch(nullptr, other, rest);
  SPW_EXPECT_OK(arena.validate());
  void* last = must_allocate(arena, kMiB, nullptr);
  device.touch(nullptr, last, kMiB);
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(Arena::free(other));
  SPW_EXPECT_OK(arena.trim());
  SPW_EXPECT_OK(arena.validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Extents, AViewTakesMoreOfOneThanItNeeds) {
  Device device(kLarge);
  const auto arena = device.arena({.limit_bytes = 8 * kGiB});
  std::vector<void*> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(must_allocate(*arena, 2 * kExtentBytes, nullptr));
  SPW_EXPECT_OK(arena->set_limit(64 * kExtentBytes));
  for (const int i : {1, 3}) SPW_EXPECT_OK(Arena::free(blocks[static_cast<size_t>(i)]));
  const auto largest = static_cast<uint64_t>(arena->stats().largest_free_bytes);
  EXPECT_EQ(largest, 4 * kExtentBytes);
  void* block = must_allocate(*arena, 3 * kExtentBytes + 5 * kPageBytes, nullptr);
  device.touch(nullptr, block, 3 * kExtentBytes + 5 * kPageBytes);
  EXPECT_EQ(arena->stats().largest_free_bytes, static_cast<int64_t>(11 * kPageBytes)) << "the rest, in a row";
  must_allocate(*arena, 11 * kPageBytes, nullptr);
  EXPECT_EQ(arena->stats().host_waits, 0);
  SPW_EXPECT_OK(arena->validate());
}

TEST(Extents, AreLentWhole) {
  Device device("capacity:16GiB,backing:none");
  const auto arena = device.arena({.limit_bytes = 8 * kGiB});
  CUstream other = device.stream();
  void* lent = must_allocate(*arena, 2 * kExtentBytes, nullptr);
  must_allocate(*arena, 2 * kExtentBytes, nullptr);
  SPW_EXPECT_OK(arena->set_limit(4 * kExtentBytes));
  device.touch(nullptr, lent, 2 * kExtentBytes);
  SPW_EXPECT_OK(Arena::free(lent));
  void* block = must_allocate(*arena, 3 * kPageBytes, other);
  device.touch(other, block, 3 * kPageBytes);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Extents, AreShownToOtherProcessesWhole) {
  Device device(kLarge);
  const auto arena = device.arena();
  void* large = must_allocate(*arena, 2 * kExtentBytes, nullptr);
  must_allocate(*arena, 2 * kExtentBytes, nullptr);
  SPW_EXPECT_OK(Arena::free(large));
  must_allocate(*arena, kPageBytes, nullptr);
  void* block = must_allocate(*arena, kExtentBytes + 2 * kPageBytes, nullptr);
  Result<PageSpan> span = arena->pages_around(block);
  ASSERT_TRUE(span.ok()) << span.status().text();
  const uint64_t page = (reinterpret_cast<uint64_t>(block) - reinterpret_cast<uint64_t>(large)) / kPageBytes;
  EXPECT_EQ(span->count, 2 * kExtentPages);
  EXPECT_EQ(span->offset, page * kPageBytes);
  std::vector<PagePiece> pieces;
  SPW_EXPECT_OK(arena->export_pages(block, span->identity, 0, 64, pieces));
  ASSERT_EQ(pieces.size(), 2u);
  Result<MappedRange> range = arena->begin_import(2 * kExtentBytes);
  ASSERT_TRUE(range.ok());
  for (const PagePiece& piece : pieces) {
    EXPECT_EQ(piece.pages, kExtentPages);
    SPW_EXPECT_OK(arena->import_piece(range.value(), piece.descriptor, piece.pages * kPageBytes));
    close(piece.descriptor);
  }
  EXPECT_TRUE(range->is_full());
  pieces.clear();
  SPW_EXPECT_OK(arena->export_pages(block, span->identity, kExtentPages, 1, pieces));
  ASSERT_EQ(pieces.size(), 1u);
  close(pieces[0].descriptor);
}

// Streams that take, use, pass on and free blocks of all sizes, behind a first touch in extents; each
// completion mode, with the race detector.
class RandomExtents : public testing::TestWithParam<const char*> {};

TEST_P(RandomExtents, KeepWhatIsTrueOfThem) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Device device("capacity:16GiB,backing:none,completion:" + std::string(GetParam()) +
                  ",seed:" + std::to_string(seed));
    const auto arena = device.arena({.limit_bytes = 10 * kGiB});
    std::mt19937_64 random(seed);
    const std::array<CUstream, 2> streams = {device.stream(), device.stream()};
    struct Block {
      void* pointer;
      CUstream stream;
    };
    std::vector<Block> blocks;
    for (int step = 0; step < 600; ++step) {
      if (!blocks.empty() && (blocks.size() > 48 || random() % 3 == 0) && step > 40) {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        SPW_EXPECT_OK(Arena::free(blocks.back().pointer));
        blocks.pop_back();
      } else {
        const uint64_t most = step < 40 || random() % 4 == 0 ? 300 * kMiB : 40 * kMiB;
        const uint64_t bytes = random() % most + 1;
        CUstream stream = streams[random() % 2];
        void* block = nullptr;
        if (!arena->allocate(bytes, stream, &block).ok()) continue;
        device.touch(stream, block, bytes);
        blocks.push_back({block, stream});
      }
      if (random() % 64 == 0) SPW_EXPECT_OK(arena->trim());
      if (random() % 16 == 0) SPW_EXPECT_OK(arena->validate());
    }
    EXPECT_EQ(device.reports(), "");
    for (const Block& block : blocks) SPW_EXPECT_OK(Arena::free(block.pointer));
    SPW_EXPECT_OK(arena->trim());
    EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0) << seed;
  }
}
INSTANTIATE_TEST_SUITE_P(Completion, RandomExtents, testing::Values("instant", "late", "run-ahead"));

}  // namespace
}  // namespace spillway::test
