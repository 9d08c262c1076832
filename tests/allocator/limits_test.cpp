// Limits that change while threads allocate, and a device that others fill and leave again.
#include <atomic>
#include <thread>
#include <utility>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// Threads that each allocate and free on a stream of their own blocks of 7 MiB on average.
class Load {
 public:
  Load(Device& device, Arena& arena) {
    for (uint32_t t = 0; t < 4; ++t) {
      threads_.emplace_back([&device, &arena, this, t, stream = device.stream()] {
        device.driver->cuCtxSetCurrent(device.context);
        std::vector<void*> live;
        for (uint32_t step = t; !stop_; ++step) {
          if (blocks == 0) {
            for (void* block : std::exchange(live, {})) SPW_EXPECT_OK(Arena::free(block));
            ++steps;
            std::this_thread::yield();
            continue;
          }
          void* block = nullptr;
          const Status status = arena.allocate((1 + step * 7 % 13) * kMiB + step % 5 * 700, stream, &block);
          if (status.ok()) {
            live.push_back(block);
          } else {
            EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY) << status.text();
            ++refused;
          }
          while (!live.empty() && (live.size() > blocks || !status.ok())) {
            const auto which = live.begin() + static_cast<ptrdiff_t>(step % live.size());
            SPW_EXPECT_OK(Arena::free(*which));
            live.erase(which);
            if (!status.ok()) break;
          }
          ++steps;
        }
        for (void* block : live) SPW_EXPECT_OK(Arena::free(block));
      });
    }
  }
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  // Until every thread has had its turn often.
  void run(int turns = 400) const {
    for (const int until = steps + turns; steps < until;) std::this_thread::yield();
  }
  std::atomic<int> steps{0};
  std::atomic<int> refused{0};
  std::atomic<size_t> blocks{0};  // that each thread holds at most

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TEST(Limits, ALowerLimitStopsGrowthAtOnceAndAHigherOneLetsItGoOn) {
  Device device("capacity:512MiB,races:off");
  const auto arena = device.arena();
  Load load(device, *arena);
  for (int round = 0; round < 3; ++round) {
    for (const bool by_reserve : {false, true}) {
      const auto restrict_to = [&](uint64_t bytes) {
        return by_reserve ? arena->set_reserve(device.reserve_but(bytes)) : arena->set_limit(bytes);
      };
      load.blocks = 1;
      load.run();
      // In some rounds below what is held.
      SPW_EXPECT_OK(restrict_to(round % 2 == 0 ? 8 * kMiB : 40 * kMiB));
      const int64_t most = std::max(reserved(*arena), static_cast<int64_t>(40 * kMiB));
      load.blocks = 10;
      const int refused = load.refused;
      for (int look = 0; look < 5; ++look) {
        load.run(40);
        EXPECT_LE(reserved(*arena), most);
      }
      EXPECT_GT(load.refused, refused);
      const int64_t under = reserved(*arena);
      SPW_EXPECT_OK(restrict_to(512 * kMiB));
      for (int look = 0; look < 100 && reserved(*arena) <= under; ++look) load.run();
      EXPECT_GT(reserved(*arena), under);
      load.blocks = 0;
      load.run();
      SPW_EXPECT_OK(arena->trim());
    }
  }
}

class LoweredLimits : public testing::TestWithParam<bool> {
 protected:
  Device device{"capacity:512MiB"};
  std::unique_ptr<Arena> arena = make();

  void lower_limit(uint64_t bytes) {
    SPW_EXPECT_OK(arena->set_limit(bytes));
    arena->keep_limit();
  }

 private:
  std::unique_ptr<Arena> make() const {
    ArenaOptions options;
    options.use_vmm = GetParam();
    return device.arena(options);
  }
};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutVmm, LoweredLimits, testing::Bool());

TEST_P(LoweredLimits, WhatIsCachedBeyondThemGoesBackAtOnce) {
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(must_allocate(*arena, 20 * kMiB, nullptr));
  for (int i = 1; i < 8; ++i) SPW_EXPECT_OK(Arena::free(blocks[static_cast<size_t>(i)]));
  lower_limit(60 * kMiB);
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(60 * kMiB));
  void* more = must_allocate(*arena, 20 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(more));
  EXPECT_EQ(arena->allocate(60 * kMiB, nullptr, &more).code(), SPW_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(arena->set_reserve(device.reserve_but(20 * kMiB)));
  arena->keep_limit();
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(20 * kMiB));
  SPW_EXPECT_OK(arena->set_reserve(0));
  SPW_EXPECT_OK(arena->set_limit(UINT64_MAX));
  more = must_allocate(*arena, 60 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(more));
  SPW_EXPECT_OK(Arena::free(blocks[0]));
  SPW_EXPECT_OK(arena->validate());
}

