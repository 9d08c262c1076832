// The disk below the host: what is written is read again, and what a write or a sync that fails leaves
// behind.
#include "offload/spill/disk_tier.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/io_faults.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

constexpr PoolId kWeights{9, 1};
constexpr const char* kDevice = "capacity:128MiB,completion:late";

DiskTierOptions faulty(const std::string& directory, ChooseFault choose) {
  return with_faults(disk_options(directory, false), std::move(choose));
}

TEST(DiskTier, WithoutADirectoryThereIsNone) {
  DiskTier disk{DiskTierOptions()};
  EXPECT_FALSE(disk.exists());
  std::vector<DiskPiece> pieces;
  EXPECT_EQ(disk.reserve(1, &pieces).code(), SPW_ERROR_UNSUPPORTED);
  EXPECT_TRUE(pieces.empty());
  disk.release(pieces);
  disk.give_back();
  EXPECT_EQ(disk.usage().file_bytes, 0u);
}

TEST(DiskTier, WhatIsWrittenIsReadAndNoMore) {
  const Folder directory;
  DiskTier disk(disk_options(directory.path()));
  const auto run = [](const std::function<void(DiskTier::Done)>& begin) {
    DiskWork work;
    work.begin(1);
    begin([&work](Status status) { work.end(std::move(status)); });
    SPW_EXPECT_OK(work.wait());
  };
  const std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(DiskTier::kAlignment, kPieceBytes)), std::free);
  uint64_t written = 0;
  uint64_t zeros = 0;
  for (const size_t bytes : {size_t{1}, size_t{4097}, kChecksumBytes, kChecksumBytes + 5, kPieceBytes}) {
    // All bytes are zero, all but the last one, or none.
    for (const int value : {0, 1, 2}) {
      const std::span<std::byte> span(memory.get(), bytes);
      std::memset(memory.get(), value == 2 ? 2 : 0, kPieceBytes);
      span.back() = static_cast<std::byte>(value);
      (value == 0 ? zeros : written) += bytes;
      const std::vector<std::byte> expected(span.begin(), span.end());
      std::vector<DiskPiece> pieces;
      SPW_EXPECT_OK(disk.reserve(bytes, &pieces));
      ASSERT_EQ(pieces.size(), 1u);
      run([&](auto done) { disk.write(span, pieces[0], IoPriority::kEvict, nullptr, std::move(done)); });
      std::memset(memory.get(), 0xee, kPieceBytes);
      run([&](auto done) { disk.read(span, pieces[0], IoPriority::kDemand, std::move(done)); });
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), span.begin())) << bytes << " of " << value;
      EXPECT_EQ(disk.counters().blocks_bytes, kPieceBytes);
      disk.release(pieces);
      disk.release(pieces);  // there are none any more
    }
  }
  const DiskCounters counters = disk.counters();
  EXPECT_EQ(counters.written_bytes, written);
  EXPECT_EQ(counters.read_bytes, written);
  EXPECT_EQ(counters.verified_bytes, written);
  EXPECT_EQ(counters.zero_bytes, zeros);
  EXPECT_EQ(counters.blocks_bytes, 0u);
  EXPECT_EQ(counters.mismatches, 0u);
}

TEST(DiskTier, ATierThatFailsTakesNothingMore) {
  Folder directory;
  Tiers tiers(kDevice, faulty(directory.path(), [](const IoOperation&, uint64_t) { return fails(-EIO); }));
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion region(tiers, *arena, kWeights);
  region.write(region.allocate(20 * kMiB), 1);
  Status status;
  for (int i = 0; i < 4; ++i) status = region.evict(SpillTo::kDisk);
  EXPECT_EQ(status.code(), SPW_ERROR_IO);
  EXPECT_NE(status.text().find("in a row failed"), std::string::npos) << status.text();
  EXPECT_TRUE(region.all_intact());
}

TEST(DiskTier, NoPlaceThatCouldNotBeWrittenIsUsedAgain) {
  for (const uint64_t places : {1u, 2u, 8u}) {
    const auto choose = [](const IoOperation& operation, uint64_t) {
      return operation.kind == IoKind::kWrite ? fails(-EIO) : IoFault{};
    };
    const Folder directory;
    DiskTierOptions options = faulty(directory.path(), choose);
    options.file.most_bytes = places * kPieceBytes;
    DiskTier disk(options);
    alignas(DiskTier::kAlignment) static std::array<std::byte, DiskTier::kAlignment> memory{};
    memory.fill(std::byte{1});
    std::vector<DiskPiece> pieces;
    SPW_EXPECT_OK(disk.reserve(memory.size(), &pieces));
    DiskWork work;
    work.begin(1);
    disk.write(memory, pieces[0], IoPriority::kEvict, nullptr,
               [&](Status status) { work.end(std::move(status)); });
    EXPECT_EQ(work.wait().code(), SPW_ERROR_IO);
    disk.release(pieces);
    const auto tried = std::min<uint64_t>(places, DiskTier::kMostWrites);
    EXPECT_EQ(disk.usage().quarantined_bytes, tried * kPieceBytes);
    EXPECT_EQ(disk.usage().extent_bytes, 0u);
    EXPECT_EQ(disk.counters().blocks_bytes, 0u);
  }
}

