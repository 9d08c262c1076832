// Several streams: reuse is ordered, waits are counted. The simulated device runs
// everything as late as it may, and its race detector reports any reuse that was not ordered.

#include <future>
#include <thread>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

const char* const kLate = "capacity:64MiB,completion:late";

TEST(Streams, MemoryFreedOnAStreamIsReusedOnItAtOnce) {
  Device device(kLate);
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  for (int i = 0; i < 50; ++i) {
    void* block = must_allocate(*arena, 40 * kMiB, stream);
    device.touch(stream, block, 40 * kMiB);
    SPW_EXPECT_OK(Arena::free(block));
  }
  EXPECT_EQ(arena->stats().host_waits, 0);
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, AnotherStreamTakesFreePagesBehindADeviceWait) {
  Device device(kLate);
  const auto arena = device.arena({.limit_bytes = 40 * kMiB});
  const CUstream first = device.stream();
  const CUstream second = device.stream();
  for (int i = 0; i < 6; ++i) {
    const CUstream stream = i % 2 == 0 ? first : second;
    void* block = must_allocate(*arena, 30 * kMiB, stream);
    device.touch(stream, block, 30 * kMiB);
    SPW_EXPECT_OK(Arena::free(block));
    SPW_EXPECT_OK(arena->validate());
  }
  const DeviceStats stats = arena->stats();
  EXPECT_EQ(stats.host_waits, 0);
  EXPECT_GE(stats.stream_waits, 1);
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, AboveTheSoftLimitOtherStreamsMemoryComesBeforeNewPages) {
  Device device(kLate);
  const auto arena = device.arena({.soft_limit_bytes = 20 * kMiB});
  const CUstream first = device.stream();
  const CUstream second = device.stream();
  for (const CUstream stream : {first, second, first, second}) {
    void* block = must_allocate(*arena, 20 * kMiB, stream);
    device.touch(stream, block, 20 * kMiB);
    SPW_EXPECT_OK(Arena::free(block));
  }
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(20 * kMiB));
  EXPECT_GE(arena->stats().stream_waits, 1);
  // What nobody can lend is taken from the driver all the same, without a wait of the host.
  void* one = must_allocate(*arena, 20 * kMiB, first);
  void* more = must_allocate(*arena, 10 * kMiB, second);
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(30 * kMiB));
  EXPECT_EQ(arena->stats().host_waits, 0);
  SPW_EXPECT_OK(arena->set_soft_limit(60 * kMiB));
  SPW_EXPECT_OK(Arena::free(one));
  must_allocate(*arena, 20 * kMiB, second);
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(50 * kMiB));
  SPW_EXPECT_OK(Arena::free(more));
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, NoWaitIsTakenWhileThereIsRoomForNewPages) {
  Device device(kLate);
  const auto arena = device.arena();
  const CUstream first = device.stream();
  const CUstream second = device.stream();
  for (const CUstream stream : {first, second, first, second}) {
    void* block = must_allocate(*arena, 20 * kMiB, stream);
    device.touch(stream, block, 20 * kMiB);
    SPW_EXPECT_OK(Arena::free(block));
  }
  const DeviceStats stats = arena->stats();
  EXPECT_EQ(stats.stream_waits, 0);
  EXPECT_EQ(stats.host_waits, 0);
  EXPECT_EQ(stats.reserved_bytes.all.current, static_cast<int64_t>(40 * kMiB));
}

