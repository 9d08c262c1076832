// The disk fails in every way at every operation of a scenario: what was written elsewhere is never lost, and
// what cannot be read as it was written is never given to the program.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>

#include "offload/spill/regions.h"
#include "tests/offload/faults.h"
#include "tests/offload/spilling.h"
#include "tests/thorough.h"

namespace spillway::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr PoolId kWeights{9, 1};
constexpr PoolId kOther{9, 2};
constexpr const char* kDevice = "capacity:128MiB,completion:late";

DiskTierOptions faulty(const std::string& directory, ChooseFault choose) {
  DiskTierOptions options = disk_options(directory, false);
  options.write_bytes_per_s = 1;  // so slow that to pack pays
  options.make_queue = [choose = std::move(choose)]() -> Result<std::unique_ptr<IoQueue>> {
    Result<std::unique_ptr<IoQueue>> queue = make_thread_queue(8, 2, "for faults");
    if (!queue.ok()) return queue;
    return make_faulty_queue(std::move(queue.value()), choose);
  };
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
  int refused_writes = 0;
  int recovered = 0;
  for (const Kind& kind : kKinds) {
    // The kinds begin at different places, so that together they go through all.
    for (uint64_t at = static_cast<uint64_t>(&kind - kKinds) % stride(3, 6);; at += stride(3, 6)) {
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
  EXPECT_GT(refused_writes, is_thorough() ? 10 : 4);
  EXPECT_GT(recovered, is_thorough() ? 30 : 20);
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

// The file of the tier, among what the process has open.
int spill_file(const std::string& directory) {
  for (int descriptor = 3; descriptor < 1024; ++descriptor) {
    std::array<char, 4096> target{};
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    if (readlink(link.c_str(), target.data(), target.size() - 1) <= 0) continue;
    if (std::string(target.data()).rfind(directory, 0) == 0) return descriptor;
  }
  return -1;
}

void damage(const std::string& directory, uint64_t offset) {
  const int file = spill_file(directory);
  ASSERT_GE(file, 0);
  // O_DIRECT may be set: a whole aligned sector.
  alignas(4096) static std::array<char, 4096> wrong{};
  wrong.fill('x');
  ASSERT_EQ(pwrite(file, wrong.data(), wrong.size(), static_cast<off_t>(offset)), 4096);
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

// A region of two blocks on pages of their own, of which the disk loses the first, of so many bytes.
class LostPagesTest : public testing::TestWithParam<size_t> {
 protected:
  void lose(bool is_captured = false) {
    SPW_EXPECT_OK(regions_.begin("a"));
    lost_ = must_allocate(*arena_, GetParam(), stream_);
    kept_ = must_allocate(*arena_, kBytes, nullptr);
    SPW_EXPECT_OK(regions_.end("a"));
    write(lost_, GetParam());
    write(kept_, kBytes);
    if (is_captured) capture();
    SPW_EXPECT_OK(regions_.evict("a", SpillTo::kDisk));
    damage(directory_.path(), 8192);
  }
  ~LostPagesTest() override {
    SPW_EXPECT_OK(arena_->trim());
    SPW_EXPECT_OK(arena_->validate());
    EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 0u);
    EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0);
    EXPECT_EQ(tiers_.device.reports(), "");
  }
  // A graph whose temporary memory lies in the region's pool, with a claim on that.
  void capture() {
    const PoolId pool = regions_.pool("a").value();
    const CUstream stream = tiers_.device.stream();
    EXPECT_EQ(tiers_.device.driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_SUCCESS);
    SPW_EXPECT_OK(arena_->begin_pool(pool, nullptr));
    SPW_EXPECT_OK(Arena::free(must_allocate(*arena_, 512, stream)));
    SPW_EXPECT_OK(arena_->end_pool(pool));
    CUgraph graph = nullptr;
    EXPECT_EQ(tiers_.device.driver->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    tiers_.device.driver->cuGraphDestroy(graph);
  }
  void write(void* block, size_t bytes) {
    EXPECT_EQ(
        tiers_.device.driver->cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(block), content_.data(), bytes),
        CUDA_SUCCESS);
  }
  bool is_intact(void* block, size_t bytes) {
    std::vector<char> found(bytes);
    EXPECT_EQ(tiers_.device.driver->cuMemcpyDtoH(found.data(), reinterpret_cast<CUdeviceptr>(block), bytes),
              CUDA_SUCCESS);
    return std::equal(found.begin(), found.end(), content_.begin());
  }
  // Names where it is, each time; nothing is on the device.
  void expect_lost() {
    for (int i = 0; i < 2; ++i) {
      const Status status = regions_.restore("a");
      EXPECT_EQ(status.code(), SPW_ERROR_DATA_LOST) << status.text();
      const std::string from = fmt::format("from {:#x} ", reinterpret_cast<uint64_t>(lost_));
      EXPECT_NE(status.text().find(from), std::string::npos) << status.text();
      EXPECT_GT(usage().lost_bytes, 0u);
      EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0);
    }
  }
  void expect_the_rest() {
    SPW_EXPECT_OK(regions_.restore("a"));
    EXPECT_TRUE(is_intact(kept_, kBytes));
    EXPECT_EQ(usage().lost_bytes, 0u);
    EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 0u);
    // What took its place is memory like any other.
    SPW_EXPECT_OK(regions_.begin("a"));
    void* again = must_allocate(*arena_, GetParam(), stream_);
    SPW_EXPECT_OK(regions_.end("a"));
    for (int i = 0; i < 2; ++i) {
      write(again, GetParam());
      SPW_EXPECT_OK(regions_.evict("a", SpillTo::kDisk));
      SPW_EXPECT_OK(regions_.restore("a"));
      EXPECT_TRUE(is_intact(again, GetParam()) && is_intact(kept_, kBytes));
    }
    SPW_EXPECT_OK(Arena::free(again));
    SPW_EXPECT_OK(Arena::free(kept_));
    SPW_EXPECT_OK(regions_.release("a"));
  }
  RegionUsage usage() { return regions_.report("a").value().usage; }

  static constexpr size_t kBytes = 24 * kMiB;
  const std::vector<char> content_ = TestRegion::pattern(kBytes, 7);
  Folder directory_;
  Tiers tiers_{kDevice, disk_options(directory_.path())};
  std::unique_ptr<Arena> arena_ = tiers_.device.arena();
  Regions regions_{*arena_, *tiers_.memory};
  const CUstream stream_ = tiers_.device.stream();
  void* lost_ = nullptr;
  void* kept_ = nullptr;
};
// A large one, and a slot of a slab.
INSTANTIATE_TEST_SUITE_P(Sizes, LostPagesTest, testing::Values(24 * kMiB, size_t{512}));

