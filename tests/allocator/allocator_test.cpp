#include "allocator/allocator.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

class AllocatorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!device.simulated()) GTEST_SKIP() << "two devices are simulated: a machine need not have them";
    // As a program that uses both.
    EXPECT_EQ(device.driver->cuDevicePrimaryCtxRetain(&second_context, 1), CUDA_SUCCESS);
  }
  void TearDown() override {
    if (second_context != nullptr) device.driver->cuDevicePrimaryCtxRelease(1);
  }
  std::unique_ptr<Allocator> create() {
    Result<std::unique_ptr<Allocator>> made =
        Allocator::create(device.driver, [this](int ordinal) -> Result<ArenaOptions> {
          asked.push_back(ordinal);
          std::this_thread::sleep_for(answers_after);
          if (!refusal.ok()) return std::exchange(refusal, Status());
          ArenaOptions options;
          options.limit_bytes = static_cast<uint64_t>(ordinal + 1) * 8 * kMiB;
          return options;
        });
    EXPECT_TRUE(made.ok()) << made.status().text();
    return std::move(made.value());
  }
  static Arena& arena_of(Allocator& allocator, int ordinal) {
    Result<Arena*> arena = allocator.arena(ordinal);
    if (!arena.ok()) throw std::runtime_error(arena.status().text());
    return *arena.value();
  }
  static std::set<int> existing(Allocator& allocator) {
    std::set<int> devices;
    allocator.for_each([&](const Arena& arena) { devices.insert(arena.device()); });
    return devices;
  }

  Device device{"capacity:64MiB,devices:2"};
  std::vector<int> asked;  // for the options of which devices
  Status refusal;          // of the next one
  std::chrono::milliseconds answers_after{0};
  CUcontext second_context = nullptr;
};

TEST_F(AllocatorTest, AnArenaIsMadeWhenItsDeviceIsFirstUsed) {
  const auto allocator = create();
  EXPECT_EQ(allocator->existing(1), nullptr);
  EXPECT_TRUE(existing(*allocator).empty());
  Arena* const second = &arena_of(*allocator, 1);
  EXPECT_EQ(second->device(), 1);
  EXPECT_EQ(allocator->existing(1), second);
  EXPECT_EQ(allocator->existing(0), nullptr);
  EXPECT_EQ(existing(*allocator), std::set<int>{1});
  EXPECT_EQ(&arena_of(*allocator, 1), second);
  EXPECT_NE(&arena_of(*allocator, 0), second);
  EXPECT_EQ(existing(*allocator), (std::set<int>{0, 1}));
  EXPECT_EQ(asked, (std::vector<int>{1, 0})) << "once for each";
}

TEST_F(AllocatorTest, EachDeviceHasItsOwnOptions) {
  const auto allocator = create();
  EXPECT_EQ(arena_of(*allocator, 0).stats().limit_bytes, static_cast<int64_t>(8 * kMiB));
  EXPECT_EQ(arena_of(*allocator, 1).stats().limit_bytes, static_cast<int64_t>(16 * kMiB));
}

TEST_F(AllocatorTest, OrAllHaveTheSame) {
  ArenaOptions options;
  options.limit_bytes = 4 * kMiB;
  const auto allocator = std::move(Allocator::create(device.driver, options).value());
  for (const int ordinal : {0, 1}) {
    EXPECT_EQ(arena_of(*allocator, ordinal).stats().limit_bytes, static_cast<int64_t>(4 * kMiB));
  }
}

