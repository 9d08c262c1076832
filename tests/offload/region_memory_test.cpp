// Pools move out of the device and back with their bytes and addresses, to each tier, whatever is freed or
// refused meanwhile.
#include "offload/spill/region_memory.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "tests/support/io_faults.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

constexpr PoolId kWeights{9, 1};
constexpr PoolId kOther{9, 2};

class RegionMemoryTest : public testing::Test {
 protected:
  static constexpr const char* kDevice = "capacity:128MiB,completion:late";

  void expect_sound() {
    SPW_EXPECT_OK(arena_->validate());
    EXPECT_EQ(tiers_.device.reports(), "");
  }
  int64_t reserved() const { return arena_->stats().reserved_bytes.all.current; }
  int64_t allocated() const { return arena_->stats().allocated_bytes.all.current; }

  Folder directory_;
  DiskTier no_disk_{DiskTierOptions()};
  Tiers tiers_{kDevice, disk_options(directory_.path())};
  std::unique_ptr<Arena> arena_ = tiers_.device.arena();
  TestRegion weights_{tiers_, *arena_, kWeights};
};

TEST_F(RegionMemoryTest, BytesComeBackToTheirAddressesFromEachTier) {
  std::vector<void*> blocks;
  for (const size_t bytes : {600 * kMiB / 1024, 5 * kMiB + 100, 33 * kMiB, size_t{512}}) {
    blocks.push_back(weights_.allocate(bytes));
    weights_.write(blocks.back(), static_cast<uint32_t>(blocks.size()));
  }
  const int64_t held = reserved();
  const int64_t used = allocated();
  for (const SpillTo to : {SpillTo::kHost, SpillTo::kDisk}) {
    SPW_EXPECT_OK(weights_.evict(to));
    EXPECT_EQ(reserved(), 0) << "what is elsewhere is not on the device";
    EXPECT_EQ(allocated(), 0);
    EXPECT_EQ(weights_.usage().device_bytes, 0u);
    EXPECT_EQ(to == SpillTo::kHost ? weights_.usage().host_bytes : weights_.usage().disk_bytes,
              static_cast<uint64_t>(held));
    expect_sound();
    SPW_EXPECT_OK(weights_.restore());
    EXPECT_EQ(reserved(), held);
    EXPECT_EQ(allocated(), used);
    EXPECT_TRUE(weights_.all_intact());
    expect_sound();
  }
  EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 0u) << "no copy is left behind";
}

