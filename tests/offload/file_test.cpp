// The file that blocks are spilled to goes past the page cache only where that was tried and works, and says
// why where it does not.
#include "offload/io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "tests/support/io_faults.h"
#include "tests/support/io_requests.h"

namespace spillway::test {
namespace {

// Opens another file instead, whose reads and writes are its own.
class CallsOfAnother final : public FileCalls {
 public:
  explicit CallsOfAnother(std::string path) : path_(std::move(path)) {}
  int open(const std::string& /*path*/, int flags) override {
    return FileCalls::open(path_, flags & ~O_DIRECT);
  }

 private:
  const std::string path_;
};

size_t size_of(const IoFile& file) {
  struct stat about {};
  EXPECT_EQ(fstat(file.buffered(), &about), 0);
  return static_cast<size_t>(about.st_size);
}

// Every range is for the page cache then.
void expect_buffered(const IoFile& file, const std::string& why) {
  EXPECT_FALSE(file.is_direct());
  EXPECT_EQ(file.buffered_reason(), why);
  const Bytes memory(file.alignment_bytes());
  EXPECT_EQ(file.descriptor_for(memory.span().data(), memory.span().size(), 0), file.buffered());
}

TEST(IoErrors, NoRoomIsTheDisksTheQuotasOrTheLimits) {
  for (const int error : {ENOSPC, EDQUOT, EFBIG}) EXPECT_TRUE(is_no_room(error)) << error;
  for (const int error : {0, EIO, ENOMEM, ENODATA, EAGAIN}) EXPECT_FALSE(is_no_room(error)) << error;
}

TEST(IoErrors, LostIsOnlyWhatNoLaterReadCanBring) {
  for (const int error : {EIO, ENODATA, EREMOTEIO, EILSEQ, EUCLEAN, EBADMSG})
    EXPECT_TRUE(is_loss(error)) << error;
  for (const int error : {0, ENOMEM, EAGAIN, EINTR, ETIMEDOUT, ENOSPC, EINVAL})
    EXPECT_FALSE(is_loss(error)) << error;
}

TEST(IoFile, WhatIsAlignedGoesPastThePageCache) {
  const IoFile file(temporary_file());
  if (!file.is_direct()) GTEST_SKIP() << file.buffered_reason();
  EXPECT_EQ(file.buffered_reason(), "");
  EXPECT_EQ(size_of(file), 0u) << "what it was tried with is gone";
  const size_t sector = file.alignment_bytes();
  EXPECT_GE(sector, 512u);
  EXPECT_EQ(sector & (sector - 1), 0u);
  const Bytes bytes(4 * sector);
  const std::byte* const memory = bytes.span().data();
  const int direct = file.descriptors()[1];
  EXPECT_NE(direct, file.buffered());
  EXPECT_EQ(file.descriptors()[0], file.buffered());
  EXPECT_EQ(file.descriptor_for(memory, sector, 0), direct);
  EXPECT_EQ(file.descriptor_for(memory + sector, 2 * sector, 3 * sector), direct);
  // Each of the three counts.
  EXPECT_EQ(file.descriptor_for(memory + 1, sector, 0), file.buffered());
  EXPECT_EQ(file.descriptor_for(memory, sector + 1, 0), file.buffered());
  EXPECT_EQ(file.descriptor_for(memory, sector, sector / 2), file.buffered());
}

TEST(IoFile, WhatIsNotWantedIsNotTried) {
  FaultyFileCalls calls([](uint64_t) { return 0; });
  const IoFile file(temporary_file(), false, calls);
  expect_buffered(file, "not wanted");
  EXPECT_EQ(file.descriptors()[1], -1);
  EXPECT_EQ(calls.count(), 0u);
}

TEST(IoFile, AFileSystemThatDoesNotOpenItSaysWhy) {
  FaultyFileCalls calls([](uint64_t) { return EINVAL; });
  const IoFile file(temporary_file(), true, calls);
  expect_buffered(file, "open with O_DIRECT: Invalid argument");
  EXPECT_EQ(file.descriptors()[1], -1);
}

TEST(IoFile, WhatOpensAndDoesNotServeIsFoundOut) {
  const std::pair<const char*, const char*> kinds[] = {
      {"/dev/full", "a direct write: No space left on device"},
      {"/dev/null", "a direct read: Input/output error"},  // of which nothing comes
      {"/dev/zero", "a direct read returned other bytes than were written"},
  };
  for (const auto& [path, why] : kinds) {
    CallsOfAnother calls(path);
    const IoFile file(temporary_file(), true, calls);
    expect_buffered(file, why);
  }
}

// Its bytes would be taken for what was spilled.
TEST(IoFile, AFileThatCannotBeEmptiedAgainIsNotDirect) {
  if (!IoFile(temporary_file()).is_direct()) GTEST_SKIP() << "the file system has no direct I/O";
  FaultyFileCalls calls([](uint64_t index) { return index == 1 ? EIO : 0; });
  const IoFile file(temporary_file(), true, calls);
  expect_buffered(file, "ftruncate: Input/output error");
}

TEST(IoFile, DirectIsGivenUpOnceAndForGood) {
  IoFile file(temporary_file());
  if (!file.is_direct()) GTEST_SKIP() << file.buffered_reason();
  file.give_up_direct("the first refusal");
  file.give_up_direct("the second one");
  expect_buffered(file, "the first refusal");
  EXPECT_GE(file.descriptors()[1], 0) << "operations may still be of it";
}

TEST(IoFile, WhatWentThroughThePageCacheIsSyncedOnce) {
  IoFile file(temporary_file(), false);
  EXPECT_FALSE(file.take_unsynced());
  for (int i = 0; i < 2; ++i) file.note_buffered_write();
  EXPECT_TRUE(file.take_unsynced());
  EXPECT_FALSE(file.take_unsynced());
}

TEST(IoFile, ClosesWhatItHas) {
  std::array<int, 2> descriptors{};
  {
    const IoFile file(temporary_file());
    descriptors = file.descriptors();
  }
  for (const int descriptor : descriptors) {
    if (descriptor < 0) continue;  // without direct I/O
    EXPECT_EQ(fcntl(descriptor, F_GETFD), -1);
  }
}

}  // namespace
}  // namespace spillway::test
