// The disk fails in every way at every operation of a scenario: what was written elsewhere is never lost, and
// what cannot be read as it was written is never given to the program.
#include <algorithm>
#include <atomic>
#include <cerrno>

#include "tests/support/io_faults.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"
#include "tests/support/thorough.h"

namespace spillway::test {
namespace {

constexpr PoolId kWeights{9, 1};
constexpr PoolId kOther{9, 2};
constexpr const char* kDevice = "capacity:128MiB,completion:late";

DiskTierOptions faulty(const std::string& directory, ChooseFault choose) {
  DiskTierOptions options = with_faults(disk_options(directory, false), std::move(choose));
  options.write_bytes_per_s = 1;  // so slow that to pack pays
  return options;
}

struct Kind {
  const char* name;
  IoFault fault;
  bool lasts;                         // every operation from there on, else one
  spw_status refused = SPW_ERROR_IO;  // of a write
  spw_status unread = SPW_ERROR_DATA_LOST;
};

const Kind kKinds[] = {
    {"EIO once", fails(-EIO), false},
    {"EIO for good", fails(-EIO), true},
    {"ENOSPC once", fails(-ENOSPC), false, SPW_ERROR_OUT_OF_MEMORY},
    {"ENOSPC for good", fails(-ENOSPC), true, SPW_ERROR_OUT_OF_MEMORY, SPW_ERROR_IO},
    {"EDQUOT for good", fails(-EDQUOT), true, SPW_ERROR_OUT_OF_MEMORY, SPW_ERROR_IO},
    {"EFBIG for good", fails(-EFBIG), true, SPW_ERROR_OUT_OF_MEMORY, SPW_ERROR_IO},
    {"ENOMEM once", fails(-ENOMEM), false},
    {"ENOMEM for good", fails(-ENOMEM), true, SPW_ERROR_IO, SPW_ERROR_IO},
    {"EBADMSG for good", fails(-EBADMSG), true},
    {"EINVAL once", fails(-EINVAL), false},
    {"EINTR once", fails(-EINTR), false},
    {"EAGAIN once", fails(-EAGAIN), false},
    {"nothing done", fails(0), false},
    {"nothing done for good", fails(0), true},
    {"short", stops_short(512), false},
    {"all short", stops_short(64 << 10), true},
    {"a wrong byte", flips(100), false},
    {"wrong bytes for good", flips(0), true},
};

// With and without packing.
class DiskFaults : public testing::TestWithParam<Codec> {};
INSTANTIATE_TEST_SUITE_P(Codecs, DiskFaults, testing::Values(Codec::kNone, Codec::kLz4),
                         [](const auto& info) { return info.param == Codec::kNone ? "plain" : "packed"; });

TEST_P(DiskFaults, NothingIsLostAndNothingWrongIsRestored) {
  const uint64_t each = stride(3, 6, 18);
  int refused_writes = 0;
  int recovered = 0;
  for (const Kind& kind : kKinds) {
    // The kinds begin at different places, so that together they go through all.
    for (uint64_t at = static_cast<uint64_t>(&kind - kKinds) % each;; at += each) {
      std::atomic<uint64_t> operations{0};
      const auto choose = [&](const IoOperation& operation, uint64_t index) {
        operations = index + 1;
        const bool is_it = kind.lasts ? index >= at : index == at;
        // Wrong memory under a write would be a wrong file that nobody can tell from a right one.
        if (!is_it || (kind.fault.flipped_byte && operation.kind != IoKind::kRead)) return IoFault{};
        return kind.fault;
      };
      Folder directory;
      Tiers tiers(kDevice, faulty(directory.path(), choose));
      const std::unique_ptr<Arena> arena = tiers.device.arena();
      TestRegion region(tiers, *arena, kWeights);
      Packer packer(GetParam());
      region.write(region.allocate(3 * kMiB), TestRegion::kPackable + 11);
      const std::string where = std::string(kind.name) + " at " + std::to_string(at);
      Status out = region.evict(SpillTo::kDisk, &packer);
      if (!out.ok()) {
        ++refused_writes;
        EXPECT_EQ(out.code(), kind.refused) << where << ": " << out.text();
        EXPECT_TRUE(region.all_intact()) << where;
        SPW_EXPECT_OK(region.evict(SpillTo::kHost));
        SPW_EXPECT_OK(region.restore());
        EXPECT_TRUE(region.all_intact()) << where;
      } else {
        Status back = region.restore();
        if (back.ok()) {
          ++recovered;
          EXPECT_TRUE(region.all_intact()) << where;
        } else {
          EXPECT_EQ(back.code(), kind.unread) << where << ": " << back.text();
          EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0) << where;
          EXPECT_EQ(region.restore().code(), kind.unread) << where;
        }
      }
      SPW_EXPECT_OK(arena->validate());
      EXPECT_EQ(tiers.device.reports(), "") << where;
      ASSERT_FALSE(HasFailure());
      if (operations <= at) break;  // the scenario has no more
    }
  }
  EXPECT_GT(refused_writes, is_thorough() ? 10 : each < 18 ? 4 : 0);
  EXPECT_GT(recovered, is_thorough() ? 30 : each < 18 ? 20 : 5);
}

// The kernel lacks memory just when the host is short of it, which is when much is spilled.
TEST_P(DiskFaults, WhatCannotBeReadForNowIsNotLost) {
  for (const int error : {ENOMEM, EBUSY, EAGAIN, ETIMEDOUT}) {
    std::atomic<bool> fails_reads{true};
    const auto choose = [&](const IoOperation& operation, uint64_t) {
      return operation.kind == IoKind::kRead && fails_reads ? fails(-error) : IoFault{};
    };
    const Folder directory;
    Tiers tiers(kDevice, faulty(directory.path(), choose));
    const std::unique_ptr<Arena> arena = tiers.device.arena();
    TestRegion region(tiers, *arena, kWeights);
    Packer packer(GetParam());
    region.write(region.allocate(5 * kMiB), TestRegion::kPackable + 1);
    SPW_EXPECT_OK(region.evict(SpillTo::kDisk, &packer));
    const uint64_t disk_bytes = region.usage().disk_bytes;
    for (int i = 0; i < 2; ++i) {
      const Status status = region.restore();
      EXPECT_EQ(status.code(), SPW_ERROR_IO) << error << ": " << status.text();
      EXPECT_EQ(region.usage().lost_bytes, 0u);
      EXPECT_EQ(region.usage().disk_bytes, disk_bytes);
    }
    fails_reads = false;
    SPW_EXPECT_OK(region.restore());
    EXPECT_TRUE(region.all_intact());
    EXPECT_EQ(tiers.disk.counters().blocks_bytes, 0u);
    EXPECT_EQ(tiers.device.reports(), "");
  }
}

TEST_P(DiskFaults, AFileThatChangedIsReportedAndNotRestored) {
  Folder directory;
  DiskTierOptions options = disk_options(directory.path());
  options.write_bytes_per_s = 1;
  Tiers tiers(kDevice, options);
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion damaged(tiers, *arena, kWeights);
  TestRegion other(tiers, *arena, kOther);
  Packer packer(GetParam());
  void* block = damaged.allocate(5 * kMiB);
  damaged.write(block, TestRegion::kPackable + 1);
  SPW_EXPECT_OK(damaged.evict(SpillTo::kDisk, &packer));
  EXPECT_EQ(tiers.disk.counters().saved_bytes > 0, GetParam() != Codec::kNone);
  damage(directory.path(), 2 * kMiB + 8192);
  other.write(other.allocate(5 * kMiB), 2);
  SPW_EXPECT_OK(other.evict(SpillTo::kDisk));

  const Status lost = damaged.restore();
  EXPECT_EQ(lost.code(), SPW_ERROR_DATA_LOST);
  EXPECT_NE(lost.text().find("checksum"), std::string::npos) << lost.text();
  EXPECT_EQ(tiers.disk.counters().mismatches, 1u);
  EXPECT_EQ(damaged.restore().code(), SPW_ERROR_DATA_LOST);
  EXPECT_GT(damaged.usage().lost_bytes, 0u);
  SPW_EXPECT_OK(other.restore());
  EXPECT_TRUE(other.all_intact());
  // What is lost can be let go.
  SPW_EXPECT_OK(arena->release_pool(kWeights));
  damaged.free(block);
  SPW_EXPECT_OK(arena->trim());
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(tiers.disk.counters().blocks_bytes, 0u);
}

}  // namespace
}  // namespace spillway::test