TEST_P(LoweredLimits, BelowWhatIsInUseAreKeptAsBlocksGo) {
  CUstream stream = device.stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(must_allocate(*arena, 20 * kMiB, stream));
  lower_limit(60 * kMiB);
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(160 * kMiB));
  void* more = nullptr;
  for (size_t live = 8; live > 3; --live) {
    device.touch(stream, blocks[live - 1], 20 * kMiB);
    SPW_EXPECT_OK(Arena::free(blocks[live - 1]));
    // Its place is free, and not to be had.
    EXPECT_EQ(arena->allocate(20 * kMiB, stream, &more).code(), SPW_ERROR_OUT_OF_MEMORY) << live;
    EXPECT_EQ(reserved(*arena), static_cast<int64_t>((live - 1) * 20 * kMiB));
  }
  SPW_EXPECT_OK(Arena::free(blocks[2]));
  const uint64_t waits = device.simulated() ? device.host_waits() : 0;
  more = must_allocate(*arena, 20 * kMiB, stream);
  EXPECT_EQ(device.simulated() ? device.host_waits() : 0, waits);
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(60 * kMiB));
  for (void* block : {blocks[0], blocks[1], more}) SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Limits, LoweredUnderCaptureAreKeptAfterIt) {
  Device device("capacity:512MiB");
  const auto arena = device.arena();
  CUstream stream = device.stream();
  void* cached[] = {must_allocate(*arena, 50 * kMiB, nullptr), must_allocate(*arena, 50 * kMiB, nullptr)};
  for (void* block : cached) SPW_EXPECT_OK(Arena::free(block));
  device.begin_capture(stream);
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [=](CUstream asked) { return asked == stream; }));
  void* captured = must_allocate(*arena, 20 * kMiB, stream);
  SPW_EXPECT_OK(arena->set_limit(40 * kMiB));
  arena->keep_limit();
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(120 * kMiB));
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  const CUgraph graph = device.end_capture(stream);
  void* block = must_allocate(*arena, 10 * kMiB, nullptr);
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(40 * kMiB));
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(Arena::free(captured));
  EXPECT_EQ(device.driver->cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST(Limits, ASoftLimitIsExceededOnlyForWhatNothingElseServes) {
  Device device("capacity:512MiB,races:off");
  const auto arena = device.arena();
  SPW_EXPECT_OK(arena->set_soft_limit(0));
  {
    Load load(device, *arena);
    load.blocks = 8;
    load.run(2000);
    EXPECT_EQ(load.refused, 0);
    SPW_EXPECT_OK(arena->set_soft_limit(UINT64_MAX));
    load.run(2000);
    SPW_EXPECT_OK(arena->set_soft_limit(64 * kMiB));
    load.run(2000);
    EXPECT_EQ(load.refused, 0);
  }
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(arena->stats().active.all.current, 0);
}

// Memory of the device that somebody else holds.
class Others {
 public:
  explicit Others(const Device& device) : device_(device) {}
  ~Others() { leave(); }
  void take(size_t bytes) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    handles_.emplace_back();
    ASSERT_EQ(device_.driver->cuMemCreate(&handles_.back(), bytes, &properties, 0), CUDA_SUCCESS);
  }
  void leave() {
    for (const CUmemGenericAllocationHandle handle : handles_) device_.driver->cuMemRelease(handle);
    handles_.clear();
  }

 private:
  const Device& device_;
  std::vector<CUmemGenericAllocationHandle> handles_;
};

TEST(Limits, MemoryThatOthersGiveBackIsFoundAgain) {
  Device device("capacity:64MiB,completion:run-ahead");
  if (!device.simulated()) GTEST_SKIP() << "a real device cannot be given the size that is tested";
  const auto arena = device.arena();
  Others others(device);
  others.take(32 * kMiB);
  const CUstream streams[] = {device.stream(), device.stream()};
  const auto pass = [&] {
    for (CUstream stream : streams) {
      void* block = must_allocate(*arena, 24 * kMiB, stream);
      device.touch(stream, block, 24 * kMiB);
      SPW_EXPECT_OK(Arena::free(block));
    }
  };
  for (int i = 0; i < 10; ++i) pass();
  uint64_t waits = device.stream_waits();
  pass();
  EXPECT_GT(device.stream_waits(), waits);
  // Looking for room must cost little while there is none.
  const uint64_t creates = device.calls("cuMemCreate");
  const uint64_t questions = device.calls("cuMemGetInfo");
  for (int i = 0; i < 100; ++i) pass();
  EXPECT_LE(device.calls("cuMemCreate") - creates, 20u);
  EXPECT_LE(device.calls("cuMemGetInfo") - questions, 20u);
  others.leave();
  for (int i = 0; i < 50; ++i) pass();
  waits = device.stream_waits();
  const uint64_t calls = device.total_calls();
  for (int i = 0; i < 10; ++i) pass();
  EXPECT_EQ(device.stream_waits(), waits);
  EXPECT_EQ(device.total_calls(), calls);
  device.driver->cuCtxSynchronize();
  EXPECT_EQ(device.reports(), "");
}

TEST(Limits, AFullDeviceIsAnErrorThatSaysWhatOthersHold) {
  Device device("capacity:64MiB");
  if (!device.simulated()) GTEST_SKIP() << "a real device cannot be given the size that is tested";
  const auto arena = device.arena();
  Others others(device);
  others.take(32 * kMiB);
  void* block = must_allocate(*arena, 20 * kMiB, nullptr);
  void* more = nullptr;
  const uint64_t calls = device.total_calls();
  const Status status = arena->allocate(20 * kMiB, nullptr, &more);
  EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(device.total_calls() - calls, 60u);
  EXPECT_NE(status.text().find("+ other processes, contexts and libraries 32.00 MiB (33554432)"),
            std::string::npos)
      << status.text();
  SPW_EXPECT_OK(arena->validate());
  others.leave();
  SPW_EXPECT_OK(arena->allocate(20 * kMiB, nullptr, &more));
  SPW_EXPECT_OK(Arena::free(more));
  SPW_EXPECT_OK(Arena::free(block));
}

}  // namespace
}  // namespace spillway::test