TEST(Streams, AreQuietOnceTheirWorkIsDone) {
  Device device("capacity:64MiB,completion:run-ahead");
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  void* block = must_allocate(*arena, 20 * kMiB, stream);
  EXPECT_TRUE(arena->is_quiet());
  {
    const Gate gate = device.hold(stream);
    device.touch(stream, block, 20 * kMiB);
    EXPECT_FALSE(arena->is_quiet());
  }
  EXPECT_EQ(device.driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_TRUE(arena->is_quiet());
  // What a pool is open for may be a capture, which a question would end.
  SPW_EXPECT_OK(arena->begin_pool({0, 7}, [](CUstream) { return false; }));
  EXPECT_FALSE(arena->is_quiet());
  SPW_EXPECT_OK(arena->end_pool({0, 7}));
  device.begin_capture(stream);
  EXPECT_FALSE(arena->is_quiet());
  device.discard_capture(stream);
  SPW_EXPECT_OK(arena->release_pool({0, 7}));
  // A stream that is gone has none.
  SPW_EXPECT_OK(arena->stream_destroyed(stream));
  device.destroy(stream);
  EXPECT_TRUE(arena->is_quiet());
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, ARecordedStreamDelaysReuse) {
  Device device("capacity:64MiB,completion:run-ahead");
  const auto arena = device.arena();
  const CUstream owner = device.stream();
  const CUstream user = device.stream();
  void* block = must_allocate(*arena, 20 * kMiB, owner);
  device.touch(owner, block, 20 * kMiB);
  device.order(owner, user);
  const Gate gate = device.hold(user);
  device.touch(user, block, 20 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(block, user));
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(Arena::free(block).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(arena->stats().pending_bytes, static_cast<int64_t>(20 * kMiB));
  void* next = must_allocate(*arena, 20 * kMiB, owner);
  EXPECT_NE(next, block);
  device.touch(owner, next, 20 * kMiB);
  SPW_EXPECT_OK(arena->validate());
  // At the limit the stream itself waits, not the host.
  void* last = must_allocate(*arena, 40 * kMiB, owner);
  device.touch(owner, last, 40 * kMiB);
  EXPECT_EQ(arena->stats().pending_bytes, 0);
  if (device.simulated()) {
    EXPECT_EQ(device.host_waits(), 0u);
  }
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, AFreeWaitsForEachStreamThatUsesTheBlock) {
  Device device(kLate);
  const auto arena = device.arena({.limit_bytes = 20 * kMiB});
  const CUstream owner = device.stream();
  char* block = static_cast<char*>(must_allocate(*arena, 20 * kMiB, owner));
  for (size_t part = 0; part < 4; ++part) {
    const CUstream user = device.stream();
    device.touch(user, block + part * 5 * kMiB, 5 * kMiB);
    SPW_EXPECT_OK(Arena::record_stream(block, user));
  }
  SPW_EXPECT_OK(Arena::free(block));
  device.touch(owner, must_allocate(*arena, 20 * kMiB, owner), 20 * kMiB);
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, AFreeWhoseEventFailsIsNotForgotten) {
  Device device(kLate);
  if (!device.simulated()) GTEST_SKIP() << "the failure is injected into the simulated driver";
  const auto arena = device.arena({.limit_bytes = 20 * kMiB});
  const CUstream owner = device.stream();
  const CUstream user = device.stream();
  void* block = must_allocate(*arena, 20 * kMiB, owner);
  device.touch(user, block, 20 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(block, user));
  device.inject_fault("cuEventRecord", 1, CUDA_ERROR_UNKNOWN);
  SPW_EXPECT_OK(Arena::free(block));
  device.touch(owner, must_allocate(*arena, 20 * kMiB, owner), 20 * kMiB);
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, SmallBlocksHaveStreamUsesToo) {
  Device device(kLate);
  const auto arena = device.arena();
  const CUstream owner = device.stream();
  const CUstream user = device.stream();
  for (int i = 0; i < 300; ++i) {
    void* block = must_allocate(*arena, 700, owner);
    device.touch(owner, block, 700);
    device.order(owner, user);
    device.touch(user, block, 700);
    SPW_EXPECT_OK(Arena::record_stream(block, user));
    SPW_EXPECT_OK(Arena::free(block));
  }
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0);
}

// All memory lies in full slabs: what a free gives back then is a slot, and never room for another slab.
TEST(Streams, ASlotThatOthersStillUseServesTheNextRequestBehindThem) {
  Device device(kLate);
  const auto arena = device.arena({.limit_bytes = 2 * kMiB});
  const CUstream owner = device.stream();
  const CUstream user = device.stream();
  constexpr size_t kBytes = size_t{16} << 10;
  std::vector<void*> blocks;
  for (size_t i = 0; i < 2 * kMiB / kBytes; ++i) blocks.push_back(must_allocate(*arena, kBytes, owner));
  void* refused = nullptr;
  EXPECT_EQ(arena->allocate(kBytes, owner, &refused).code(), SPW_ERROR_OUT_OF_MEMORY);
  for (const size_t chosen : {size_t{5}, blocks.size() - 1}) {
    device.order(owner, user);
    device.touch(user, blocks[chosen], kBytes);
    SPW_EXPECT_OK(Arena::record_stream(blocks[chosen], user));
    SPW_EXPECT_OK(Arena::free(blocks[chosen]));
    EXPECT_EQ(must_allocate(*arena, kBytes, owner), blocks[chosen]);
    device.touch(owner, blocks[chosen], kBytes);
  }
  EXPECT_EQ(arena->stats().num_ooms, 1);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, AUseOnTheCallingThreadsDefaultStreamEndsWithIt) {
  Device device(kLate);
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  void* block = must_allocate(*arena, 20 * kMiB, stream);
  device.touch(CU_STREAM_PER_THREAD, block, 20 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(block, CU_STREAM_PER_THREAD));
  SPW_EXPECT_OK(Arena::free(block));
  device.driver->cuStreamSynchronize(CU_STREAM_PER_THREAD);
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena, 20 * kMiB, stream)));
  EXPECT_EQ(arena->stats().pending_bytes, 0);
  EXPECT_EQ(arena->stats().host_waits, 0);
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, AUseOnAnotherThreadsDefaultStreamEndsWithAWaitForTheDevice) {
  Device device(kLate);
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  void* block = must_allocate(*arena, 20 * kMiB, stream);
  std::thread([&] {
    device.driver->cuCtxSetCurrent(device.context);
    SPW_EXPECT_OK(Arena::record_stream(block, CU_STREAM_PER_THREAD));
  }).join();
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(arena->stats().pending_bytes, static_cast<int64_t>(20 * kMiB));
  void* next = must_allocate(*arena, 60 * kMiB, stream);
  device.touch(stream, next, 60 * kMiB);
  EXPECT_EQ(arena->stats().pending_bytes, 0);
  EXPECT_GE(arena->stats().host_waits, 1);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, RecordingTheOwnStreamChangesNothing) {
  Device device(kLate);
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  void* block = must_allocate(*arena, 20 * kMiB, stream);
  SPW_EXPECT_OK(Arena::record_stream(block, stream));
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(arena->stats().pending_bytes, 0);
}