TEST_F(RegionMemoryTest, TheDeviceServesOthersMeanwhile) {
  void* block = weights_.allocate(80 * kMiB);
  weights_.write(block, 7);
  EXPECT_EQ(arena_->allocate(100 * kMiB, nullptr, &block).code(), SPW_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(weights_.evict(SpillTo::kHost));
  void* other = must_allocate(*arena_, 100 * kMiB, nullptr);
  tiers_.device.touch(nullptr, other, 100 * kMiB);
  EXPECT_EQ(weights_.restore().code(), SPW_ERROR_OUT_OF_MEMORY);
  expect_sound();
  SPW_EXPECT_OK(Arena::free(other));
  SPW_EXPECT_OK(weights_.restore());  // what the arena kept for later goes back to make room
  EXPECT_TRUE(weights_.all_intact());
  expect_sound();
}

// cudf-spark#10004: what had gone from the host on to the disk could not come back.
TEST_F(RegionMemoryTest, HostMemoryGoesDownToTheDisk) {
  void* block = weights_.allocate(20 * kMiB);
  weights_.write(block, 3);
  SPW_EXPECT_OK(weights_.evict(SpillTo::kHost));
  SPW_EXPECT_OK(weights_.write_down());
  EXPECT_EQ(weights_.usage().host_bytes, 0u);
  EXPECT_GE(weights_.usage().disk_bytes, 20 * kMiB);
  (void)tiers_.pinned.release_free();
  EXPECT_EQ(tiers_.pinned.reserved_bytes(), 0u) << "nothing is in it";
  SPW_EXPECT_OK(weights_.restore());
  EXPECT_TRUE(weights_.all_intact());
}

TEST_F(RegionMemoryTest, ZerosAreNotWritten) {
  void* block = weights_.allocate(20 * kMiB);
  weights_.write(block, 0);
  SPW_EXPECT_OK(weights_.evict(SpillTo::kDisk));
  EXPECT_EQ(tiers_.disk.counters().written_bytes, 0u);
  SPW_EXPECT_OK(weights_.restore());
  EXPECT_TRUE(weights_.all_intact());
}

TEST_F(RegionMemoryTest, WhatIsDiscardedComesBackAsMemory) {
  void* block = weights_.allocate(20 * kMiB);
  SPW_EXPECT_OK(weights_.evict(SpillTo::kNowhere));
  EXPECT_EQ(reserved(), 0);
  EXPECT_EQ(weights_.usage().discarded_bytes, 20 * kMiB);
  SPW_EXPECT_OK(weights_.restore());
  tiers_.device.touch(nullptr, block, 20 * kMiB);
  expect_sound();
}

// torch_memory_saver#92: memory that had been given back in a pause was given back again by a free.
TEST_F(RegionMemoryTest, BlocksCanBeFreedWhileTheyAreElsewhere) {
  void* first = weights_.allocate(24 * kMiB);
  void* second = weights_.allocate(24 * kMiB);
  weights_.write(first, 1);
  weights_.write(second, 2);
  SPW_EXPECT_OK(weights_.evict(SpillTo::kDisk));
  weights_.free(first);
  expect_sound();
  SPW_EXPECT_OK(weights_.restore());
  EXPECT_TRUE(weights_.is_intact(second));
  EXPECT_EQ(allocated(), static_cast<int64_t>(24 * kMiB));
  weights_.write(weights_.allocate(24 * kMiB), 3);
  EXPECT_TRUE(weights_.all_intact());
  expect_sound();
}

TEST_F(RegionMemoryTest, ARegionThatIsReleasedElsewhereLeavesNothing) {
  void* block = weights_.allocate(24 * kMiB);
  weights_.write(block, 1);
  SPW_EXPECT_OK(weights_.evict(SpillTo::kDisk));
  SPW_EXPECT_OK(arena_->release_pool(kWeights));
  weights_.free(block);
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 0u);
  EXPECT_EQ(reserved(), 0);
  expect_sound();
}