TEST(DiskTier, AFullDiskTakesSomethingAgainWhenItHasRoom) {
  std::atomic<bool> is_full{true};
  const auto choose = [&](const IoOperation& operation, uint64_t) {
    return operation.kind == IoKind::kWrite && is_full ? fails(-ENOSPC) : IoFault{};
  };
  const Folder directory;
  Tiers tiers(kDevice, faulty(directory.path(), choose));
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion region(tiers, *arena, kWeights);
  region.write(region.allocate(6 * kMiB), 1);
  for (uint32_t i = 0; i < DiskTier::kMostFailures; ++i) {
    EXPECT_EQ(region.evict(SpillTo::kDisk).code(), SPW_ERROR_OUT_OF_MEMORY);
  }
  EXPECT_GT(tiers.disk.counters().failed_writes, DiskTier::kMostFailures);
  EXPECT_EQ(tiers.disk.counters().repeated_writes, 0u);
  EXPECT_EQ(tiers.disk.usage().quarantined_bytes, 0u);
  is_full = false;
  SPW_EXPECT_OK(region.evict(SpillTo::kDisk));
  SPW_EXPECT_OK(region.restore());
  EXPECT_TRUE(region.all_intact());
}

// Written through the page cache, bytes have reached the disk only when the file was synced.
TEST(DiskTier, AnErrorThatComesWithTheSyncKeepsTheBytesWhereTheyWere) {
  for (const SpillTo first : {SpillTo::kHost, SpillTo::kDisk}) {
    std::atomic<bool> fails_syncs{true};
    const auto choose = [&](const IoOperation& operation, uint64_t) {
      return operation.kind == IoKind::kSync && fails_syncs ? fails(-EIO) : IoFault{};
    };
    const Folder directory;
    DiskTierOptions options = faulty(directory.path(), choose);
    options.file.want_direct = false;
    Tiers tiers(kDevice, options);
    const std::unique_ptr<Arena> arena = tiers.device.arena();
    TestRegion region(tiers, *arena, kWeights);
    region.write(region.allocate(3 * kMiB), 1);
    const auto spill = [&] {
      if (first == SpillTo::kDisk) return region.evict(SpillTo::kDisk);
      return region.write_down();
    };
    if (first == SpillTo::kHost) SPW_EXPECT_OK(region.evict(SpillTo::kHost));
    const Status status = spill();
    EXPECT_EQ(status.code(), SPW_ERROR_IO);
    EXPECT_NE(status.text().find("fdatasync"), std::string::npos) << status.text();
    EXPECT_EQ(region.usage().disk_bytes, 0u);
    EXPECT_EQ(tiers.disk.counters().failed_writes, 1u);
    EXPECT_EQ(tiers.disk.counters().blocks_bytes, 0u);
    fails_syncs = false;
    SPW_EXPECT_OK(spill());
    SPW_EXPECT_OK(region.restore());
    EXPECT_TRUE(region.all_intact());
    fails_syncs = true;
    for (uint32_t i = 0; i < DiskTier::kMostFailures; ++i) {
      EXPECT_EQ(region.evict(SpillTo::kDisk).code(), SPW_ERROR_IO);
    }
    EXPECT_NE(region.evict(SpillTo::kDisk).text().find("in a row failed"), std::string::npos);
  }
}

// The kernel tells one caller of an error that concerns the writes of all.
TEST(DiskTier, AnErrorOfASyncIsOneForEveryWriteBeforeIt) {
  std::atomic<uint64_t> syncs{0};
  const auto choose = [&](const IoOperation& operation, uint64_t) {
    return operation.kind == IoKind::kSync && syncs++ == 0 ? fails(-EIO) : IoFault{};
  };
  const Folder directory;
  DiskTierOptions options = faulty(directory.path(), choose);
  options.file.want_direct = false;
  DiskTier disk(options);
  alignas(DiskTier::kAlignment) static std::array<std::byte, DiskTier::kAlignment> memory{};
  memory.fill(std::byte{1});
  std::vector<DiskPiece> pieces;
  SPW_EXPECT_OK(disk.reserve(memory.size(), &pieces));
  const uint64_t before = disk.sync_failures();
  DiskWork work;
  work.begin(1);
  disk.write(memory, pieces[0], IoPriority::kEvict, nullptr,
             [&](Status status) { work.end(std::move(status)); });
  SPW_EXPECT_OK(work.wait());
  EXPECT_EQ(disk.sync(before).code(), SPW_ERROR_IO) << "who syncs first";
  EXPECT_EQ(disk.sync(before).code(), SPW_ERROR_IO) << "who wrote before that";
  SPW_EXPECT_OK(disk.sync(disk.sync_failures()));
  EXPECT_EQ(syncs, 1u) << "nothing was written since";
  disk.release(pieces);
}

}  // namespace
}  // namespace spillway::test
