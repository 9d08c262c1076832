// Whatever single operations do, a request ends once: with all its bytes, or with an error that says why not.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "offload/io/engine.h"
#include "tests/offload/faults.h"
#include "tests/offload/forbid_io_uring.h"

namespace spillway::test {
namespace {

constexpr size_t kKiB = 1024;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// Page-aligned memory of a known content.
class Bytes {
 public:
  explicit Bytes(size_t size, uint32_t seed = 0)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096))), size_(size) {
    std::minstd_rand random(seed + 1);
    for (size_t i = 0; i < size; ++i) memory_.get()[i] = static_cast<std::byte>(random());
  }
  std::span<std::byte> span() const { return {memory_.get(), size_}; }
  bool operator==(const Bytes& other) const {
    return size_ == other.size_ && std::memcmp(memory_.get(), other.memory_.get(), size_) == 0;
  }

 private:
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_;
};

int temporary_file() {
  const int descriptor = open(::testing::TempDir().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  EXPECT_GE(descriptor, 0) << std::strerror(errno);
  return descriptor;
}

IoRequest request_of(IoKind kind, IoFile& file, const Bytes& bytes, uint64_t offset = 0) {
  IoRequest request;
  request.kind = kind;
  request.file = &file;
  request.memory = bytes.span();
  request.offset = offset;
  return request;
}

IoOptions small_blocks(bool use_uring) {
  IoOptions options;
  options.block_bytes = 64 * kKiB;
  options.depth = 4;
  options.use_uring = use_uring;
  return options;
}

Result<std::unique_ptr<IoQueue>> queue_of(const IoOptions& options) {
  return options.use_uring ? make_uring_queue(options.depth)
                           : make_thread_queue(options.depth, options.threads, "as the test wants");
}

class OnEachQueue : public ::testing::TestWithParam<bool> {
 protected:
  IoOptions options() const { return small_blocks(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(IoEngine, OnEachQueue, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "uring" : "threads"; });

// DeepSpeed#1070, #1627, #2006 and #3376, transformers#25816: of what was no multiple of a sector the end was
// not written, nobody looked at how much was, and it was found out when the file was read.
TEST_P(OnEachQueue, WhatWasWrittenIsRead) {
  for (const bool is_direct : {true, false}) {
    IoFile file(temporary_file(), is_direct);
    IoEngine engine(options());
    std::minstd_rand random(7);
    uint64_t offset = 0;
    for (uint32_t i = 0; i < 40; ++i) {
      const size_t size = i == 0 ? 0 : random() % (700 * kKiB);  // most are no multiple of a sector
      const Bytes written(size, i);
      const Bytes read(size, 1000);
      ASSERT_TRUE(engine.run(request_of(IoKind::kWrite, file, written, offset)).ok());
      ASSERT_TRUE(engine.run(request_of(IoKind::kRead, file, read, offset)).ok());
      ASSERT_TRUE(read == written) << i;
      offset += i % 3 == 0 ? size : (size + 4095) / 4096 * 4096;
    }
    EXPECT_EQ(engine.counters().failed_requests, 0U);
    EXPECT_EQ(engine.counters().read_bytes, engine.counters().written_bytes);
  }
}

TEST_P(OnEachQueue, ManyRequestsAtATime) {
  IoFile file(temporary_file());
  const Bytes memory(32 * 1024 * kKiB, 3);
  const Bytes copy(32 * 1024 * kKiB, 4);
  std::atomic<int> errors{0};
  std::atomic<int> ended{0};
  for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
    IoEngine engine(options());
    const Bytes& bytes = kind == IoKind::kWrite ? memory : copy;
    ASSERT_TRUE(engine.use_memory(bytes.span()).ok());
    for (size_t offset = 0; offset < bytes.span().size(); offset += 320 * kKiB) {
      IoRequest request;
      request.kind = kind;
      request.priority = static_cast<IoPriority>(offset / (320 * kKiB) % kIoPriorities);
      request.file = &file;
      request.memory = bytes.span().subspan(offset, std::min(320 * kKiB, bytes.span().size() - offset));
      request.offset = offset;
      ASSERT_TRUE(engine
                      .submit(request,
                              [&](int error) {
                                errors += error == 0 ? 0 : 1;
                                ++ended;
                              })
                      .ok());
    }
  }  // an engine ends with its requests
  EXPECT_EQ(errors, 0);
  EXPECT_EQ(ended, 2 * 103);
  EXPECT_TRUE(copy == memory);
}

// Counts pages that the kernel holds for somebody: io_uring's prepared ones among them.
size_t pinned_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmPin:", 0) == 0) return std::stoul(line.substr(6));
  return 0;
}

// A queue that went on using the pages which it prepared would write what they had, not what the address
// shows.
TEST_P(OnEachQueue, MemoryThatIsForgottenMayBeMappedAnew) {
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

TEST_P(OnEachQueue, AnUrgentRequestOvertakes) {
  IoFile file(temporary_file());
  const Bytes large(16 * 1024 * kKiB);
  const Bytes small(4 * kKiB);
  std::vector<std::string> order;
  {
    IoEngine engine(options());
    ASSERT_TRUE(engine.run(request_of(IoKind::kWrite, file, large)).ok());
    IoRequest slow = request_of(IoKind::kWrite, file, large);
    slow.priority = IoPriority::kWriteBehind;
    IoRequest urgent = request_of(IoKind::kRead, file, small);
    ASSERT_TRUE(engine.submit(slow, [&](int) { order.emplace_back("slow"); }).ok());
    ASSERT_TRUE(engine.submit(slow, [&](int) { order.emplace_back("slow"); }).ok());
    ASSERT_TRUE(engine.submit(urgent, [&](int) { order.emplace_back("urgent"); }).ok());
  }
  ASSERT_EQ(order.size(), 3U);
  EXPECT_EQ(order.front(), "urgent");
}

TEST_P(OnEachQueue, AFileThatEndsEarlyIsAnError) {
  IoFile file(temporary_file());
  IoEngine engine(options());
  const Bytes bytes(100 * kKiB);
  ASSERT_TRUE(engine.run(request_of(IoKind::kWrite, file, bytes)).ok());
  const Bytes more(200 * kKiB);
  const Status status = engine.run(request_of(IoKind::kRead, file, more));
  EXPECT_EQ(status.code(), SPW_ERROR_IO);
  EXPECT_NE(status.text().find("read of 204800 bytes at 0"), std::string::npos) << status.text();
}

TEST_P(OnEachQueue, AFullDiskIsAnError) {
  IoFile file(open("/dev/full", O_RDWR | O_CLOEXEC), false);
  IoEngine engine(options());
  const Bytes bytes(300 * kKiB);
  const Status status = engine.run(request_of(IoKind::kWrite, file, bytes));
  EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(status.text().find("No space left on device"), std::string::npos) << status.text();
}

// RLIMIT_FSIZE makes the kernel itself stop in the middle of a write.
TEST_P(OnEachQueue, AShortWriteOfTheKernelGoesOnToItsError) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_DFL);
    const rlimit limit{100 * kKiB, 100 * kKiB};
    setrlimit(RLIMIT_FSIZE, &limit);
    bool is_right = false;
    {
      IoFile file(temporary_file(), false);
      IoEngine engine(options());
      const Status status = engine.run(request_of(IoKind::kWrite, file, Bytes(128 * kKiB)));
      is_right = status.text().find("File too large") != std::string::npos &&
                 engine.counters().short_operations == 1;
    }
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

struct Fault {
  const char* name;
  IoFault fault;
  bool fails_write;
  bool fails_read;
};

// At every operation of a request, every kind of fault, once: the engine gets over it or reports it.
TEST_P(OnEachQueue, EveryFaultAtEveryOperation) {
  const std::vector<Fault> faults = {
      {"interrupted", fails(-EINTR), false, false},
      {"again", fails(-EAGAIN), false, false},
      {"half", stops_short(32 * kKiB), false, false},
      {"a sector", stops_short(512), false, false},
      {"one byte", stops_short(1), false, false},
      {"not direct", fails(-EINVAL), false, false},
      {"error", fails(-EIO), true, false},
      {"full", fails(-ENOSPC), true, false},
      {"quota", fails(-EDQUOT), true, false},
      {"nothing", fails(0), true, false},
      {"gone", fails(-ENODEV), true, false},
  };
  const size_t size = 300 * kKiB;  // five operations
  const Bytes written(size, 1);
  for (const Fault& fault : faults) {
    for (uint64_t at = 0; at < 6; ++at) {
      for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
        SCOPED_TRACE(std::string(fault.name) + " at " + std::to_string(at) +
                     (kind == IoKind::kRead ? " of a read" : " of a write"));
        IoFile file(temporary_file());
        if (!file.is_direct() && std::string(fault.name) == "not direct") continue;
        const Bytes read(size, 2);
        if (kind == IoKind::kRead) {
          ASSERT_TRUE(IoEngine(options()).run(request_of(IoKind::kWrite, file, written)).ok());
        }
        IoEngine engine(options(), [&]() -> Result<std::unique_ptr<IoQueue>> {
          auto queue = queue_of(options());
          if (!queue.ok()) return queue;
          return make_faulty_queue(std::move(queue.value()), [&, at](const IoOperation&, uint64_t index) {
            return index == at ? fault.fault : IoFault();
          });
        });
        const Bytes& bytes = kind == IoKind::kWrite ? written : read;
        const Status status = engine.run(request_of(kind, file, bytes));
        const bool is_reached = at < 5;
        EXPECT_EQ(status.ok(),
                  !is_reached || !(kind == IoKind::kWrite ? fault.fails_write : fault.fails_read))
            << status.text();
        if (!status.ok()) continue;
        IoEngine sound(options());
        ASSERT_TRUE(sound.run(request_of(IoKind::kRead, file, read)).ok());
        EXPECT_TRUE(read == written);
      }
    }
  }
}

