// Whatever single operations do, a request ends once: with all its bytes, or with an error that says why not.

#include "offload/io/engine.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <future>
#include <string>
#include <vector>

#include "tests/support/io_faults.h"
#include "tests/support/io_requests.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

class IoEngineTest : public OnEachQueue {};
INSTANTIATE_TEST_SUITE_P(Queues, IoEngineTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "uring" : "threads"; });

// DeepSpeed#1070, #1627, #2006 and #3376, transformers#25816: of what was no multiple of a sector the end was
// not written, nobody looked at how much was, and it was found out when the file was read.
TEST_P(IoEngineTest, WhatWasWrittenIsRead) {
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

TEST_P(IoEngineTest, ManyRequestsAtATime) {
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

TEST_P(IoEngineTest, AnUrgentRequestOvertakes) {
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

TEST_P(IoEngineTest, AnUrgentRequestIsNextBehindWhatIsInFlight) {
  IoFile file(temporary_file());
  const Bytes large(20 * options().block_bytes);
  const Bytes small(4 * kKiB);
  ASSERT_TRUE(IoEngine(options()).run(request_of(IoKind::kWrite, file, small)).ok());
  std::promise<void> begun;
  std::promise<void> goes_on;
  std::vector<IoKind> order;
  {
    IoEngine engine(options(), [&]() -> Result<std::unique_ptr<IoQueue>> {
      auto queue = queue_of(options());
      if (!queue.ok()) return queue;
      return make_faulty_queue(std::move(queue.value()), [&](const IoOperation& operation, uint64_t index) {
        order.push_back(operation.kind);
        if (index == 0) begun.set_value();
        if (index == 0) goes_on.get_future().wait();
        return IoFault();
      });
    });
    IoRequest slow = request_of(IoKind::kWrite, file, large);
    slow.priority = IoPriority::kEvict;
    ASSERT_TRUE(engine.submit(slow, [](int) {}).ok());
    begun.get_future().wait();
    ASSERT_TRUE(engine.submit(request_of(IoKind::kRead, file, small), [](int) {}).ok());
    goes_on.set_value();
  }
  const auto read = std::find(order.begin(), order.end(), IoKind::kRead);
  EXPECT_EQ(read - order.begin(), static_cast<ptrdiff_t>(options().depth));
}

TEST_P(IoEngineTest, AFileThatEndsEarlyIsAnError) {
  IoFile file(temporary_file());
  IoEngine engine(options());
  const Bytes bytes(100 * kKiB);
  ASSERT_TRUE(engine.run(request_of(IoKind::kWrite, file, bytes)).ok());
  const Bytes more(200 * kKiB);
  const Status status = engine.run(request_of(IoKind::kRead, file, more));
  EXPECT_EQ(status.code(), SPW_ERROR_IO);
  EXPECT_NE(status.text().find("read of 204800 bytes at 0"), std::string::npos) << status.text();
}

TEST_P(IoEngineTest, AFullDiskIsAnError) {
  IoFile file(open("/dev/full", O_RDWR | O_CLOEXEC), false);
  IoEngine engine(options());
  const Bytes bytes(300 * kKiB);
  const Status status = engine.run(request_of(IoKind::kWrite, file, bytes));
  EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(status.text().find("No space left on device"), std::string::npos) << status.text();
}

// RLIMIT_FSIZE makes the kernel itself stop in the middle of a write.
TEST_P(IoEngineTest, AShortWriteOfTheKernelGoesOnToItsError) {
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
TEST_P(IoEngineTest, EveryFaultAtEveryOperation) {
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

TEST_P(IoEngineTest, AReadThatKeepsFailingEndsThroughThePageCache) {
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

TEST_P(IoEngineTest, WhatShouldPassAndDoesNotIsAnError) {
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

}  // namespace
}  // namespace spillway::test