TEST(Streams, ManyStreamsNearTheLimitStayOrdered) {
  for (int seed = 1; seed <= 5; ++seed) {
    Device device(std::string(kLate) + ",seed:" + std::to_string(seed));
    const auto arena = device.arena();
    std::vector<CUstream> streams;
    for (int i = 0; i < 4; ++i) streams.push_back(device.stream());
    uint32_t random = static_cast<uint32_t>(seed) * 7919;
    struct Block {
      void* pointer;
      size_t bytes;
      CUstream stream;
    };
    std::vector<Block> live;
    size_t live_bytes = 0;
    for (int step = 0; step < 400; ++step) {
      random = random * 1664525 + 1013904223;
      const size_t bytes = (random >> 8) % (6 * kMiB) + 1;
      const CUstream stream = streams[(random >> 4) % 4];
      while (live_bytes + bytes > 40 * kMiB) {
        const size_t victim = random % live.size();
        device.touch(live[victim].stream, live[victim].pointer, live[victim].bytes);
        SPW_EXPECT_OK(Arena::free(live[victim].pointer));
        live_bytes -= live[victim].bytes;
        live.erase(live.begin() + static_cast<ptrdiff_t>(victim));
      }
      void* pointer = nullptr;
      if (!arena->allocate(bytes, stream, &pointer).ok())
        continue;  // other streams' parts of pages may stand in the way
      device.touch(stream, pointer, bytes);
      live.push_back({pointer, bytes, stream});
      live_bytes += bytes;
    }
    SPW_EXPECT_OK(arena->validate());
    EXPECT_EQ(device.reports(), "") << "seed " << seed;
  }
}

TEST(Streams, PagesThatWereNeverUsedPassOnWithoutAWait) {
  Device device;
  if (!device.simulated()) GTEST_SKIP() << "the failure is injected into the simulated driver";
  const auto arena = device.arena({.limit_bytes = 4 * kMiB});
  const CUstream first = device.stream();
  const CUstream second = device.stream();
  // One of two pages comes to be, and stays with the heap that asked.
  device.inject_fault("cuMemCreate", 2, CUDA_ERROR_UNKNOWN);
  void* block = nullptr;
  EXPECT_EQ(arena->allocate(4 * kMiB, first, &block).code(), SPW_ERROR_DRIVER);
  block = must_allocate(*arena, 4 * kMiB, second);
  device.touch(second, block, 4 * kMiB);
  EXPECT_EQ(arena->stats().stream_waits, 0);
  EXPECT_EQ(arena->stats().host_waits, 0);
  SPW_EXPECT_OK(arena->validate());
}

