// Space is reserved before it is needed, belongs to one extent at a time, and is given back.

#include "offload/io/extent_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/folder.h"
#include "tests/support/sizes.h"

namespace {

// More than these bytes at once are not reserved: the disk is full after them, and they stay reserved, as on
// ext4 and xfs.
off_t room_at_once = std::numeric_limits<off_t>::max();

}  // namespace

// Instead of the C library's.
extern "C" int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  if (syscall(SYS_fallocate, descriptor, mode, offset, std::min(bytes, room_at_once)) != 0) return -1;
  if (bytes <= room_at_once) return 0;
  errno = ENOSPC;
  return -1;
}

namespace spillway::test {
namespace {

std::unique_ptr<ExtentFile> file_of(uint64_t most_bytes = ~uint64_t{0}, uint64_t growth_bytes = 64 * kMiB) {
  ExtentFileOptions options;
  options.directory = ::testing::TempDir();
  options.most_bytes = most_bytes;
  options.growth_bytes = growth_bytes;
  options.allow_ram_backed = true;  // where tests keep their files
  auto file = ExtentFile::open(options);
  EXPECT_TRUE(file.ok()) << file.status().text();
  return std::move(file.value());
}

uint64_t bytes_of(const std::vector<Extent>& extents) {
  uint64_t bytes = 0;
  for (const Extent& extent : extents) bytes += extent.bytes;
  return bytes;
}

uint64_t disk_bytes_of(ExtentFile& file) {
  struct stat about {};
  EXPECT_EQ(fstat(file.file().buffered(), &about), 0);
  return static_cast<uint64_t>(about.st_blocks) * 512;
}

TEST(ExtentFile, ReservesWholeExtentsOnTheDisk) {
  const auto file = file_of();
  const auto extents = file->reserve(5 * kMiB);
  ASSERT_TRUE(extents.ok());
  EXPECT_EQ(bytes_of(extents.value()), 6 * kMiB);
  EXPECT_EQ(extents.value().size(), 1U);
  EXPECT_EQ(file->usage().file_bytes, 64 * kMiB);
  EXPECT_GE(disk_bytes_of(*file), 64 * kMiB);
}

// LMCache#4385: what came back from the disk was another's.
TEST(ExtentFile, NoExtentIsHandedOutTwice) {
  constexpr uint64_t kMostBytes = 200 * kMiB;
  const auto file = file_of(kMostBytes, 20 * kMiB);
  std::minstd_rand random(5);
  std::vector<std::vector<Extent>> live;
  uint64_t quarantined = 0;
  for (int step = 0; step < 2000; ++step) {
    const auto choice = random() % 100;
    if (choice < 50) {
      const uint64_t bytes = random() % (24 * kMiB) + 1;
      auto extents = file->reserve(bytes);
      if (extents.ok()) {
        EXPECT_GE(bytes_of(extents.value()), bytes);
        live.push_back(std::move(extents.value()));
      } else {
        EXPECT_EQ(extents.status().code(), SPW_ERROR_OUT_OF_MEMORY);
      }
    } else if (choice < 95 && !live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      file->release(live.back());
      live.pop_back();
    } else if (choice == 95 && !live.empty() && quarantined < 20 * kMiB) {
      file->quarantine(live.back());
      quarantined += bytes_of(live.back());
      live.pop_back();
    } else {
      EXPECT_TRUE(file->give_back().ok());
      EXPECT_EQ(file->usage().free_bytes, 0U);
    }
    std::vector<Extent> all;
    for (const auto& extents : live) all.insert(all.end(), extents.begin(), extents.end());
    std::sort(all.begin(), all.end(), [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
    for (size_t i = 1; i < all.size(); ++i) ASSERT_LE(all[i - 1].offset + all[i - 1].bytes, all[i].offset);
    const ExtentFile::Usage usage = file->usage();
    ASSERT_EQ(usage.extent_bytes, bytes_of(all));
    ASSERT_EQ(usage.quarantined_bytes, quarantined);
    ASSERT_LE(usage.file_bytes, kMostBytes);
  }
}

TEST(ExtentFile, ScatteredSpaceServesALargeRequest) {
  const auto file = file_of(20 * kMiB, 20 * kMiB);
  std::vector<std::vector<Extent>> pieces;
  for (int i = 0; i < 10; ++i) pieces.push_back(std::move(file->reserve(2 * kMiB).value()));
  for (size_t i = 0; i < 10; i += 2) file->release(pieces[i]);
  const auto extents = file->reserve(10 * kMiB);
  ASSERT_TRUE(extents.ok());
  EXPECT_EQ(extents.value().size(), 5U);
  EXPECT_EQ(file->reserve(1).status().code(), SPW_ERROR_OUT_OF_MEMORY);
}

TEST(ExtentFile, WhatIsGivenBackLeavesTheDiskAndReturns) {
  const auto file = file_of();
  const auto extents = file->reserve(64 * kMiB);
  ASSERT_TRUE(extents.ok());
  file->release(extents.value());
  ASSERT_TRUE(file->give_back().ok());
  EXPECT_LT(disk_bytes_of(*file), kMiB);
  ASSERT_TRUE(file->reserve(64 * kMiB).ok());
  EXPECT_EQ(file->usage().file_bytes, 64 * kMiB);
  EXPECT_GE(disk_bytes_of(*file), 64 * kMiB);
}

// The kernel's own limit on the size of a file: nothing is taken, and what fits is served.
TEST(ExtentFile, NoRoomIsSeenWhenSpaceIsReserved) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_DFL);
    const rlimit limit{10 * kMiB, 10 * kMiB};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto file = file_of();
    const auto too_much = file->reserve(12 * kMiB);
    const bool is_right = too_much.status().code() == SPW_ERROR_OUT_OF_MEMORY &&
                          too_much.status().text().find("File too large") != std::string::npos &&
                          file->usage().extent_bytes == 0 && file->reserve(10 * kMiB).ok();
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ExtentFile, AStepThatFailsHalfwayTakesNothing) {
  const auto file = file_of();
  room_at_once = 8 * kMiB;
  const auto extents = file->reserve(2 * kMiB);
  const auto too_much = file->reserve(10 * kMiB);
  room_at_once = std::numeric_limits<off_t>::max();
  ASSERT_TRUE(extents.ok());
  EXPECT_EQ(too_much.status().code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(file->usage().file_bytes, 2 * kMiB);
  EXPECT_LT(disk_bytes_of(*file), 3 * kMiB);
}

TEST(ExtentFile, LeavesNoName) {
  const Folder folder;
  ExtentFileOptions options;
  options.directory = folder.path();
  options.allow_ram_backed = true;
  const auto file = ExtentFile::open(options);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(folder.names().empty());
}

TEST(ExtentFile, ADirectoryInMemoryIsRefusedUnlessAllowed) {
  ExtentFileOptions options;
  options.directory = "/dev/shm";
  struct stat about {};
  if (stat("/dev/shm", &about) != 0) GTEST_SKIP() << "this machine has no /dev/shm";
  const auto refused = ExtentFile::open(options);
  EXPECT_EQ(refused.status().code(), SPW_ERROR_CONFIG);
  EXPECT_NE(refused.status().text().find("/dev/shm is on tmpfs"), std::string::npos)
      << refused.status().text();
  options.allow_ram_backed = true;
  const auto allowed = ExtentFile::open(options);
  ASSERT_TRUE(allowed.ok());
  EXPECT_NE((*allowed.value()).warning(), "");
}

TEST(ExtentFile, AMissingDirectoryIsNamed) {
  ExtentFileOptions options;
  options.directory = "/nowhere/at/all";
  const auto refused = ExtentFile::open(options);
  EXPECT_EQ(refused.status().code(), SPW_ERROR_IO);
  EXPECT_EQ(refused.status().text(),
            "no file can be made in the spill directory /nowhere/at/all: No such file or directory");
}

// Answers which file system a file is on, as told.
class FileCallsElsewhere final : public FileCalls {
 public:
  explicit FileCallsElsewhere(int64_t magic) : magic_(magic) {}
  int64_t file_system(int /*file*/) override { return magic_; }

 private:
  const int64_t magic_;
};

TEST(ExtentFile, FileSystemsThatAreNotWhatTheySeemAreNamed) {
  const std::pair<int64_t, const char*> kinds[] = {
      {NFS_SUPER_MAGIC, "is on NFS: spilling goes over the network"},
      {OVERLAYFS_SUPER_MAGIC, "is on overlayfs: a container's own layer may be slow and small: mount a disk"},
      {TMPFS_MAGIC, "is on tmpfs: spilling to it takes the host memory that it is meant to save"},
      {RAMFS_MAGIC, "is on ramfs: spilling to it takes the host memory that it is meant to save"},
      {EXT4_SUPER_MAGIC, nullptr},
      {-EIO, nullptr},
  };
  for (const auto& [magic, warning] : kinds) {
    const Folder folder;
    FileCallsElsewhere calls(magic);
    ExtentFileOptions options;
    options.directory = folder.path();
    options.calls = &calls;
    const bool is_memory = magic == TMPFS_MAGIC || magic == RAMFS_MAGIC;
    if (is_memory) {
      const Status refused = ExtentFile::open(options).take_status();
      EXPECT_EQ(refused.code(), SPW_ERROR_CONFIG);
      EXPECT_EQ(refused.text(), "the spill directory " + folder.path() + " " + warning);
    }
    options.allow_ram_backed = true;
    const Result<std::unique_ptr<ExtentFile>> opened = ExtentFile::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    EXPECT_EQ(opened.value()->warning(),
              warning == nullptr ? "" : "the spill directory " + folder.path() + " " + warning);
  }
}

}  // namespace
}  // namespace spillway::test