TEST_P(LostPagesTest, TheRestComesBackWhenItsBlocksAreFreed) {
  lose();
  expect_lost();
  SPW_EXPECT_OK(Arena::free(lost_));
  expect_the_rest();
}

TEST_P(LostPagesTest, IsNotMissedWhereItsBlocksWereFreedBefore) {
  lose();
  SPW_EXPECT_OK(Arena::free(lost_));
  expect_the_rest();
}

TEST_P(LostPagesTest, IsKeptForAGraphWithAClaim) {
  lose(true);
  SPW_EXPECT_OK(Arena::free(lost_));
  expect_lost();
  SPW_EXPECT_OK(arena_->release_pool(regions_.pool("a").value()));
  expect_the_rest();
}

TEST_P(LostPagesTest, CanBeReleasedWhereItIs) {
  lose();
  expect_lost();
  SPW_EXPECT_OK(regions_.release("a"));
  SPW_EXPECT_OK(Arena::free(lost_));
  SPW_EXPECT_OK(Arena::free(kept_));
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
  for (const uint64_t places : {1, 2, 8}) {
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

TEST(DiskTier, OnlyWhatWasWrittenCountsInADay) {
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
TEST(DiskTier, WritesThatAreRepeatedCountInADay) {
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

TEST(DiskTier, WhatMayBeWrittenInADayIsABound) {
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
TEST(DiskTier, WhatOthersWriteThereCountsInADayToo) {
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
