// The guard: every kind of damage is planted with a real write on the device, and reported exactly once, with
// the right offset; a program without mistakes is never accused.
#include "allocator/guard.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr uint64_t kQuarantineBytes = 8 * kMiB;

uint64_t va_of(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

class Guarded {
 public:
  explicit Guarded(const std::string& configuration = "capacity:1GiB", const ArenaOptions& options = {},
                   uint64_t quarantine_bytes = kQuarantineBytes)
      : device(configuration),
        arena(device.arena(options)),
        guard(device.driver, *arena, quarantine_bytes, [this](const std::string& text) {
          const std::lock_guard lock(mutex_);
          reports.push_back(text);
        }) {}

  void* allocate(size_t bytes, CUstream stream) {
    void* pointer = nullptr;
    const Status status = guard.allocate(bytes, stream, __builtin_return_address(0), &pointer);
    EXPECT_TRUE(status.ok()) << status.text();
    return pointer;
  }
  Status free(void* pointer) { return guard.free(pointer, __builtin_return_address(0)); }

  // Writes what a kernel of the program that runs on `stream` would write.
  void write(uint64_t va, const std::vector<uint8_t>& bytes, CUstream stream) const {
    ASSERT_EQ(device.driver->cuMemcpyHtoDAsync(va, bytes.data(), bytes.size(), stream), CUDA_SUCCESS);
  }
  std::vector<uint8_t> read(uint64_t va, size_t bytes, CUstream stream) const {
    std::vector<uint8_t> out(bytes);
    EXPECT_EQ(device.driver->cuMemcpyDtoHAsync(out.data(), va, bytes, stream), CUDA_SUCCESS);
    EXPECT_EQ(device.driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
    return out;
  }
  void expect_one_report(const std::string& first_line) {
    SPW_EXPECT_OK(guard.check());
    SPW_EXPECT_OK(guard.check());
    ASSERT_EQ(reports.size(), 1u) << first_line;
    EXPECT_THAT(reports[0], StartsWith("spillway: guard: " + first_line));
    EXPECT_EQ(guard.findings(), 1u);
  }

  Device device;
  std::unique_ptr<Arena> arena;
  std::vector<std::string> reports;
  Guard guard;

 private:
  std::mutex mutex_;
};

const size_t kSizes[] = {1, 511, 512, 513, 700, 15 * 1024, 16384, 40000, 3 * kMiB + 5};

TEST(Guard, BlocksAreAlignedAndSayThatTheyWereNeverWritten) {
  Guarded guarded;
  CUstream stream = guarded.device.stream();
  int64_t requested = 0;
  for (const size_t bytes : kSizes) {
    void* block = guarded.allocate(bytes, stream);
    EXPECT_EQ(va_of(block) % kQuantumBytes, 0u);
    EXPECT_EQ(guarded.read(va_of(block), bytes, stream), std::vector<uint8_t>(bytes, kFreshPattern));
    requested += static_cast<int64_t>(bytes);
  }
  EXPECT_EQ(guarded.arena->stats().requested_bytes.all.current, requested);
  SPW_EXPECT_OK(guarded.arena->validate());
  SPW_EXPECT_OK(guarded.guard.check());
  EXPECT_THAT(guarded.reports, IsEmpty());
}

TEST(Guard, SizeZeroIsNullAndNullCanBeFreed) {
  Guarded guarded;
  EXPECT_EQ(guarded.allocate(0, nullptr), nullptr);
  SPW_EXPECT_OK(guarded.free(nullptr));
  void* block = nullptr;
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 600, size_t{1} << 40, (size_t{1} << 40) + 1}) {
    EXPECT_EQ(guarded.guard.allocate(bytes, nullptr, nullptr, &block).code(), SPW_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(block, nullptr);
  }
}

TEST(Guard, AWriteAfterTheEndIsReportedOnce) {
  for (const size_t bytes : kSizes) {
    for (const size_t beyond : {size_t{0}, size_t{3}, size_t{500}}) {
      Guarded guarded;
      CUstream stream = guarded.device.stream();
      void* block = guarded.allocate(bytes, stream);
      guarded.write(va_of(block) + bytes + beyond, {0x5a, 0x5b, 0xfb, 0x5c}, stream);
      guarded.expect_one_report(fmt::format(
          "write of 3 bytes after the end of block {:#x} of {} byte{}: first at offset {}, found 0x5a, "
          "expected 0xfb\n  offsets {} to {}; from the first on: 5a 5b fb 5c",
          va_of(block), bytes, bytes == 1 ? "" : "s", bytes + beyond, bytes + beyond, bytes + beyond + 3));
      EXPECT_THAT(guarded.reports[0], HasSubstr("it is live"));
      EXPECT_THAT(guarded.reports[0], HasSubstr("  allocated: step 1, thread "));
      EXPECT_THAT(guarded.reports[0], Not(HasSubstr("freed: step")));
      SPW_EXPECT_OK(guarded.free(block));
      SPW_EXPECT_OK(guarded.guard.trim());
      EXPECT_EQ(guarded.reports.size(), 1u);
    }
  }
}

TEST(Guard, AWriteBeforeTheBeginningIsReportedOnce) {
  for (const size_t bytes : kSizes) {
    Guarded guarded;
    CUstream stream = guarded.device.stream();
    void* block = guarded.allocate(bytes, stream);
    guarded.write(va_of(block) - 12, {1, 2, 3, 4}, stream);
    guarded.expect_one_report(
        fmt::format("write of 4 bytes before the beginning of block {:#x} of {} byte{}: first at offset -12, "
                    "found 0x01, expected 0xfb\n  offsets -12 to -9;",
                    va_of(block), bytes, bytes == 1 ? "" : "s"));
  }
}

TEST(Guard, AWriteAfterTheFreeIsReportedOnce) {
  for (const size_t bytes : kSizes) {
    Guarded guarded;
    CUstream stream = guarded.device.stream();
    void* block = guarded.allocate(bytes, stream);
    guarded.write(va_of(block), std::vector<uint8_t>(bytes, 7), stream);
    SPW_EXPECT_OK(guarded.free(block));
    EXPECT_EQ(guarded.read(va_of(block), bytes, stream), std::vector<uint8_t>(bytes, kFreedPattern));
    guarded.write(va_of(block) + bytes - 1, {9}, stream);
    guarded.expect_one_report(
        fmt::format("write of 1 byte into block {:#x} of {} byte{} after its free: first at offset {}, found "
                    "0x09, expected 0xdd",
                    va_of(block), bytes, bytes == 1 ? "" : "s", bytes - 1));
    EXPECT_THAT(guarded.reports[0], HasSubstr("it lies in quarantine"));
    EXPECT_THAT(guarded.reports[0], HasSubstr("  allocated: step 1, thread "));
    EXPECT_THAT(guarded.reports[0], HasSubstr("  freed: step 2, thread "));
  }
}

TEST(Guard, EachKindOfDamageOfABlockIsReported) {
  Guarded guarded;
  CUstream stream = guarded.device.stream();
  void* block = guarded.allocate(5 * kMiB, stream);
  SPW_EXPECT_OK(guarded.free(block));
  guarded.write(va_of(block) - 1, {1, 1}, stream);
  guarded.write(va_of(block) + 5 * kMiB - 1, {1, 1}, stream);
  SPW_EXPECT_OK(guarded.guard.trim());  // found on the way out of the quarantine
  ASSERT_EQ(guarded.reports.size(), 3u);
  EXPECT_THAT(guarded.reports[0], HasSubstr("write of 1 byte before the beginning"));
  EXPECT_THAT(guarded.reports[1], HasSubstr("write of 2 bytes into block"));
  EXPECT_THAT(guarded.reports[2], HasSubstr("write of 1 byte after the end"));
  EXPECT_EQ(guarded.guard.findings(), 3u);
}

TEST(Guard, FreesThatAreWrongAreRefusedWithTheBlocksHistory) {
  Guarded guarded;
  CUstream stream = guarded.device.stream();
  void* small = guarded.allocate(100, stream);
  void* large = guarded.allocate(3 * kMiB, stream);
  const auto free_at = [&](uint64_t va) { return guarded.free(reinterpret_cast<void*>(va)); };

  for (void* block : {small, large}) {
    for (const int64_t offset : {int64_t{-512}, int64_t{-1}, int64_t{1}, int64_t{512}}) {
      const Status status = free_at(va_of(block) + static_cast<uint64_t>(offset));
      EXPECT_EQ(status.code(), SPW_ERROR_INVALID_POINTER);
      EXPECT_THAT(status.text(), HasSubstr(fmt::format("begins at {:#x} and is live", va_of(block))));
    }
  }
  ASSERT_EQ(guarded.reports.size(), 2u);
  EXPECT_THAT(guarded.reports[1],
              StartsWith(fmt::format("spillway: guard: free of {:#x}, at offset -512 of block {:#x}",
                                     va_of(large) - 512, va_of(large))));
  EXPECT_THAT(guarded.reports[1], HasSubstr("  this free: step "));

  SPW_EXPECT_OK(guarded.free(large));
  for (int i = 0; i < 2; ++i) {
    const Status status = guarded.free(large);
    EXPECT_EQ(status.code(), SPW_ERROR_INVALID_POINTER);
    EXPECT_THAT(status.text(), HasSubstr("was freed before, at step 11, and lies in quarantine"));
  }
  ASSERT_EQ(guarded.reports.size(), 3u);
  EXPECT_THAT(guarded.reports[2],
              StartsWith(fmt::format("spillway: guard: second free of block {:#x} of 3145728 bytes\n",
                                     va_of(large))));

  SPW_EXPECT_OK(guarded.free(small));
  SPW_EXPECT_OK(guarded.guard.trim());
  EXPECT_FALSE(guarded.guard.holds(small));
  EXPECT_TRUE(guarded.guard.remembers(small));
  EXPECT_THAT(guarded.free(small).text(), HasSubstr("has left the quarantine"));
  EXPECT_EQ(guarded.reports.size(), 4u);

  EXPECT_EQ(free_at(0x1000).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(free_at(~uint64_t{0}).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(guarded.guard.record_stream(small, stream).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(guarded.reports.size(), 4u);
  EXPECT_EQ(guarded.guard.findings(), 4u);
}

TEST(Guard, FreedBlocksCountAsPendingUntilTheyLeaveTheQuarantine) {
  Guarded guarded;
  CUstream stream = guarded.device.stream();
  void* large = guarded.allocate(3 * kMiB, stream);
  void* small = guarded.allocate(100, stream);
  SPW_EXPECT_OK(guarded.free(large));
  SPW_EXPECT_OK(guarded.free(small));
  DeviceStats stats = guarded.arena->stats();
  EXPECT_EQ(stats.allocation.all.current, 0);
  EXPECT_EQ(stats.allocated_bytes.all.current, 0);
  EXPECT_EQ(stats.pending_blocks, 2);
  EXPECT_EQ(stats.pending_bytes, stats.active_bytes.all.current);
  SPW_EXPECT_OK(guarded.arena->validate());
  EXPECT_NE(guarded.allocate(3 * kMiB, stream), large);
  SPW_EXPECT_OK(guarded.guard.trim());
  stats = guarded.arena->stats();
  EXPECT_EQ(stats.pending_blocks, 0);
  EXPECT_EQ(stats.active.all.current, 1);
  SPW_EXPECT_OK(guarded.arena->validate());
}

TEST(Guard, QuarantineGivesWayBeforeMemoryRunsOut) {
  ArenaOptions options;
  options.limit_bytes = 64 * kMiB;
  Guarded guarded("capacity:1GiB", options, 60 * kMiB);
  CUstream stream = guarded.device.stream();
  void* first = guarded.allocate(40 * kMiB, stream);
  SPW_EXPECT_OK(guarded.free(first));
  EXPECT_GT(guarded.guard.quarantined_bytes(), 40 * kMiB);
  void* second = guarded.allocate(50 * kMiB, stream);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(guarded.guard.quarantined_bytes(), 0u);
  EXPECT_EQ(guarded.arena->stats().num_ooms, 0);
  EXPECT_EQ(guarded.arena->stats().rungs.callback.hits, 1);
  void* third = nullptr;
  EXPECT_EQ(guarded.guard.allocate(50 * kMiB, stream, nullptr, &third).code(), SPW_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(guarded.free(second));
  SPW_EXPECT_OK(guarded.arena->validate());
}

TEST(Guard, ABlockLargerThanTheQuarantineIsCheckedAtItsFree) {
  Guarded guarded;
  CUstream stream = guarded.device.stream();
  void* block = guarded.allocate(2 * kQuarantineBytes, stream);
  guarded.write(va_of(block) + 2 * kQuarantineBytes, {1}, stream);
  SPW_EXPECT_OK(guarded.free(block));
  ASSERT_EQ(guarded.reports.size(), 1u);
  EXPECT_THAT(guarded.reports[0], HasSubstr("write of 1 byte after the end"));
  EXPECT_EQ(guarded.guard.quarantined_bytes(), 0u);
  EXPECT_EQ(guarded.arena->stats().active.all.current, 0);
}

TEST(Guard, FreesDoNotMakeTheHostWait) {
  Guarded guarded("capacity:1GiB,completion:run-ahead");
  if (!guarded.device.simulated()) GTEST_SKIP() << "host waits are counted by the simulated driver";
  CUstream stream = guarded.device.stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 7; ++i) blocks.push_back(guarded.allocate(kMiB, stream));
  for (void* block : blocks) SPW_EXPECT_OK(guarded.free(block));
  EXPECT_EQ(guarded.device.host_waits(), 0u);
  EXPECT_EQ(guarded.device.reports(), "");
}

TEST(Guard, UsesByRecordedStreamsAreOver) {
  Guarded guarded("capacity:1GiB,completion:late,seed:3");
  CUstream stream = guarded.device.stream();
  CUstream other = guarded.device.stream();
  for (const size_t bytes : {size_t{100}, 2 * kMiB}) {
    void* block = guarded.allocate(bytes, stream);
    CUevent ready = nullptr;
    guarded.device.driver->cuEventCreate(&ready, CU_EVENT_DISABLE_TIMING);
    guarded.device.driver->cuEventRecord(ready, stream);
    guarded.device.driver->cuStreamWaitEvent(other, ready, 0);
    guarded.device.driver->cuEventDestroy(ready);
    SPW_EXPECT_OK(guarded.guard.record_stream(block, other));
    for (int i = 0; i < 20; ++i) guarded.device.touch(other, block, bytes);
    SPW_EXPECT_OK(guarded.free(block));
    SPW_EXPECT_OK(guarded.guard.check());
    SPW_EXPECT_OK(guarded.guard.trim());
  }
  EXPECT_THAT(guarded.reports, IsEmpty());
  EXPECT_EQ(guarded.device.reports(), "");
  EXPECT_EQ(guarded.arena->stats().reserved_bytes.all.current, 0);
}

// Nothing that was enqueued on the stream that goes has run when the next one, often by the same handle, is
// in use: what is read or filled in the order of that one comes too early.
TEST(Guard, BlocksOfStreamsThatGoAreNotAccused) {
  Guarded guarded("capacity:1GiB,completion:run-ahead");
  CUstream gone = guarded.device.stream();
  void* live = guarded.allocate(kMiB, gone);
  std::vector<void*> freed;
  for (int i = 0; i < 3; ++i) freed.push_back(guarded.allocate(kMiB, gone));
  const auto write_all = [&](void* block) {
    guarded.write(va_of(block), std::vector<uint8_t>(kMiB, 1), gone);
  };
  write_all(live);
  for (void* block : freed) {
    write_all(block);
    SPW_EXPECT_OK(guarded.free(block));
  }
  guarded.guard.stream_destroyed(gone);
  SPW_EXPECT_OK(guarded.arena->stream_destroyed(gone));
  guarded.device.destroy(gone);
  CUstream next = guarded.device.stream();
  SPW_EXPECT_OK(guarded.free(live));
  // Fills the quarantine.
  for (int i = 0; i < 20; ++i) SPW_EXPECT_OK(guarded.free(guarded.allocate(kMiB, next)));
  SPW_EXPECT_OK(guarded.guard.check());
  SPW_EXPECT_OK(guarded.guard.trim());
  EXPECT_THAT(guarded.reports, IsEmpty());
  EXPECT_EQ(guarded.device.reports(), "");
  EXPECT_EQ(guarded.arena->stats().reserved_bytes.all.current, 0);
}

TEST(Guard, AUseOnAStreamThatIsGoneDoesNotMakeAFreeWaitForAnother) {
  Guarded guarded("capacity:1GiB,completion:run-ahead");
  CUstream owner = guarded.device.stream();
  CUstream gone = guarded.device.stream();
  void* block = guarded.allocate(kMiB, owner);
  guarded.device.order(owner, gone);
  guarded.write(va_of(block), std::vector<uint8_t>(kMiB, 1), gone);
  SPW_EXPECT_OK(guarded.guard.record_stream(block, gone));
  guarded.guard.stream_destroyed(gone);
  SPW_EXPECT_OK(guarded.arena->stream_destroyed(gone));
  guarded.device.destroy(gone);
  guarded.device.stream();
  SPW_EXPECT_OK(guarded.free(block));
  for (int i = 0; i < 20; ++i) SPW_EXPECT_OK(guarded.free(guarded.allocate(kMiB, owner)));
  SPW_EXPECT_OK(guarded.guard.check());
  EXPECT_THAT(guarded.reports, IsEmpty());
  EXPECT_EQ(guarded.device.reports(), "");
}

TEST(Guard, AWriteAfterTheFreeIsSeenThoughItsStreamIsGone) {
  Guarded guarded("capacity:1GiB,completion:run-ahead");
  CUstream gone = guarded.device.stream();
  void* block = guarded.allocate(kMiB, gone);
  SPW_EXPECT_OK(guarded.free(block));
  guarded.write(va_of(block) + 5, {1, 2}, gone);
  guarded.guard.stream_destroyed(gone);
  SPW_EXPECT_OK(guarded.arena->stream_destroyed(gone));
  guarded.device.destroy(gone);
  CUstream next = guarded.device.stream();
  for (int i = 0; i < 20; ++i) SPW_EXPECT_OK(guarded.free(guarded.allocate(kMiB, next)));
  EXPECT_EQ(guarded.guard.findings(), 1u);
}

TEST(Guard, UnderCaptureNothingIsFilledAndNoCaptureIsDisturbed) {
  Guarded guarded;
  CUstream capturing = guarded.device.stream();
  CUstream other = guarded.device.stream();
  void* before = guarded.allocate(1000, capturing);
  SPW_EXPECT_OK(guarded.free(guarded.allocate(kMiB, capturing)));
  SPW_EXPECT_OK(guarded.arena->begin_pool({1, 1}, [=](CUstream stream) { return stream == capturing; }));
  guarded.device.begin_capture(capturing);
  void* inside = guarded.allocate(kMiB, capturing);
  void* left = guarded.allocate(3000, capturing);
  guarded.device.touch(capturing, inside, kMiB);
  SPW_EXPECT_OK(guarded.free(inside));
  EXPECT_EQ(guarded.free(inside).code(), SPW_ERROR_INVALID_POINTER);
  SPW_EXPECT_OK(guarded.free(before));
  // Enough on another stream for the quarantine to be drained meanwhile.
  for (int i = 0; i < 20; ++i) SPW_EXPECT_OK(guarded.free(guarded.allocate(kMiB, other)));
  EXPECT_LE(guarded.guard.quarantined_bytes(), kQuarantineBytes);
  EXPECT_EQ(guarded.guard.check().code(), SPW_ERROR_INVALID_STATE);
  guarded.device.discard_capture(capturing);
  SPW_EXPECT_OK(guarded.arena->end_pool({1, 1}));
  // As a replay would.
  guarded.device.touch(capturing, inside, kMiB);
  SPW_EXPECT_OK(guarded.free(left));
  SPW_EXPECT_OK(guarded.guard.check());
  SPW_EXPECT_OK(guarded.arena->release_pool({1, 1}));
  ASSERT_EQ(guarded.reports.size(), 1u);
  EXPECT_THAT(guarded.reports[0], HasSubstr("second free"));
  EXPECT_THAT(guarded.reports[0], HasSubstr("it has no red zones"));
  EXPECT_EQ(guarded.device.reports(), "");
}

TEST(Guard, PerThreadDefaultStreamsAreCheckedByTheirThread) {
  Guarded guarded;
  void* own = guarded.allocate(1000, CU_STREAM_PER_THREAD);
  void* others = guarded.allocate(1000, CU_STREAM_PER_THREAD);
  SPW_EXPECT_OK(guarded.free(own));
  guarded.write(va_of(own), {1}, CU_STREAM_PER_THREAD);
  guarded.device.driver->cuStreamSynchronize(CU_STREAM_PER_THREAD);
  std::thread([&] {
    guarded.device.driver->cuCtxSetCurrent(guarded.device.context);
    SPW_EXPECT_OK(guarded.free(others));
    SPW_EXPECT_OK(guarded.guard.trim());
  }).join();
  ASSERT_EQ(guarded.reports.size(), 1u);
  EXPECT_THAT(guarded.reports[0], HasSubstr("write of 1 byte into block"));
  EXPECT_EQ(guarded.arena->stats().active.all.current, 0);
}

// A program without mistakes: blocks are used to their last byte, on their own stream and on recorded ones.
class CleanProgram {
 public:
  CleanProgram(Guarded& guarded, uint32_t seed, int streams) : guarded_(guarded), random_(seed) {
    for (int i = 0; i < streams; ++i) streams_.push_back(guarded.device.stream());
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (live_.size() < 20 || (live_.size() < 200 && random_() % 2 == 0)) {
        const size_t bytes =
            random_() % 100 == 0 ? 1 + random_() % (2 * kMiB) : 1 + random_() % (20 * size_t{1024});
        CUstream stream = streams_[random_() % streams_.size()];
        void* block = guarded_.allocate(bytes, stream);
        ASSERT_NE(block, nullptr);
        guarded_.device.touch(stream, block, bytes);
        live_.push_back({block, bytes, stream});
      } else {
        const size_t at = random_() % live_.size();
        const Block block = live_[at];
        live_[at] = live_.back();
        live_.pop_back();
        if (random_() % 8 == 0) use_elsewhere(block);
        SPW_EXPECT_OK(guarded_.free(block.pointer));
      }
      ASSERT_LE(guarded_.guard.quarantined_bytes(), kQuarantineBytes);
      if (testing::Test::HasFailure()) return;
    }
  }
  void free_all() {
    for (const Block& block : live_) SPW_EXPECT_OK(guarded_.free(block.pointer));
    live_.clear();
  }

 private:
  struct Block {
    void* pointer;
    size_t bytes;
    CUstream stream;
  };

  void use_elsewhere(const Block& block) {
    CUstream other = streams_[random_() % streams_.size()];
    CUevent ready = nullptr;
    guarded_.device.driver->cuEventCreate(&ready, CU_EVENT_DISABLE_TIMING);
    guarded_.device.driver->cuEventRecord(ready, block.stream);
    guarded_.device.driver->cuStreamWaitEvent(other, ready, 0);
    guarded_.device.driver->cuEventDestroy(ready);
    SPW_EXPECT_OK(guarded_.guard.record_stream(block.pointer, other));
    guarded_.device.touch(other, block.pointer, block.bytes);
  }

  Guarded& guarded_;
  std::mt19937 random_;
  std::vector<CUstream> streams_;
  std::vector<Block> live_;
};

TEST(Guard, ACleanProgramIsNotAccused) {
  Guarded guarded("capacity:1GiB,completion:late,seed:5");
  CleanProgram program(guarded, 5, 3);
  program.run(100'000);
  program.free_all();
  SPW_EXPECT_OK(guarded.guard.check());
  SPW_EXPECT_OK(guarded.arena->validate());
  SPW_EXPECT_OK(guarded.guard.trim());
  EXPECT_THAT(guarded.reports, IsEmpty());
  EXPECT_EQ(guarded.device.reports(), "");
  EXPECT_EQ(guarded.arena->stats().requested_bytes.all.current, 0);
  EXPECT_EQ(guarded.arena->stats().reserved_bytes.all.current, 0);
}

TEST(Guard, ThreadsShareAGuard) {
  Guarded guarded;
  std::vector<std::unique_ptr<CleanProgram>> programs;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 3; ++i) programs.push_back(std::make_unique<CleanProgram>(guarded, i, 2));
  for (auto& program : programs) {
    threads.emplace_back([&] {
      guarded.device.driver->cuCtxSetCurrent(guarded.device.context);
      program->run(3000);
      SPW_EXPECT_OK(guarded.guard.check());
      program->free_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  SPW_EXPECT_OK(guarded.guard.trim());
  EXPECT_THAT(guarded.reports, IsEmpty());
  EXPECT_EQ(guarded.arena->stats().reserved_bytes.all.current, 0);
}

TEST(Guard, ADriverThatFailsCostsChecksAndNothingElse) {
  constexpr const char* kCalls[] = {"cuMemsetD8Async",     "cuMemcpyDtoHAsync", "cuEventRecord",
                                    "cuStreamWaitEvent",   "cuMemHostAlloc",    "cuStreamCreate",
                                    "cuStreamSynchronize", "cuEventCreate",     "cuStreamIsCapturing"};
  for (const char* call : kCalls) {
    for (uint64_t nth = 1; nth <= 12; ++nth) {
      SCOPED_TRACE(fmt::format("{} {}", call, nth));
      Guarded guarded("capacity:1GiB,completion:late");
      if (!guarded.device.simulated()) GTEST_SKIP() << "faults are injected into the simulated driver";
      CleanProgram program(guarded, 1, 2);
      guarded.device.inject_fault(call, nth, CUDA_ERROR_INVALID_VALUE);
      std::vector<void*> blocks;
      CUstream stream = guarded.device.stream();
      for (int i = 0; i < 4; ++i) {
        void* block = guarded.allocate(3 * kMiB, stream);
        SPW_EXPECT_OK(guarded.guard.record_stream(block, nullptr));
        SPW_EXPECT_OK(guarded.free(block));
      }
      (void)guarded.guard.check();
      guarded.device.clear_faults();
      SPW_EXPECT_OK(guarded.guard.check());
      SPW_EXPECT_OK(guarded.guard.trim());
      EXPECT_THAT(guarded.reports, IsEmpty());
      EXPECT_EQ(guarded.arena->stats().active.all.current, 0);
      SPW_EXPECT_OK(guarded.arena->validate());
    }
  }
}

}  // namespace
}  // namespace spillway::test
