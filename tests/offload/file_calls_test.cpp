// The kernel's calls make the spill file and change its size. Each fails in every way, at every place of
// a scenario: what was not spilled is where it was, what was spilled comes back, and no room is lost.
#include "offload/io/file_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "tests/support/io_faults.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"
#include "tests/support/thorough.h"

namespace spillway::test {
namespace {

class FileCallsTest : public testing::Test {
 protected:
  ~FileCallsTest() override {
    if (file_ >= 0) close(file_);
  }
  struct stat about() const {
    struct stat found {};
    EXPECT_EQ(fstat(file_, &found), 0);
    return found;
  }

  const Folder folder_;
  FileCalls& calls_ = FileCalls::of_kernel();
  int file_ = calls_.open_unlinked(folder_.file("spill-XXXXXX"), O_CLOEXEC);
};

TEST_F(FileCallsTest, AnUnlinkedFileIsTheCallersAlone) {
  ASSERT_GE(file_, 0);
  EXPECT_TRUE(folder_.names().empty());
  EXPECT_EQ(about().st_nlink, 0u);
  EXPECT_EQ(about().st_mode & 0777, 0600u);
  EXPECT_NE(fcntl(file_, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(calls_.open_unlinked(folder_.file("none/spill-XXXXXX"), 0), -ENOENT);
}

TEST_F(FileCallsTest, OpensWhatIsThere) {
  EXPECT_EQ(calls_.open(folder_.file("none"), O_RDWR), -ENOENT);
  const int found = calls_.open(folder_.write("some", "text"), O_RDONLY);
  ASSERT_GE(found, 0);
  char letter = 0;
  EXPECT_EQ(read(found, &letter, 1), 1);
  EXPECT_EQ(letter, 't');
  close(found);
}

TEST_F(FileCallsTest, RoomIsReservedPunchedAndCutOff) {
  EXPECT_EQ(calls_.reserve(file_, kMiB, 3 * kMiB), 0);
  EXPECT_EQ(about().st_size, static_cast<off_t>(4 * kMiB)) << "to the end of the range";
  EXPECT_GE(about().st_blocks * 512, static_cast<off_t>(3 * kMiB));
  const char letter = 'x';
  for (const size_t at : {size_t{0}, 2 * kMiB, 4 * kMiB - 1})
    EXPECT_EQ(pwrite(file_, &letter, 1, static_cast<off_t>(at)), 1);
  const int punched = calls_.punch_hole(file_, kMiB, 3 * kMiB);
  if (punched == EOPNOTSUPP) GTEST_SKIP() << "the file system has no holes";
  EXPECT_EQ(punched, 0);
  EXPECT_EQ(about().st_size, static_cast<off_t>(4 * kMiB)) << "it stays as long";
  EXPECT_LT(about().st_blocks * 512, static_cast<off_t>(kMiB));
  char found = 0;
  EXPECT_EQ(pread(file_, &found, 1, 0), 1);
  EXPECT_EQ(found, 'x') << "before the hole";
  EXPECT_EQ(pread(file_, &found, 1, static_cast<off_t>(2 * kMiB)), 1);
  EXPECT_EQ(found, 0) << "in it";
  EXPECT_EQ(calls_.resize(file_, kMiB), 0);
  EXPECT_EQ(about().st_size, static_cast<off_t>(kMiB));
}

TEST_F(FileCallsTest, EachAnswersTheErrno) {
  EXPECT_EQ(calls_.reserve(-1, 0, kMiB), EBADF);
  EXPECT_EQ(calls_.punch_hole(-1, 0, kMiB), EBADF);
  EXPECT_EQ(calls_.resize(-1, 0), EBADF);
  EXPECT_EQ(calls_.file_system(-1), -EBADF);
  EXPECT_EQ(calls_.reserve(file_, 0, 0), EINVAL);
  struct statfs about {};
  ASSERT_EQ(statfs(folder_.path().c_str(), &about), 0);
  EXPECT_EQ(calls_.file_system(file_), static_cast<int64_t>(about.f_type));
}

struct Kind {
  const char* name;
  int error;
  bool lasts;  // every call from there on, else one
};

const Kind kKinds[] = {
    {"ENOSPC once", ENOSPC, false},
    {"ENOSPC for good", ENOSPC, true},
    {"EDQUOT once", EDQUOT, false},
    {"EDQUOT for good", EDQUOT, true},
    {"EFBIG for good", EFBIG, true},
    {"EIO once", EIO, false},
    {"EIO for good", EIO, true},
    {"EINTR once", EINTR, false},
    {"EINVAL once", EINVAL, false},
    {"EINVAL for good", EINVAL, true},
    {"EPERM once", EPERM, false},
    {"ENOMEM once", ENOMEM, false},
    {"EISDIR once", EISDIR, false},
    {"EOPNOTSUPP once", EOPNOTSUPP, false},
    {"EOPNOTSUPP for good", EOPNOTSUPP, true},
};

class FileFaultsTest : public testing::TestWithParam<Kind> {
 protected:
  // Away from the device and back; where the disk cannot have it, by way of the host.
  void leave(TestRegion& region) {
    Status out = region.evict(SpillTo::kDisk);
    if (out.ok()) return;
    ++refused_;
    EXPECT_TRUE(out.code() == SPW_ERROR_OUT_OF_MEMORY || out.code() == SPW_ERROR_IO) << out.text();
    EXPECT_TRUE(region.all_intact());
    SPW_EXPECT_OK(region.evict(GetParam().lasts ? SpillTo::kHost : SpillTo::kDisk));
  }
  void come_back(TestRegion& region) {
    SPW_EXPECT_OK(region.restore());
    EXPECT_TRUE(region.all_intact());
  }

  int refused_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Kinds, FileFaultsTest, testing::ValuesIn(kKinds), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST_P(FileFaultsTest, NothingIsLostAndNoRoomIs) {
  const Kind& kind = GetParam();
  // The kinds begin at different places, so that together they go through all.
  for (uint64_t at = static_cast<uint64_t>(kind.error) % stride(3, 3);; at += stride(3, 3)) {
    SCOPED_TRACE("at call " + std::to_string(at));
    FaultyFileCalls calls(
        [&](uint64_t index) { return (kind.lasts ? index >= at : index == at) ? kind.error : 0; });
    const Folder directory;
    DiskTierOptions options = disk_options(directory.path(), false);
    options.file.growth_bytes = kExtentBytes;
    options.file.calls = &calls;
    Tiers tiers("capacity:64MiB", options);
    const std::unique_ptr<Arena> arena = tiers.device.arena();
    TestRegion first(tiers, *arena, {9, 1});
    TestRegion second(tiers, *arena, {9, 2});
    first.write(first.allocate(3 * kMiB), 1);
    second.write(second.allocate(2 * kMiB), 2);
    leave(first);
    leave(second);
    come_back(first);
    tiers.disk.give_back();
    leave(first);  // where its holes are
    come_back(first);
    come_back(second);
    tiers.disk.give_back();
    const ExtentFile::Usage usage = tiers.disk.usage();
    EXPECT_EQ(usage.extent_bytes, 0u);
    EXPECT_EQ(usage.quarantined_bytes, 0u);
    EXPECT_EQ(usage.free_bytes + usage.hole_bytes, usage.file_bytes);
    EXPECT_EQ(tiers.disk.counters().blocks_bytes, 0u);
    SPW_EXPECT_OK(arena->validate());
    EXPECT_EQ(tiers.device.reports(), "");
    ASSERT_FALSE(HasFailure());
    if (calls.count() <= at) break;  // the scenario has no more
  }
  if (is_no_room(kind.error)) {
    EXPECT_GT(refused_, is_thorough() ? 3 : 0);
  }
}

}  // namespace
}  // namespace spillway::test