TEST_P(OnEachQueue, AReadThatKeepsFailingEndsThroughThePageCache) {
  IoFile file(temporary_file());
  if (!file.is_direct()) GTEST_SKIP() << "the file system has no direct I/O: " << file.buffered_reason();
  const Bytes written(64 * kKiB, 1);
  const Bytes read(64 * kKiB, 2);
  ASSERT_TRUE(IoEngine(options()).run(request_of(IoKind::kWrite, file, written)).ok());
  IoEngine engine(options(), [&]() -> Result<std::unique_ptr<IoQueue>> {
    auto queue = queue_of(options());
    if (!queue.ok()) return queue;
    return make_faulty_queue(std::move(queue.value()), [&](const IoOperation& operation, uint64_t) {
      return operation.file == file.buffered() ? IoFault() : fails(-EIO);
    });
  });
  EXPECT_TRUE(engine.run(request_of(IoKind::kRead, file, read)).ok());
  EXPECT_TRUE(read == written);
  EXPECT_EQ(engine.counters().repeated_operations, 3U);
}

TEST_P(OnEachQueue, WhatShouldPassAndDoesNotIsAnError) {
  for (const IoKind kind : {IoKind::kWrite, IoKind::kRead, IoKind::kSync}) {
    IoFile file(temporary_file());
    IoOptions once = options();
    once.read_retries = 0;
    IoEngine engine(once, [&]() -> Result<std::unique_ptr<IoQueue>> {
      auto queue = queue_of(once);
      if (!queue.ok()) return queue;
      return make_faulty_queue(std::move(queue.value()),
                               [](const IoOperation&, uint64_t) { return fails(-EAGAIN); });
    });
    const Bytes bytes(kind == IoKind::kSync ? 0 : kKiB);
    const Status status = engine.run(request_of(kind, file, bytes));
    EXPECT_EQ(status.code(), SPW_ERROR_IO);
    EXPECT_NE(status.text().find("Resource temporarily unavailable"), std::string::npos) << status.text();
  }
}