TEST_F(RegionMemoryTest, WhatCannotBeDoneNowIsRefusedAndChangesNothing) {
  void* block = weights_.allocate(4 * kMiB);
  weights_.write(block, 5);
  EXPECT_EQ(weights_.restore().code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(arena_->begin_pool(kWeights, nullptr));
  EXPECT_EQ(weights_.evict(SpillTo::kHost).code(), SPW_ERROR_INVALID_STATE) << "open";
  SPW_EXPECT_OK(arena_->end_pool(kWeights));
  SPW_EXPECT_OK(arena_->release_pool(kWeights));
  const CUstream stream = tiers_.device.stream();
  tiers_.device.begin_capture(stream);
  SPW_EXPECT_OK(arena_->begin_pool(kOther, nullptr));
  EXPECT_EQ(weights_.evict(SpillTo::kHost).code(), SPW_ERROR_INVALID_STATE) << "a capture";
  SPW_EXPECT_OK(arena_->end_pool(kOther));
  tiers_.device.discard_capture(stream);
  SPW_EXPECT_OK(weights_.evict(SpillTo::kHost));
  EXPECT_EQ(weights_.evict(SpillTo::kHost).code(), SPW_ERROR_INVALID_STATE) << "twice";
  EXPECT_EQ(arena_->begin_pool(kWeights, nullptr).code(), SPW_ERROR_INVALID_STATE) << "not on the device";
  EXPECT_EQ(arena_->move_pool_out(kOther, nullptr).code(), SPW_ERROR_INVALID_STATE) << "no region";
  SPW_EXPECT_OK(weights_.restore());
  EXPECT_TRUE(weights_.all_intact());
  expect_sound();
}

TEST_F(RegionMemoryTest, ACaptureThatBeginsDuringAMoveGoesOn) {
  weights_.write(weights_.allocate(8 * kMiB), 5);
  const CUstream stream = tiers_.device.stream();
  const auto in_capture = [&](const std::function<Status()>& move) {
    tiers_.device.begin_capture(stream);
    Status status = move();
    tiers_.device.discard_capture(stream);
    return status;
  };
  SPW_EXPECT_OK(arena_->move_pool_out(kWeights, [&](const RegionMemory::Ranges& ranges) {
    return in_capture([&] { return tiers_.memory->copy_out(ranges, SpillTo::kHost, nullptr); });
  }));
  SPW_EXPECT_OK(arena_->bring_pool_back(kWeights, [&](const RegionMemory::Ranges& ranges, bool* is_settled) {
    const Urgency urgency;
    return in_capture([&] { return tiers_.memory->copy_back(ranges, urgency, is_settled); });
  }));
  EXPECT_TRUE(weights_.all_intact());
  expect_sound();
}

TEST_F(RegionMemoryTest, LiveMemoryWaitsForEveryStream) {
  const CUstream stream = tiers_.device.stream();
  void* block = weights_.allocate(4 * kMiB, stream);
  tiers_.device.touch(stream, block, 4 * kMiB);
  tiers_.device.touch(tiers_.device.stream(), weights_.allocate(4 * kMiB), 4 * kMiB);
  SPW_EXPECT_OK(weights_.evict(SpillTo::kHost));
  expect_sound();
}

// Reads bytes of the region that are elsewhere, from an offset of its block.
class ReadingTest : public RegionMemoryTest {
 protected:
  static constexpr size_t kBytes = 20 * kMiB;  // three segments

  ReadingTest() : block_(weights_.allocate(kBytes)) { weights_.write(block_, 3); }

  Status read(size_t offset, size_t bytes) {
    found_.assign(bytes, '-');
    return tiers_.memory->read(reinterpret_cast<uint64_t>(block_) + offset, bytes,
                               reinterpret_cast<std::byte*>(found_.data()), Urgency());
  }
  // Reads within a segment, over all of their borders, and all.
  void expect_readable() {
    const std::vector<char> content = TestRegion::pattern(kBytes, 3);
    const std::pair<size_t, size_t> parts[] = {{0, 1}, {5 * kMiB + 3, 700}, {kMiB, 17 * kMiB}, {0, kBytes}};
    for (const auto& [offset, bytes] : parts) {
      SPW_EXPECT_OK(read(offset, bytes));
      EXPECT_TRUE(std::equal(found_.begin(), found_.end(), content.begin() + static_cast<ptrdiff_t>(offset)))
          << offset;
    }
  }

  void* block_;
  std::vector<char> found_;
};

TEST_F(ReadingTest, WhatIsElsewhereCanBeReadAndStaysThere) {
  EXPECT_EQ(read(0, 1).code(), SPW_ERROR_INVALID_ARGUMENT) << "it is on the device";
  for (const SpillTo to : {SpillTo::kHost, SpillTo::kDisk}) {
    SPW_EXPECT_OK(weights_.evict(to));
    expect_readable();
    SPW_EXPECT_OK(read(kBytes - 1, 1));
    EXPECT_EQ(read(kBytes - 1, 2 * kMiB).code(), SPW_ERROR_INVALID_ARGUMENT) << "beyond its end";
    EXPECT_EQ(weights_.usage().device_bytes, 0u);
    if (to == SpillTo::kHost) SPW_EXPECT_OK(weights_.write_down());
    expect_readable();
    SPW_EXPECT_OK(weights_.restore());
    EXPECT_TRUE(weights_.all_intact());
  }
}

TEST_F(ReadingTest, WhatWasNotKeptOrIsLostIsSaid) {
  SPW_EXPECT_OK(weights_.evict(SpillTo::kNowhere));
  EXPECT_EQ(read(kMiB, 1).code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(weights_.restore());
  weights_.write(block_, 3);
  SPW_EXPECT_OK(weights_.evict(SpillTo::kDisk));
  damage(directory_.path(), 4096);
  EXPECT_EQ(weights_.restore().code(), SPW_ERROR_DATA_LOST);
  ASSERT_EQ(weights_.lost().size(), 1u);
  EXPECT_EQ(weights_.lost()[0].bytes, kPieceBytes);
  EXPECT_EQ(weights_.usage().lost_bytes, kPieceBytes);
  EXPECT_EQ(weights_.usage().disk_bytes, kBytes - kPieceBytes);
  const size_t at = weights_.lost()[0].va - reinterpret_cast<uint64_t>(block_);
  EXPECT_EQ(read(at, 1).code(), SPW_ERROR_DATA_LOST);
  SPW_EXPECT_OK(read((at + kPieceBytes) % kBytes, kMiB));
}

TEST_F(RegionMemoryTest, WhatCannotBeWrittenDownStaysInHostMemory) {
  weights_.write(weights_.allocate(20 * kMiB), 3);
  SPW_EXPECT_OK(weights_.evict(SpillTo::kHost));
  const RegionMemory::Ranges ranges = weights_.ranges();
  RegionMemory without_disk(*tiers_.copy_streams, tiers_.pinned, no_disk_);
  SPW_EXPECT_OK(weights_.restore());
  SPW_EXPECT_OK(without_disk.copy_out(ranges, SpillTo::kHost));
  EXPECT_EQ(without_disk.write_down(ranges).code(), SPW_ERROR_UNSUPPORTED);
  EXPECT_EQ(without_disk.usage(ranges).host_bytes, 20 * kMiB);
  bool is_settled = false;
  SPW_EXPECT_OK(without_disk.copy_back(ranges, Urgency(), &is_settled));
  EXPECT_EQ(without_disk.usage(ranges).host_bytes, 0u);
  EXPECT_TRUE(weights_.all_intact());
}

TEST_F(RegionMemoryTest, AFailedCopyBackLeavesItWhereItWas) {
  weights_.write(weights_.allocate(20 * kMiB), 3);
  for (const SpillTo to : {SpillTo::kHost, SpillTo::kDisk}) {
    SPW_EXPECT_OK(weights_.evict(to));
    const RegionUsage before = weights_.usage();
    tiers_.device.inject_fault("cuMemcpyHtoDAsync", 2, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(weights_.restore().code(), SPW_ERROR_DRIVER);
    tiers_.device.clear_faults();
    EXPECT_EQ(weights_.usage().host_bytes, before.host_bytes);
    EXPECT_EQ(weights_.usage().disk_bytes, before.disk_bytes);
    EXPECT_TRUE(weights_.lost().empty());
    SPW_EXPECT_OK(weights_.restore());
    EXPECT_TRUE(weights_.all_intact());
  }
  expect_sound();
}

TEST(RegionUsage, SumsUpEachOfItsParts) {
  RegionUsage sum{1, 2, 3, 4, 5, 6};
  sum += {10, 20, 30, 40, 50, 60};
  EXPECT_EQ(sum.device_bytes, 11u);
  EXPECT_EQ(sum.host_bytes, 22u);
  EXPECT_EQ(sum.disk_bytes, 33u);
  EXPECT_EQ(sum.discarded_bytes, 44u);
  EXPECT_EQ(sum.lost_bytes, 55u);
  EXPECT_EQ(sum.stuck_bytes, 66u);
}

TEST(RegionMemory, WithoutHostMemoryTheDiskTakesTheRest) {
  Folder directory;
  Tiers tiers("capacity:256MiB,completion:late", disk_options(directory.path()), 64 * kMiB);
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion region(tiers, *arena, kWeights);
  for (uint32_t seed = 1; seed <= 4; ++seed) region.write(region.allocate(30 * kMiB), seed);
  SPW_EXPECT_OK(region.evict(SpillTo::kHost));
  EXPECT_GT(region.usage().host_bytes, 0u);
  EXPECT_GT(region.usage().disk_bytes, 0u);
  EXPECT_LE(region.usage().host_bytes, 64 * kMiB - Staging::kBufferBytes) << "one is for what passes through";
  SPW_EXPECT_OK(region.restore());
  EXPECT_TRUE(region.all_intact());
  EXPECT_EQ(tiers.device.reports(), "");
}

TEST(RegionMemory, WithoutAnyRoomEverythingStays) {
  Tiers tiers("capacity:256MiB,completion:late", {}, 16 * kMiB);
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion region(tiers, *arena, kWeights);
  region.write(region.allocate(30 * kMiB), 1);
  EXPECT_EQ(region.evict(SpillTo::kHost).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(region.evict(SpillTo::kDisk).code(), SPW_ERROR_UNSUPPORTED);
  EXPECT_TRUE(region.all_intact());
  SPW_EXPECT_OK(arena->validate());
}

}  // namespace
}  // namespace spillway::test
