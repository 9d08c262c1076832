// Memory without a stream: never in use when it is handed out, and free again without a driver call for each
// block.
#include "allocator/legacy_pool.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "allocator/address_map.h"
#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway {
namespace {

using testing::IsEmpty;
using namespace test;

class LegacyPoolTest : public testing::Test {
 protected:
  explicit LegacyPoolTest(const std::string& configuration = "capacity:1GiB,completion:run-ahead")
      : device(configuration), arena(device.arena()) {
    if (!device.simulated()) return;
    Result<std::unique_ptr<LegacyPool>> made = LegacyPool::create(device.driver, *arena, known);
    if (!made.ok()) throw std::runtime_error(made.status().text());
    legacy_pool = std::move(made.value());
  }
  void SetUp() override {
    if (!device.simulated()) GTEST_SKIP() << "late work is the simulated device's";
  }

  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream created = nullptr;
    EXPECT_EQ(device.driver->cuStreamCreate(&created, flags), CUDA_SUCCESS);
    known.add(device.context, created, flags);
    return created;
  }
  void* allocate(size_t bytes) {
    void* pointer = nullptr;
    SPW_EXPECT_OK(legacy_pool->allocate(bytes, &pointer));
    return pointer;
  }
  uint64_t waits() const { return device.host_waits(); }

  Device device;
  KnownStreams known;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<LegacyPool> legacy_pool;
};

TEST_F(LegacyPoolTest, MemoryInUseIsNotHandedOut) {
  CUstream busy = stream();
  void* first = allocate(64 * kMiB);
  device.touch(busy, first, 64 * kMiB);
  SPW_EXPECT_OK(legacy_pool->free(first));
  void* second = allocate(64 * kMiB);
  EXPECT_NE(second, first);
  device.touch(stream(), second, 64 * kMiB);
  EXPECT_EQ(waits(), 0u);
  EXPECT_THAT(device.reports(), IsEmpty());
}

TEST_F(LegacyPoolTest, MemoryIsReusedOnceItsUsersAreDone) {
  CUstream user = stream();
  void* first = allocate(64 * kMiB);
  device.touch(user, first, 64 * kMiB);
  SPW_EXPECT_OK(legacy_pool->free(first));
  device.driver->cuStreamSynchronize(user);
  EXPECT_EQ(allocate(64 * kMiB), first);
}

TEST_F(LegacyPoolTest, EveryUserMustBeDone) {
  CUstream users[] = {stream(), stream()};
  for (CUstream first_done : users) {
    void* first = allocate(64 * kMiB);
    for (CUstream user : users) device.touch(user, first, 64 * kMiB);
    SPW_EXPECT_OK(legacy_pool->free(first));
    device.driver->cuStreamSynchronize(first_done);
    EXPECT_NE(allocate(64 * kMiB), first);
    device.driver->cuCtxSynchronize();
  }
}

TEST_F(LegacyPoolTest, EveryKindOfStreamIsAsked) {
  const CUstream streams[] = {nullptr, CU_STREAM_PER_THREAD, stream(), stream(CU_STREAM_DEFAULT)};
  for (CUstream busy : streams) {
    void* first = allocate(64 * kMiB);
    device.touch(busy, first, 64 * kMiB);
    SPW_EXPECT_OK(legacy_pool->free(first));
    void* second = allocate(64 * kMiB);
    EXPECT_NE(second, first);
    device.touch(streams[2], second, 64 * kMiB);
    SPW_EXPECT_OK(legacy_pool->free(second));
    device.driver->cuCtxSynchronize();
  }
  EXPECT_THAT(device.reports(), IsEmpty());
}

TEST_F(LegacyPoolTest, AnotherThreadsDefaultStreamIsAsked) {
  void* first = allocate(64 * kMiB);
  std::thread([&] {
    device.driver->cuCtxSetCurrent(device.context);
    device.touch(CU_STREAM_PER_THREAD, first, 64 * kMiB);
  }).join();
  SPW_EXPECT_OK(legacy_pool->free(first));
  void* second = allocate(64 * kMiB);
  device.touch(stream(), second, 64 * kMiB);
  EXPECT_NE(second, first);
  EXPECT_THAT(device.reports(), IsEmpty());
}