TEST(Streams, PagesBorrowedInVainStillComeAfterTheirLastUse) {
  Device device(kLate);
  if (!device.simulated()) GTEST_SKIP() << "the failure is injected into the simulated driver";
  const auto arena = device.arena({.limit_bytes = 12 * kMiB});
  const CUstream user = device.stream();
  const CUstream between = device.stream();
  const CUstream last = device.stream();
  void* blocks[3];
  for (void*& block : blocks) {
    block = must_allocate(*arena, 4 * kMiB, user);
    device.touch(user, block, 4 * kMiB);
  }
  SPW_EXPECT_OK(Arena::free(blocks[0]));
  SPW_EXPECT_OK(Arena::free(blocks[2]));
  // The pages are lent, and then cannot be mapped in a row.
  device.inject_fault("cuMemMap", 1, CUDA_ERROR_UNKNOWN);
  void* in_vain = nullptr;
  EXPECT_EQ(arena->allocate(8 * kMiB, between, &in_vain).code(), SPW_ERROR_DRIVER);
  void* block = must_allocate(*arena, 4 * kMiB, last);
  device.touch(last, block, 4 * kMiB);
  EXPECT_EQ(device.reports(), "");
}

void free_during_the_wait_of_a_trim(const ArenaOptions& options) {
  Device device(kLate);
  if (!device.simulated()) GTEST_SKIP() << "on a real device a host function may enqueue nothing";
  const auto arena = device.arena(options);
  struct Free {
    Device* device;
    CUstream stream;
    void* block;
  } free{&device, device.stream(), nullptr};
  const CUstream waited_for = device.stream();
  free.block = must_allocate(*arena, 20 * kMiB, free.stream);
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena, kMiB, waited_for)));
  // Runs within the wait, as another thread might.
  device.driver->cuLaunchHostFunc(
      waited_for,
      [](void* argument) {
        const Free& freed = *static_cast<Free*>(argument);
        freed.device->touch(freed.stream, freed.block, 20 * kMiB);
        SPW_EXPECT_OK(Arena::free(freed.block));
      },
      &free);
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(20 * kMiB));
  EXPECT_EQ(arena->stats().active_bytes.all.current, 0);
  EXPECT_EQ(device.reports(), "");
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0);
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, AFreeDuringTheWaitOfATrimKeepsItsPages) {
  free_during_the_wait_of_a_trim({});
}

TEST(Streams, AFreeDuringTheWaitOfATrimKeepsItsSegment) {
  free_during_the_wait_of_a_trim({.use_vmm = false});
}

TEST(Streams, ABlockOutlivesTheLossOfAnotherSlotOfItsView) {
  Device device;
  const auto arena = device.arena({.limit_bytes = 16 * kMiB, .most_mappings = 19});
  const auto every_second_of_four = [&] {
    void* blocks[4];
    for (void*& block : blocks) block = must_allocate(*arena, 4 * kMiB, nullptr);
    SPW_EXPECT_OK(Arena::free(blocks[0]));
    SPW_EXPECT_OK(Arena::free(blocks[2]));
  };
  every_second_of_four();
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena, 8 * kMiB, nullptr)));
  // It lies in three slots of the view of the block before; the fourth goes.
  void* block = must_allocate(*arena, 6 * kMiB, nullptr);
  EXPECT_EQ(arena->stats().rungs.view.hits, 1);
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(14 * kMiB));
  // Another view is one mapping too many.
  SPW_EXPECT_OK(arena->set_limit(30 * kMiB));
  every_second_of_four();
  const int64_t host_waits = arena->stats().host_waits;
  const auto va = reinterpret_cast<CUdeviceptr>(block);
  EXPECT_EQ(device.driver->cuMemsetD8Async(va, 1, 6 * kMiB, nullptr), CUDA_SUCCESS);
  void* other = must_allocate(*arena, 8 * kMiB, nullptr);
  EXPECT_NE(other, block);
  EXPECT_EQ(arena->stats().host_waits, host_waits + 1);
  EXPECT_EQ(device.driver->cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(other), 2, 8 * kMiB, nullptr),
            CUDA_SUCCESS);
  // Another's memory under the block's addresses would hold what was written there.
  std::vector<unsigned char> bytes(6 * kMiB);
  EXPECT_EQ(device.driver->cuMemcpyDtoH(bytes.data(), va, bytes.size()), CUDA_SUCCESS);
  EXPECT_EQ(bytes, std::vector<unsigned char>(6 * kMiB, 1));
  EXPECT_EQ(device.reports(), "");
  SPW_EXPECT_OK(arena->validate());
}

