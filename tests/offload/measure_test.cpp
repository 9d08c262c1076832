// A measurement moves the bytes that it was asked for, both ways, and leaves nothing; what hinders it is
// said.
#include "offload/io/measure.h"

#include <sys/resource.h>
#include <sys/syscall.h>

#include <csignal>
#include <fstream>
#include <string>

#include "offload/io/extent_file.h"
#include "tests/support/folder.h"
#include "tests/support/forbid_io_uring.h"
#include "tests/support/forked.h"
#include "tests/support/io_requests.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// Says how much calls of this process have read and written so far.
struct CallBytes {
  uint64_t read = 0;
  uint64_t written = 0;
};
CallBytes call_bytes() {
  CallBytes found;
  std::ifstream io("/proc/self/io");
  std::string name;
  for (uint64_t bytes = 0; io >> name >> bytes;) {
    if (name == "rchar:") found.read = bytes;
    if (name == "wchar:") found.written = bytes;
  }
  return found;
}

class MeasureTest : public OnEachQueue {
 protected:
  const Folder folder_;
};
INSTANTIATE_TEST_SUITE_P(Queues, MeasureTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "uring" : "threads"; });

TEST_P(MeasureTest, SaysWhatItDidAndLeavesNothing) {
  for (const bool want_direct : {true, false}) {
    Result<DiskSpeed> speed = measure_disk(folder_.path(), 6 * kMiB, options(), want_direct);
    ASSERT_TRUE(speed.ok()) << speed.status().text();
    EXPECT_EQ(speed->bytes, 6 * kMiB);
    EXPECT_EQ(speed->block_bytes, options().block_bytes);
    EXPECT_EQ(speed->depth, options().depth);
    EXPECT_GT(speed->write_bytes_per_s, 0);
    EXPECT_GT(speed->read_bytes_per_s, 0);
    EXPECT_NE(speed->engine, "");
    EXPECT_EQ(speed->is_direct, want_direct && IoFile(temporary_file()).is_direct());
    if (!want_direct) {
      EXPECT_NE(speed->warning, "") << "why it is not direct, at least";
    }
  }
  EXPECT_TRUE(folder_.names().empty());
}

TEST_P(MeasureTest, ADirectoryThatIsNoneIsNamed) {
  const Status status = measure_disk(folder_.file("none"), kMiB, options(), true).take_status();
  EXPECT_EQ(status.code(), SPW_ERROR_IO);
  EXPECT_NE(status.text().find(folder_.file("none")), std::string::npos) << status.text();
  EXPECT_EQ(tune_disk(folder_.file("none"), options(), true).take_status().code(), SPW_ERROR_IO);
}

TEST_P(MeasureTest, WithoutRoomNothingIsMeasured) {
  EXPECT_TRUE(holds_in_child([&] {
    std::signal(SIGXFSZ, SIG_DFL);
    const rlimit limit{3 * kMiB, 3 * kMiB};
    return setrlimit(RLIMIT_FSIZE, &limit) == 0 &&
           measure_disk(folder_.path(), 8 * kMiB, options(), true).status().code() ==
               SPW_ERROR_OUT_OF_MEMORY &&
           tune_disk(folder_.path(), options(), true).status().code() == SPW_ERROR_OUT_OF_MEMORY;
  }));
}

// There are more blocks than go through its memory at a time, and fewer bytes than one block.
TEST(Measure, EveryByteIsWrittenAndRead) {
  const Folder folder;
  IoOptions options = small_blocks(false);
  const std::pair<size_t, uint32_t> settings[] = {{kMiB / 2, 2}, {4 * kMiB, 3}, {16 * kMiB, 32}};
  for (const auto& [block_bytes, depth] : settings) {
    options.block_bytes = block_bytes;
    options.depth = depth;
    for (const uint64_t asked : {uint64_t{1}, 3 * kMiB, 30 * kMiB}) {
      const CallBytes before = call_bytes();
      if (before.read == 0) GTEST_SKIP() << "the kernel does not count them";
      Result<DiskSpeed> speed = measure_disk(folder.path(), asked, options, false);
      ASSERT_TRUE(speed.ok()) << speed.status().text();
      const uint64_t bytes = (asked + kExtentBytes - 1) / kExtentBytes * kExtentBytes;
      EXPECT_EQ(speed->bytes, bytes) << "what was moved is what its time is of";
      const CallBytes after = call_bytes();
      EXPECT_NEAR(static_cast<double>(after.written - before.written), static_cast<double>(bytes), 64 * kKiB);
      EXPECT_NEAR(static_cast<double>(after.read - before.read), static_cast<double>(bytes), 64 * kKiB);
    }
  }
}

TEST(Measure, ADiskThatRefusesEndsIt) {
  const Folder folder;
  for (const uint32_t call : {uint32_t{__NR_pwrite64}, uint32_t{__NR_pread64}}) {
    EXPECT_TRUE(holds_in_child([&] {
      if (!forbid(call, EIO)) return false;
      const Status status = measure_disk(folder.path(), 8 * kMiB, small_blocks(false), false).take_status();
      return status.code() == SPW_ERROR_IO && status.text() == folder.path() + ": Input/output error";
    })) << call;
  }
}

// It takes as long as a tuning does, once.
TEST(Measure, TuningChangesTheBlocksAndTheDepthAlone) {
  const Folder folder;
  IoOptions options;
  options.block_bytes = 12345;
  options.depth = 7;
  options.threads = 3;
  options.use_uring = false;
  const Result<IoOptions> tuned = tune_disk(folder.path(), options, true);
  ASSERT_TRUE(tuned.ok()) << tuned.status().text();
  EXPECT_EQ(tuned.value().threads, 3u);
  EXPECT_FALSE(tuned.value().use_uring);
  if (tuned.value().block_bytes == options.block_bytes) {
    EXPECT_EQ(tuned.value().depth, options.depth) << "there was no time for a trial";
  } else {
    EXPECT_EQ(tuned.value().block_bytes % kMiB, 0u);
    EXPECT_TRUE(tuned.value().depth >= 4 && tuned.value().depth <= 32) << tuned.value().depth;
  }
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace spillway::test