TEST_F(LegacyPoolTest, AStreamThatIsGoneIsAsked) {
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    CUstream gone = stream(flags);
    void* first = allocate(64 * kMiB);
    device.touch(gone, first, 64 * kMiB);
    legacy_pool->stream_destroyed(gone);
    EXPECT_EQ(known.context_of(gone), nullptr);
    device.driver->cuStreamDestroy(gone);
    SPW_EXPECT_OK(legacy_pool->free(first));
    void* second = allocate(64 * kMiB);
    EXPECT_NE(second, first);
    device.touch(stream(), second, 64 * kMiB);
    EXPECT_THAT(device.reports(), IsEmpty());
    SPW_EXPECT_OK(legacy_pool->free(second));
    device.driver->cuCtxSynchronize();
  }
}

TEST_F(LegacyPoolTest, FreesCostOneEventForEachBusyStreamAndEpoch) {
  const CUstream streams[] = {stream(), stream(), stream()};
  for (CUstream busy : streams) {
    void* used = allocate(kMiB);
    device.touch(busy, used, kMiB);
  }
  std::vector<void*> blocks;
  for (size_t i = 0; i < LegacyPool::kEpochBlocks; ++i) blocks.push_back(allocate(4096));
  const uint64_t queries = device.calls("cuStreamQuery");
  for (void* block : blocks) SPW_EXPECT_OK(legacy_pool->free(block));
  const LegacyPoolStats stats = legacy_pool->stats();
  EXPECT_EQ(stats.frees, LegacyPool::kEpochBlocks);
  EXPECT_EQ(stats.epochs, 1u);
  EXPECT_EQ(stats.events,
            3u + 1u);  // and one for all that the legacy stream waits for, whether or not it is busy
  EXPECT_EQ(stats.waits, 0u);
  EXPECT_LE(device.calls("cuStreamQuery") - queries, 4u);
  EXPECT_EQ(waits(), 0u);
}

TEST_F(LegacyPoolTest, AFreeAloneCallsNothing) {
  void* block = allocate(kMiB);
  device.touch(stream(), block, kMiB);
  const uint64_t calls = device.total_calls();
  SPW_EXPECT_OK(legacy_pool->free(block));
  EXPECT_EQ(device.total_calls(), calls);
}

TEST_F(LegacyPoolTest, WhatIsPendingIsWaitedForBeforeMemoryRunsOut) {
  CUstream users[] = {stream(), stream()};
  for (int i = 0; i < 20; ++i) {
    void* block = allocate(700 * kMiB);
    ASSERT_NE(block, nullptr);
    device.touch(users[i % 2], block, 700 * kMiB);
    SPW_EXPECT_OK(legacy_pool->free(block));
  }
  EXPECT_GE(legacy_pool->stats().waits, 1u);
  EXPECT_THAT(device.reports(), IsEmpty());
}

TEST_F(LegacyPoolTest, MemoryOfAStreamIsReadyWhenItIsHandedOut) {
  // What a stream freed and still uses is borrowed behind a wait: the host must see that wait's end.
  CUstream owner = stream();
  void* block = must_allocate(*arena, 900 * kMiB, owner);
  device.touch(owner, block, 900 * kMiB);
  SPW_EXPECT_OK(Arena::free(block));
  void* taken = allocate(800 * kMiB);
  ASSERT_NE(taken, nullptr);
  device.touch(stream(), taken, 800 * kMiB);
  EXPECT_THAT(device.reports(), IsEmpty());
}

TEST_F(LegacyPoolTest, NothingIsHandedOutWhileAStreamCaptures) {
  CUstream busy = stream();
  CUstream capturing = stream();
  void* first = allocate(64 * kMiB);
  device.touch(capturing, first, 64 * kMiB);
  device.begin_capture(capturing);
  SPW_EXPECT_OK(legacy_pool->free(first));
  void* second = allocate(64 * kMiB);
  EXPECT_NE(second, first);
  device.discard_capture(capturing);
  device.touch(busy, second, 64 * kMiB);
  EXPECT_THAT(device.reports(), IsEmpty());
}

