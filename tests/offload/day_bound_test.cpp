// A bound on what is written to a disk in a day counts what was written, by whomever, and nothing else.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "offload/spill/disk_tier.h"
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

TEST(DayBound, OnlyWhatWasWrittenCountsInADay) {
  std::atomic<bool> is_full{false};
  std::atomic<bool> fails_once{false};
  const auto choose = [&](const IoOperation& operation, uint64_t) {
    if (operation.kind != IoKind::kWrite) return IoFault{};
    if (is_full) return fails(-ENOSPC);
    return fails_once.exchange(false) ? fails(-EIO) : IoFault{};
  };
  const Folder directory;
  DiskTierOptions options = faulty(directory.path(), choose);
  options.daily_write_bytes = 45 * kMiB;
  Tiers tiers(kDevice, options);
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion region(tiers, *arena, kWeights);
  void* block = region.allocate(20 * kMiB);
  region.write(block, 0);
  for (int i = 0; i < 4; ++i) {  // zeros are not written
    SPW_EXPECT_OK(region.evict(SpillTo::kDisk));
    SPW_EXPECT_OK(region.restore());
  }
  region.write(block, 1);
  is_full = true;
  for (int i = 0; i < 4; ++i) {
    EXPECT_NE(region.evict(SpillTo::kDisk).text().find("No space left"), std::string::npos);
  }
  is_full = false;
  fails_once = true;  // and is written elsewhere
  for (int i = 0; i < 2; ++i) {
    SPW_EXPECT_OK(region.evict(SpillTo::kDisk));
    SPW_EXPECT_OK(region.restore());
  }
  const uint64_t today_bytes = tiers.disk.counters().today_bytes;
  EXPECT_GE(today_bytes, tiers.disk.counters().written_bytes);
  EXPECT_GT(today_bytes + 20 * kMiB, options.daily_write_bytes);
  const Status status = region.evict(SpillTo::kDisk);
  EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(status.text().find("in a day"), std::string::npos) << status.text();
  EXPECT_EQ(tiers.disk.counters().today_bytes, today_bytes);
  EXPECT_TRUE(region.all_intact());
}

// What a failed write had written before it failed was written all the same.
TEST(DayBound, WritesThatAreRepeatedCountInADay) {
  const auto choose = [](const IoOperation& operation, uint64_t index) {
    if (operation.kind != IoKind::kWrite) return IoFault{};
    return index == 1 ? fails(-EIO) : IoFault{};
  };
  const Folder directory;
  DiskTierOptions options = faulty(directory.path(), choose);
  options.io.block_bytes = kMiB;  // the second half of the piece fails
  options.daily_write_bytes = 4 * kMiB;
  DiskTier disk(options);
  const std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(DiskTier::kAlignment, kPieceBytes)), std::free);
  std::memset(memory.get(), 1, kPieceBytes);
  std::vector<DiskPiece> pieces;
  SPW_EXPECT_OK(disk.reserve(kPieceBytes, &pieces));
  DiskWork work;
  work.begin(1);
  disk.write({memory.get(), kPieceBytes}, pieces[0], IoPriority::kEvict, nullptr,
             [&](Status status) { work.end(std::move(status)); });
  SPW_EXPECT_OK(work.wait());
  EXPECT_EQ(disk.counters().repeated_writes, 1u);
  std::vector<DiskPiece> more;
  EXPECT_EQ(disk.reserve(kPieceBytes, &more).code(), SPW_ERROR_OUT_OF_MEMORY) << "3 of 4 MiB are written";
  SPW_EXPECT_OK(disk.reserve(kMiB, &more));
  EXPECT_EQ(disk.reserve(1, &pieces).code(), SPW_ERROR_OUT_OF_MEMORY) << "the rest is to be written";
  disk.release(more);
  SPW_EXPECT_OK(disk.reserve(kMiB, &more));
  disk.release(more);
  disk.release(pieces);
}

TEST(DayBound, WhatMayBeWrittenInADayIsABound) {
  Folder directory;
  DiskTierOptions options = disk_options(directory.path());
  options.daily_write_bytes = 50 * kMiB;
  Tiers tiers(kDevice, options);
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion region(tiers, *arena, kWeights);
  region.write(region.allocate(20 * kMiB), 1);
  for (int i = 0; i < 2; ++i) {
    SPW_EXPECT_OK(region.evict(SpillTo::kDisk));
    SPW_EXPECT_OK(region.restore());
  }
  EXPECT_EQ(region.evict(SpillTo::kDisk).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(region.all_intact());
}

// By this process, by others, and by those that are over.
TEST(DayBound, WhatOthersWriteThereCountsInADayToo) {
  const Folder directory;
  DiskTierOptions options = disk_options(directory.path(), false);
  options.daily_write_bytes = 50 * kMiB;
  const auto write = [&](DiskTier& disk) -> Status {
    const std::unique_ptr<std::byte, void (*)(void*)> memory(
        static_cast<std::byte*>(std::aligned_alloc(DiskTier::kAlignment, kPieceBytes)), std::free);
    std::memset(memory.get(), 1, kPieceBytes);
    std::vector<DiskPiece> pieces;
    if (Status status = disk.reserve(kPieceBytes, &pieces); !status.ok()) return status;
    DiskWork work;
    work.begin(1);
    disk.write({memory.get(), kPieceBytes}, pieces[0], IoPriority::kEvict, nullptr,
               [&](Status status) { work.end(std::move(status)); });
    Status status = work.wait();
    disk.release(pieces);
    return status;
  };
  uint64_t written = 0;
  DiskTier other(options);
  for (int process = 0; process < 10; ++process) {
    DiskTier disk(options);  // as if in a process of its own
    for (DiskTier* tier : {&disk, &other}) {
      if (written + kPieceBytes <= options.daily_write_bytes) {
        SPW_EXPECT_OK(write(*tier));
        written += kPieceBytes;
        EXPECT_EQ(tier->counters().today_bytes, written);
      }
    }
  }
  EXPECT_EQ(written, 40 * kMiB);
  for (int i = 0; i < 5; ++i) SPW_EXPECT_OK(write(other));
  DiskTier last(options);
  const Status status = write(last);
  EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(status.text().find("52428800 of the 52428800 bytes that may be written in a day"),
            std::string::npos)
      << status.text();
}

}  // namespace
}  // namespace spillway::test