TEST_F(AllocatorTest, ADeviceThatThereIsNoneOfIsRefused) {
  const auto allocator = create();
  for (const int none : {-1, 2, Allocator::kMostDevices - 1, Allocator::kMostDevices, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(allocator->arena(none).status().code(), SPW_ERROR_INVALID_ARGUMENT) << none;
    EXPECT_EQ(allocator->existing(none), nullptr) << none;
    allocator->drop(none);
  }
  EXPECT_EQ(allocator->arena(64).status().text(), "device 64: allowed are 0 to 63");
  EXPECT_TRUE(existing(*allocator).empty());
}

TEST_F(AllocatorTest, AnErrorOfTheOptionsIsTheAnswerAndTheNextCallTriesAgain) {
  const auto allocator = create();
  refusal = Status::invalid_argument("limit: too small");
  EXPECT_EQ(allocator->arena(0).status().text(), "limit: too small");
  EXPECT_EQ(allocator->existing(0), nullptr);
  EXPECT_TRUE(allocator->arena(0).ok());
  EXPECT_EQ(asked, (std::vector<int>{0, 0}));
}

TEST_F(AllocatorTest, ADeviceThatTheProgramDoesNotUseIsRefusedUntilItDoes) {
  const auto allocator = create();
  device.driver->cuDevicePrimaryCtxRelease(1);
  const Status refused = allocator->arena(1).status();
  EXPECT_EQ(refused.code(), SPW_ERROR_INVALID_STATE) << refused.text();
  EXPECT_EQ(allocator->existing(1), nullptr);
  EXPECT_EQ(device.driver->cuDevicePrimaryCtxRetain(&second_context, 1), CUDA_SUCCESS);
  EXPECT_TRUE(allocator->arena(1).ok());
}

TEST_F(AllocatorTest, AnArenaThatTheDriverRefusesLeavesNothingBehind) {
  const auto allocator = create();
  device.inject_fault("cuDevicePrimaryCtxRetain", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allocator->arena(0).status().code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allocator->existing(0), nullptr);
  EXPECT_TRUE(allocator->arena(0).ok());
}

TEST_F(AllocatorTest, ADroppedArenaGivesItsMemoryBackAndIsMadeAnew) {
  const auto allocator = create();
  must_allocate(arena_of(*allocator, 0), 3 * kMiB, nullptr);
  const void* other = must_allocate(arena_of(*allocator, 1), 3 * kMiB, nullptr);
  const uint64_t handles = device.live_handles();
  allocator->drop(0);
  EXPECT_LT(device.live_handles(), handles);
  EXPECT_EQ(existing(*allocator), std::set<int>{1});
  allocator->drop(0);
  EXPECT_TRUE(allocator->was_used());
  EXPECT_FALSE(allocator->counted(2).has_value());
  const DeviceStats ended = allocator->counted(0).value();
  EXPECT_EQ(ended.allocation.all.current, 0);
  EXPECT_EQ(ended.allocation.all.freed, 1);
  EXPECT_EQ(ended.reserved_bytes.all.current, 0);
  EXPECT_EQ(ended.reserved_bytes.all.peak, static_cast<int64_t>(4 * kMiB));
  Arena& again = arena_of(*allocator, 0);
  must_allocate(again, kMiB, nullptr);
  EXPECT_EQ(again.stats().allocation.all.current, 1);
  EXPECT_EQ(again.stats().allocation.all.allocated, 2);
  EXPECT_EQ(again.stats().allocated_bytes.all.peak, static_cast<int64_t>(3 * kMiB));
  EXPECT_EQ(again.stats().live_mappings, 1);
  EXPECT_EQ(asked, (std::vector<int>{0, 1, 0}));
  SPW_EXPECT_OK(allocator->free(const_cast<void*>(other)));
}

TEST_F(AllocatorTest, ItsEndGivesEverythingBack) {
  {
    const auto allocator = create();
    for (const int ordinal : {0, 1}) must_allocate(arena_of(*allocator, ordinal), 3 * kMiB, nullptr);
    EXPECT_GT(device.live_handles(), 0u);
  }
  EXPECT_EQ(device.live_handles(), 0u);
  EXPECT_EQ(device.live_mappings(), 0u);
}

TEST_F(AllocatorTest, TheAddressTellsTheDevice) {
  const auto allocator = create();
  void* const blocks[] = {must_allocate(arena_of(*allocator, 0), kMiB, nullptr),
                          must_allocate(arena_of(*allocator, 1), kMiB, nullptr)};
  SPW_EXPECT_OK(allocator->record_stream(blocks[1], nullptr));
  EXPECT_EQ(allocator->record_stream(&asked, nullptr).code(), SPW_ERROR_INVALID_POINTER);
  SPW_EXPECT_OK(allocator->free(blocks[1]));
  EXPECT_EQ(allocator->existing(0)->stats().allocation.all.current, 1);
  EXPECT_EQ(allocator->existing(1)->stats().allocation.all.current, 0);
  EXPECT_EQ(allocator->free(blocks[1]).code(), SPW_ERROR_INVALID_POINTER);
  SPW_EXPECT_OK(allocator->free(blocks[0]));
}

TEST_F(AllocatorTest, ThreadsThatAskAtATimeGetOneArena) {
  answers_after = std::chrono::milliseconds(2);  // so that all are there meanwhile
  for (int round = 0; round < 5; ++round) {
    const auto allocator = create();
    asked.clear();
    std::atomic<int> ready{0};
    Arena* found[4] = {};
    std::vector<std::thread> threads;
    for (Arena*& mine : found) {
      threads.emplace_back([&] {
        for (++ready; ready < 4;) std::this_thread::yield();
        mine = &arena_of(*allocator, 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Arena* mine : found) EXPECT_EQ(mine, allocator->existing(1));
    EXPECT_EQ(asked, std::vector<int>{1});
  }
}

}  // namespace
}  // namespace spillway::test