TEST_F(LegacyPoolTest, WrongPointersAreRefused) {
  void* block = allocate(kMiB);
  EXPECT_EQ(legacy_pool->free(static_cast<char*>(block) + 512).code(), SPW_ERROR_INVALID_POINTER);
  SPW_EXPECT_OK(legacy_pool->free(block));
  EXPECT_EQ(legacy_pool->free(block).code(), SPW_ERROR_INVALID_POINTER);
}

TEST_F(LegacyPoolTest, FlushGivesEverythingBack) {
  CUstream busy = stream();
  for (int i = 0; i < 10; ++i) {
    void* block = allocate(kMiB);
    device.touch(busy, block, kMiB);
    SPW_EXPECT_OK(legacy_pool->free(block));
  }
  EXPECT_EQ(legacy_pool->flush(), 10 * kMiB);
  EXPECT_EQ(device.driver->cuStreamQuery(busy), CUDA_SUCCESS);
  EXPECT_EQ(legacy_pool->pending_bytes(), 0u);
  EXPECT_EQ(arena->stats().active_bytes.all.current, 0);
  SPW_EXPECT_OK(arena->validate());
}

// Late work in a seeded order, frees while it is pending, from several threads.
TEST_F(LegacyPoolTest, ThreadsShareIt) {
  std::vector<CUstream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(stream());
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      device.driver->cuCtxSetCurrent(device.context);
      for (unsigned i = 0; i < 300; ++i) {
        const size_t bytes = size_t{4096} << ((i * 7 + t) % 10);
        void* block = allocate(bytes);
        device.touch(streams[(i + t) % 4], block, bytes);
        SPW_EXPECT_OK(legacy_pool->free(block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(device.reports(), IsEmpty());
  legacy_pool->flush();
  EXPECT_EQ(arena->stats().active_bytes.all.current, 0);
  SPW_EXPECT_OK(arena->validate());
}

TEST(ABlockAround, IsFoundFromInside) {
  const Device device;
  const std::unique_ptr<Arena> arena = device.arena();
  constexpr size_t kSizes[] = {700, 40'000, 3 * kMiB + 5};
  for (const size_t bytes : kSizes) {
    void* block = must_allocate(*arena, bytes, nullptr);
    for (const size_t offset : {size_t{0}, size_t{1}, bytes / 2, bytes - 1}) {
      Result<FoundBlock> found =
          Arena::find_block_around(static_cast<char*>(block) + offset, uint64_t{1} << 30);
      ASSERT_TRUE(found.ok()) << found.status().text();
      EXPECT_EQ(found->row.address, reinterpret_cast<uint64_t>(block));
      EXPECT_EQ(found->row.requested_bytes, bytes);
    }
  }
  void* gone = must_allocate(*arena, 8 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(gone));
  EXPECT_FALSE(Arena::find_block_around(static_cast<char*>(gone) + kMiB, uint64_t{1} << 30).ok());
  EXPECT_FALSE(Arena::find_block_around(&device, uint64_t{1} << 30).ok());
}

// While nothing is locked a range that had been entered for addresses inside of a block becomes that of
// another block: it says nothing of what lies at these addresses.
TEST(ABlockAround, IsFoundPastARangeThatHasOtherAddressesByNow) {
  const Device device;
  const std::unique_ptr<Arena> arena = device.arena();
  char* one = static_cast<char*>(must_allocate(*arena, 8 * kMiB, nullptr));
  char* other = static_cast<char*>(must_allocate(*arena, 8 * kMiB, nullptr));
  char* const block = std::max(one, other);
  AddressMap& map = AddressMap::instance();
  CachedRange* const elsewhere = map.find(reinterpret_cast<uint64_t>(std::min(one, other)));
  const uint64_t inside = reinterpret_cast<uint64_t>(block + 4 * kMiB);
  ASSERT_TRUE(map.set(inside, 1, elsewhere));
  Result<FoundBlock> found = Arena::find_block_around(block + 5 * kMiB, uint64_t{1} << 30);
  map.clear_if(inside, elsewhere);
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_EQ(found->row.address, reinterpret_cast<uint64_t>(block));
}

}  // namespace
}  // namespace spillway