// The kernel has no memory for new operations, say, and will not have any.
TEST(IoEngine, ARingThatTakesNothingIsAnError) {
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

TEST(IoEngine, IsNotStartedBeforeItIsUsed) {
  int made = 0;
  {
    const IoEngine engine(IoOptions(), [&]() -> Result<std::unique_ptr<IoQueue>> {
      ++made;
      return make_thread_queue(1, 1, "");
    });
    EXPECT_EQ(engine.description(), "");
  }
  EXPECT_EQ(made, 0);
}

TEST(IoEngine, AQueueThatCannotBeMadeIsAnErrorAndMayBeTriedAgain) {
  IoFile file(temporary_file());
  bool refuses = true;
  IoEngine engine(IoOptions(), [&]() -> Result<std::unique_ptr<IoQueue>> {
    if (refuses) return Status::io("no queue today");
    return make_thread_queue(2, 1, "");
  });
  const Bytes bytes(kKiB);
  EXPECT_EQ(engine.run(request_of(IoKind::kWrite, file, bytes)).text(), "no queue today");
  refuses = false;
  EXPECT_TRUE(engine.run(request_of(IoKind::kWrite, file, bytes)).ok());
}

TEST(IoEngine, AFileThatIsRegisteredIsReachedWithoutItsDescriptor) {
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

TEST_P(OnEachQueue, KnownFilesAndIdlePriority) {
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

TEST(IoEngine, WithoutIoUringThreadsServe) {
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
