// The kernel offers these for operations of a disk, as the engine uses it: memory and files that are made
// known to it, priorities, and what serves where io_uring does not.
#include "offload/io/queue.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/forbid_io_uring.h"
#include "tests/support/io_requests.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

class IoQueueTest : public OnEachQueue {};
INSTANTIATE_TEST_SUITE_P(Queues, IoQueueTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "uring" : "threads"; });

// Counts pages that the kernel holds for somebody: io_uring's prepared ones among them.
size_t pinned_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmPin:", 0) == 0) return std::stoul(line.substr(6));
  return 0;
}

// A queue that went on using the pages which it prepared would write what they had, not what the address
// shows.
TEST_P(IoQueueTest, MemoryThatIsForgottenMayBeMappedAnew) {
  constexpr size_t kBytes = 256 * kKiB;
  const size_t pinned_before = pinned_kib();
  IoFile file(temporary_file());
  IoEngine engine(options());
  const auto map = [](void* at) {
    const int fixed = at == nullptr ? 0 : MAP_FIXED;
    return mmap(at, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  };
  const std::span<std::byte> range(static_cast<std::byte*>(map(nullptr)), kBytes);
  EXPECT_TRUE(engine.forget_memory(range));  // of an engine that has not begun
  for (int round = 0; round < 40; ++round) {
    if (round % 2 == 0) {
      ASSERT_TRUE(engine.use_memory(range).ok());
    }
    std::memset(range.data(), round, kBytes);
    ASSERT_TRUE(engine.run({.kind = IoKind::kWrite, .file = &file, .memory = range}).ok());
    const Bytes read(kBytes, 1000);
    ASSERT_TRUE(engine.run(request_of(IoKind::kRead, file, read)).ok());
    ASSERT_EQ(std::memcmp(read.span().data(), range.data(), kBytes), 0) << round;
    ASSERT_TRUE(engine.forget_memory(range.subspan(0, kBytes / 2)));  // a part: all of what was prepared
    ASSERT_EQ(map(range.data()), range.data());
  }
  // Some kernels let go a moment later.
  for (int wait = 0; pinned_kib() > pinned_before && wait < 2000; ++wait) usleep(1000);
  EXPECT_LE(pinned_kib(), pinned_before);
  munmap(range.data(), kBytes);
}

TEST_P(IoQueueTest, KnownFilesAndIdlePriority) {
  const auto idle_threads = [] {
    int found = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      const int thread = std::stoi(task.path().filename().string());
      // ioprio_get(2): 1 names a thread, and the class stands above 13 bits of level; 3 is idle.
      const long priority = syscall(SYS_ioprio_get, 1, thread);
      found += priority >> 13 == 3 ? 1 : 0;
    }
    return found;
  };
  IoFile file(temporary_file());
  for (const bool is_idle : {false, true}) {
    IoOptions idle = options();
    idle.is_idle = is_idle;
    IoEngine engine(idle);
    EXPECT_TRUE(engine.use_file(file).ok());
    const Bytes written(300 * kKiB, 1);
    const Bytes read(300 * kKiB, 2);
    EXPECT_TRUE(engine.run(request_of(IoKind::kWrite, file, written)).ok());
    EXPECT_TRUE(engine.run(request_of(IoKind::kRead, file, read)).ok());
    EXPECT_TRUE(read == written);
    EXPECT_EQ(idle_threads() > 0, is_idle);
  }
}

TEST(IoQueue, AFileThatIsRegisteredIsReachedWithoutItsDescriptor) {
  auto queue = make_uring_queue(2);
  if (!queue.ok()) GTEST_SKIP() << queue.status().text();
  const int descriptor = temporary_file();
  queue.value()->use_file(descriptor);
  close(descriptor);
  const Bytes written(4 * kKiB, 1);
  queue.value()->push({IoKind::kWrite, descriptor, written.span().data(), written.span().size(), 0, 7});
  std::array<IoCompletion, 2> completions;
  ASSERT_EQ(queue.value()->wait(completions), 1U);
  EXPECT_EQ(completions[0].result, 4 * kKiB);
}

// The kernel has no memory for new operations, say, and will not have any.
TEST(IoQueue, ARingThatTakesNothingIsAnError) {
  if (!make_uring_queue(2).ok()) GTEST_SKIP() << "no io_uring here";
  const pid_t child = fork();
  if (child == 0) {
    bool is_right = true;
    {
      IoFile file(temporary_file());
      IoEngine engine(small_blocks(true), []() -> Result<std::unique_ptr<IoQueue>> {
        auto queue = make_uring_queue(4);
        if (!forbid(__NR_io_uring_enter, EAGAIN)) return Status::io("no seccomp");
        return queue;
      });
      const Bytes bytes(300 * kKiB);
      for (int i = 0; i < 2 && is_right; ++i) {
        const Status status = engine.run(request_of(IoKind::kWrite, file, bytes));
        is_right = status.text().find("resource busy") != std::string::npos;
        if (!is_right) std::fprintf(stderr, "%s\n", status.text().c_str());
      }
    }
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(IoQueue, WithoutIoUringThreadsServe) {
  const pid_t child = fork();
  if (child == 0) {
    if (!forbid_io_uring()) _exit(2);
    bool is_right = false;
    {
      IoFile file(temporary_file());
      IoEngine engine{IoOptions()};
      const Bytes written(500 * kKiB, 1);
      const Bytes read(500 * kKiB, 2);
      is_right =
          engine.run(request_of(IoKind::kWrite, file, written)).ok() &&
          engine.run(request_of(IoKind::kRead, file, read)).ok() && read == written &&
          engine.description() ==
              "4 threads of pread and pwrite (io_uring: io_uring_queue_init_params: Operation not permitted)";
      if (!is_right) std::fprintf(stderr, "%s\n", engine.description().c_str());
    }
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace spillway::test