TEST(Streams, APlaceIsNotTakenAgainOnceItsViewLostASlot) {
  Device device;
  const auto arena = device.arena({.limit_bytes = 16 * kMiB, .most_mappings = 20});
  void* blocks[4];
  for (void*& block : blocks) block = must_allocate(*arena, 4 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(blocks[0]));
  SPW_EXPECT_OK(Arena::free(blocks[2]));
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena, 8 * kMiB, nullptr)));
  // It holds three slots of the view while the fourth goes.
  void* holder = must_allocate(*arena, 6 * kMiB, nullptr);
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(14 * kMiB));
  SPW_EXPECT_OK(Arena::free(holder));
  // A page of the same number comes to be again.
  void* again[2];
  for (void*& block : again) block = must_allocate(*arena, 4 * kMiB, nullptr);
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(16 * kMiB));
  for (void* block : again) SPW_EXPECT_OK(Arena::free(block));
  void* block = must_allocate(*arena, 8 * kMiB, nullptr);
  device.touch(nullptr, block, 8 * kMiB);
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, AnotherThreadsDefaultStreamIsReachedByAWaitForTheDeviceOnly) {
  Device device(kLate);
  const auto arena = device.arena({.limit_bytes = 40 * kMiB});
  std::thread([&] {
    device.driver->cuCtxSetCurrent(device.context);
    void* block = must_allocate(*arena, 30 * kMiB, CU_STREAM_PER_THREAD);
    device.touch(CU_STREAM_PER_THREAD, block, 30 * kMiB);
    SPW_EXPECT_OK(Arena::free(block));
  }).join();
  for (const CUstream stream : {device.stream(), CU_STREAM_PER_THREAD}) {
    void* block = must_allocate(*arena, 30 * kMiB, stream);
    device.touch(stream, block, 30 * kMiB);
    SPW_EXPECT_OK(Arena::free(block));
  }
  EXPECT_GE(arena->stats().host_waits, 1);
  EXPECT_EQ(device.reports(), "");
}

// An event that this thread records on its own default stream says nothing of the other's.
TEST(Streams, ALivingThreadsDefaultStreamIsReachedByAWaitForTheDeviceOnly) {
  Device device("capacity:64MiB,completion:run-ahead");
  const auto arena = device.arena({.limit_bytes = 40 * kMiB});
  std::promise<void> used;
  std::promise<void> ends;
  std::thread other([&] {
    device.driver->cuCtxSetCurrent(device.context);
    void* block = must_allocate(*arena, 30 * kMiB, CU_STREAM_PER_THREAD);
    device.touch(CU_STREAM_PER_THREAD, block, 30 * kMiB);
    SPW_EXPECT_OK(Arena::free(block));
    used.set_value();
    ends.get_future().wait();
  });
  used.get_future().wait();
  const CUstream stream = device.stream();
  void* block = must_allocate(*arena, 30 * kMiB, stream);
  device.touch(stream, block, 30 * kMiB);
  EXPECT_EQ(arena->stats().stream_waits, 0);
  EXPECT_GE(arena->stats().host_waits, 1);
  ends.set_value();
  other.join();
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(device.reports(), "");
}

TEST(Streams, AnotherThreadDoesNotWaitInPlaceOfADefaultStream) {
  Device device("capacity:64MiB,completion:run-ahead");
  const auto arena = device.arena({.limit_bytes = 40 * kMiB});
  const CUstream user = device.stream();
  const CUstream wants_back = device.stream();
  const CUstream lender = device.stream();
  const auto use = [&](CUstream stream) {
    void* block = must_allocate(*arena, 20 * kMiB, stream);
    device.touch(stream, block, 20 * kMiB);
    return block;
  };
  for (int i = 0; i < 3; ++i) SPW_EXPECT_OK(Arena::free(use(wants_back)));
  void* other = use(lender);
  void* block = use(CU_STREAM_PER_THREAD);
  SPW_EXPECT_OK(Arena::free(other));
  device.order(CU_STREAM_PER_THREAD, user);
  device.touch(user, block, 20 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(block, user));
  SPW_EXPECT_OK(Arena::free(block));
  // Its old place is held up by the pending free of a stream that only this thread can speak for.
  std::thread([&] {
    device.driver->cuCtxSetCurrent(device.context);
    use(wants_back);
  }).join();
  EXPECT_EQ(arena->stats().host_waits, 0);
  use(CU_STREAM_PER_THREAD);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

}  // namespace
}  // namespace spillway::test
