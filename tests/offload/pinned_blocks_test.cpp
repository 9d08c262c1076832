// Pinned blocks and the streams that use them: memory serves again when, and only when, they are done. The
// simulated device runs everything as late as it may, and reports reuse that was not ordered.
#include "offload/pinned_blocks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/bytes.h"
#include "tests/support/device.h"
#include "tests/support/forked.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

const char* const kRunAhead = "capacity:256MiB,completion:run-ahead";

class Pinned {
 public:
  explicit Pinned(const char* configuration = kRunAhead, uint64_t most_bytes = UINT64_MAX)
      : device(configuration), blocks(device.driver, {most_bytes, nullptr}) {
    EXPECT_EQ(device.driver->cuMemAlloc(&target, 16 * kMiB), CUDA_SUCCESS);
  }
  ~Pinned() { device.driver->cuMemFree(target); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  char* must_allocate(uint64_t bytes) {
    void* block = nullptr;
    SPW_EXPECT_OK(blocks.allocate(bytes, 0, &block));
    return static_cast<char*>(block);
  }
  // A copy to the device that the block is recorded for.
  void copy(const char* block, uint64_t bytes, CUstream stream, uint64_t offset = 0) {
    EXPECT_EQ(device.driver->cuMemcpyHtoDAsync(target + offset, block, bytes, stream), CUDA_SUCCESS);
    SPW_EXPECT_OK(blocks.record_stream(block, 0, stream));
  }

  Device device;
  PinnedBlocks blocks;
  CUdeviceptr target = 0;
};

TEST(PinnedBlocks, MemoryServesAgainWhenItsStreamsAreDone) {
  Pinned pinned;
  const CUstream stream = pinned.device.stream();
  char* first = pinned.must_allocate(4 * kMiB);
  pinned.copy(first, 4 * kMiB, stream);
  SPW_EXPECT_OK(pinned.blocks.free(first));
  EXPECT_EQ(pinned.blocks.stats().blocks.current, 1);
  char* second = pinned.must_allocate(4 * kMiB);
  EXPECT_NE(second, first);
  EXPECT_EQ(pinned.device.driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(pinned.must_allocate(4 * kMiB), first);
  // What no stream used serves at once.
  SPW_EXPECT_OK(pinned.blocks.free(second));
  EXPECT_EQ(pinned.must_allocate(4 * kMiB), second);
  EXPECT_EQ(pinned.blocks.stats().blocks.current, 2);
}

TEST(PinnedBlocks, EveryStreamCounts) {
  Pinned pinned;
  const std::array<CUstream, 2> streams{pinned.device.stream(), pinned.device.stream()};
  char* block = pinned.must_allocate(4 * kMiB);
  for (const CUstream stream : streams) pinned.copy(block, 4 * kMiB, stream);
  SPW_EXPECT_OK(pinned.blocks.record_stream(block + kMiB, 0, streams[0]));  // again, and from inside
  SPW_EXPECT_OK(pinned.blocks.free(block));
  EXPECT_EQ(pinned.device.driver->cuStreamSynchronize(streams[0]), CUDA_SUCCESS);
  EXPECT_NE(pinned.must_allocate(4 * kMiB), block);
  EXPECT_EQ(pinned.device.driver->cuStreamSynchronize(streams[1]), CUDA_SUCCESS);
  EXPECT_EQ(pinned.must_allocate(4 * kMiB), block);
}

TEST(PinnedBlocks, AtTheLimitFreedBlocksAreWaitedFor) {
  Pinned pinned(kRunAhead, 8 * kMiB);
  const CUstream stream = pinned.device.stream();
  char* block = pinned.must_allocate(8 * kMiB);
  pinned.copy(block, 8 * kMiB, stream);
  SPW_EXPECT_OK(pinned.blocks.free(block));
  EXPECT_EQ(pinned.must_allocate(8 * kMiB), block);
  void* none = nullptr;
  EXPECT_EQ(pinned.blocks.allocate(kMiB, 0, &none).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(none, nullptr);
}

TEST(PinnedBlocks, ABlockFreedUnderCaptureBelongsToTheGraph) {
  Pinned pinned;
  const CUstream stream = pinned.device.stream();
  char* block = pinned.must_allocate(4 * kMiB);
  pinned.device.begin_capture(stream);
  pinned.copy(block, 4 * kMiB, stream);
  SPW_EXPECT_OK(pinned.blocks.free(block));
  char* meanwhile = pinned.must_allocate(4 * kMiB);  // pins, and ends no capture
  pinned.device.discard_capture(stream);
  SPW_EXPECT_OK(pinned.blocks.free(meanwhile));
  pinned.blocks.trim();
  EXPECT_EQ(pinned.blocks.stats().reserved_bytes.current, static_cast<int64_t>(4 * kMiB));
  EXPECT_NE(pinned.must_allocate(4 * kMiB), block);
}

TEST(PinnedBlocks, MistakesChangeNothing) {
  Pinned pinned;
  char* block = pinned.must_allocate(1000);
  void* out = block;
  SPW_EXPECT_OK(pinned.blocks.allocate(0, 0, &out));
  EXPECT_EQ(out, nullptr);
  SPW_EXPECT_OK(pinned.blocks.free(nullptr));
  EXPECT_EQ(pinned.blocks.allocate(1000, 7, &out).code(), SPW_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(pinned.blocks.free(block + 1).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(pinned.blocks.record_stream(block + 1000, 0, nullptr).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(pinned.blocks.record_stream(block, 7, nullptr).code(), SPW_ERROR_INVALID_ARGUMENT);
  SPW_EXPECT_OK(pinned.blocks.free(block));
  EXPECT_EQ(pinned.blocks.free(block).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(pinned.blocks.record_stream(block, 0, nullptr).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(pinned.blocks.stats().blocks.allocated, 1);
}

TEST(PinnedBlocks, CountersStartAgain) {
  Pinned pinned;
  SPW_EXPECT_OK(pinned.blocks.free(pinned.must_allocate(700)));
  spw_pinned_stats stats = pinned.blocks.stats();
  EXPECT_EQ(stats.requested_bytes.peak, 700);
  EXPECT_EQ(stats.active_bytes.peak, 1024);
  EXPECT_EQ(stats.chunks_by_size[21], 1);
  EXPECT_EQ(stats.pin.count, 1);
  pinned.blocks.reset_peaks();
  pinned.blocks.reset_accumulated();
  stats = pinned.blocks.stats();
  EXPECT_EQ(stats.requested_bytes.peak, 0);
  EXPECT_EQ(stats.active_bytes.allocated, 0);
  EXPECT_EQ(stats.reserved_bytes.current, static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(stats.reserved_bytes.peak, static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(stats.chunks_by_size[21], 0);
}

TEST(PinnedBlocks, AStreamThatCannotBeMarkedIsWaitedForByATrim) {
  Pinned pinned;
  if (!pinned.device.simulated()) GTEST_SKIP() << "faults are injected by the simulated driver";
  const CUstream stream = pinned.device.stream();
  char* block = pinned.must_allocate(4 * kMiB);
  pinned.copy(block, 4 * kMiB, stream);
  pinned.device.inject_fault("cuEventRecord", 1, CUDA_ERROR_INVALID_HANDLE);
  SPW_EXPECT_OK(pinned.blocks.free(block));
  EXPECT_EQ(pinned.device.driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_NE(pinned.must_allocate(4 * kMiB), block);
  pinned.blocks.trim();
  EXPECT_EQ(pinned.blocks.stats().blocks.current, 1);
  EXPECT_EQ(pinned.device.reports(), "");
}

// Regions and stashes take from the arena, and have no block here. Whoever trims need not use a device.
TEST(PinnedBlocks, ATrimGivesBackWhatOthersHadOfTheArena) {
  Pinned pinned(kRunAhead, 8 * kMiB);
  PinnedArena& arena = pinned.blocks.arena();
  Result<void*> slot = arena.allocate(6 * kMiB);
  ASSERT_TRUE(slot.ok()) << slot.status().text();
  Result<void*> kept = arena.allocate(2 * kMiB);
  ASSERT_TRUE(kept.ok()) << kept.status().text();
  arena.give_back(slot.value(), 6 * kMiB);
  std::thread([&] { pinned.blocks.trim(); }).join();
  EXPECT_EQ(arena.reserved_bytes(), 2 * kMiB);
  EXPECT_EQ(pinned.blocks.stats().unpin.count, 1);
  arena.give_back(kept.value(), 2 * kMiB);
  std::thread([&] { pinned.blocks.trim(); }).join();
  EXPECT_EQ(arena.reserved_bytes(), 0u);
  EXPECT_EQ(pinned.device.reports(), "");
}

TEST(PinnedBlocks, ATrimForgetsThatAPinWasRefused) {
  Pinned pinned;
  if (!pinned.device.simulated()) GTEST_SKIP() << "faults are injected by the simulated driver";
  PinnedArena& arena = pinned.blocks.arena();
  Result<void*> kept = arena.allocate(2 * kMiB);
  ASSERT_TRUE(kept.ok()) << kept.status().text();
  pinned.device.inject_fault("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(arena.allocate(4 * kMiB).ok());
  EXPECT_EQ(arena.most_bytes(), 2 * kMiB);
  pinned.blocks.trim();
  EXPECT_EQ(arena.most_bytes(), UINT64_MAX);
  arena.give_back(kept.value(), 2 * kMiB);
}

TEST(PinnedBlocks, ThreadsShareThem) {
  Pinned pinned("capacity:256MiB,completion:late", 32 * kMiB);
  constexpr size_t kThreads = 4;
  std::vector<CUstream> streams;
  for (size_t t = 0; t < kThreads; ++t) streams.push_back(pinned.device.stream());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      EXPECT_EQ(pinned.device.driver->cuCtxSetCurrent(pinned.device.context), CUDA_SUCCESS);
      std::mt19937_64 random(t);
      for (int step = 0; step < 100; ++step) {
        void* block = nullptr;
        const uint64_t bytes = 1 + random() % (2 * kMiB);
        if (!pinned.blocks.allocate(bytes, 0, &block).ok()) continue;
        std::memset(block, static_cast<int>(t), bytes);
        pinned.copy(static_cast<const char*>(block), std::min(bytes, uint64_t{4096}), streams[t], t * kMiB);
        EXPECT_EQ(static_cast<unsigned char*>(block)[bytes - 1], t);
        SPW_EXPECT_OK(pinned.blocks.free(block));
        if (step % 20 == 0) pinned.blocks.trim();
        (void)pinned.blocks.stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pinned.device.driver->cuCtxSynchronize(), CUDA_SUCCESS);
  pinned.blocks.trim();
  EXPECT_EQ(pinned.blocks.stats().reserved_bytes.current, 0);
  SPW_EXPECT_OK(pinned.blocks.arena().validate());
  EXPECT_EQ(pinned.device.reports(), "");
}

// Real bytes through a few streams, with calls of the driver failing now and then: what arrives is what was
// written when the copy was asked for.
TEST(PinnedBlocks, RandomCopiesArriveWhole) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Pinned pinned(("capacity:256MiB,completion:late,seed:" + std::to_string(seed)).c_str(), 24 * kMiB);
    const Driver& driver = *pinned.device.driver;
    std::vector<CUstream> streams;
    for (int i = 0; i < 3; ++i) streams.push_back(pinned.device.stream());
    std::mt19937_64 random(seed);
    constexpr uint64_t kPart = 64 * 1024;
    std::array<unsigned char, 200> sent{};
    for (size_t step = 0; step < sent.size(); ++step) {
      if (random() % 20 == 0 && pinned.device.simulated()) {
        const std::array<const char*, 4> calls{"cuMemHostRegister", "cuEventRecord", "cuEventQuery",
                                               "cuEventSynchronize"};
        pinned.device.inject_fault(calls[random() % calls.size()], 1, CUDA_ERROR_OUT_OF_MEMORY);
      }
      void* block = nullptr;
      const uint64_t bytes = kPart + random() % (4 * kMiB);
      while (!pinned.blocks.allocate(bytes, 0, &block).ok()) pinned.blocks.trim();
      sent[step] = static_cast<unsigned char>(random());
      std::memset(block, sent[step], kPart);
      const CUstream stream = streams[random() % streams.size()];
      EXPECT_EQ(driver.cuMemcpyHtoDAsync(pinned.target + step * kPart, block, kPart, stream), CUDA_SUCCESS);
      SPW_EXPECT_OK(pinned.blocks.record_stream(block, 0, stream));
      SPW_EXPECT_OK(pinned.blocks.free(block));
      if (random() % 4 == 0) {
        EXPECT_EQ(driver.cuStreamSynchronize(stream), CUDA_SUCCESS);
      }
    }
    EXPECT_EQ(driver.cuCtxSynchronize(), CUDA_SUCCESS);
    for (size_t step = 0; step < sent.size(); ++step) {
      std::vector<unsigned char> arrived(kPart);
      ASSERT_EQ(driver.cuMemcpyDtoH(arrived.data(), pinned.target + step * kPart, kPart), CUDA_SUCCESS);
      ASSERT_TRUE(holds_only(arrived.data(), kPart, sent[step])) << "step " << step;
    }
    SPW_EXPECT_OK(pinned.blocks.arena().validate());
    EXPECT_EQ(pinned.device.reports(), "");
  }
}

TEST(PinnedBlocks, AForkCopiesTheProgramsAndNotTheTiers) {
  Pinned pinned;
  const Result<void*> of_tiers = pinned.blocks.arena().allocate(4 * kMiB, PinnedArena::kSlotBytes);
  ASSERT_TRUE(of_tiers.ok());
  std::memset(of_tiers.value(), 1, 4 * kMiB);
  char* of_program = pinned.must_allocate(kMiB);
  std::memset(of_program, 2, kMiB);
  EXPECT_TRUE(holds_in_child([&] { return holds_only(of_program, kMiB, 2); }));
  EXPECT_TRUE(
      holds_in_child([&] { return msync(of_tiers.value(), 4 * kMiB, MS_ASYNC) != 0 && errno == ENOMEM; }));
  EXPECT_TRUE(holds_in_child([&] {
    void* block = nullptr;
    return pinned.blocks.allocate(kMiB, 0, &block).code() == SPW_ERROR_UNSUPPORTED;
  }));
  // What the tiers leave serves the program, children included.
  pinned.blocks.arena().give_back(of_tiers.value(), 4 * kMiB);
  char* again = pinned.must_allocate(4 * kMiB);
  EXPECT_EQ(again, of_tiers.value());
  std::memset(again, 3, 4 * kMiB);
  EXPECT_TRUE(holds_in_child([&] { return holds_only(again, 4 * kMiB, 3); }));
  SPW_EXPECT_OK(pinned.blocks.free(of_program));
  SPW_EXPECT_OK(pinned.blocks.free(again));
}

}  // namespace
}  // namespace spillway::test
