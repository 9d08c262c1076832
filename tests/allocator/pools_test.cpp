// Private pools: what is theirs stays theirs until they are released, and captures go on. The simulated
// device runs everything as late as it may, and its race detector reports any reuse that was not ordered.

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

const char* const kLate = "capacity:64MiB,completion:late";

TEST(Pools, APoolThatLendsSavesARequestFromFailing) {
  Device device(kLate);
  const auto arena = device.arena({.limit_bytes = 40 * kMiB});
  const CUstream pooled = device.stream();
  const CUstream other = device.stream();
  EXPECT_EQ(arena->set_pool_lends({1, 0}, true).code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream on) { return on == pooled; }));
  SPW_EXPECT_OK(arena->set_pool_lends({1, 0}, true));
  SPW_EXPECT_OK(arena->set_pool_lends({1, 0}, true));
  void* kept = must_allocate(*arena, 4 * kMiB, pooled);
  void* in_pool = must_allocate(*arena, 30 * kMiB, pooled);
  device.touch(pooled, in_pool, 30 * kMiB);
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  SPW_EXPECT_OK(Arena::free(in_pool));
  // Not before it is needed.
  void* first = must_allocate(*arena, 4 * kMiB, other);
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(38 * kMiB));
  void* second = must_allocate(*arena, 30 * kMiB, other);
  device.touch(other, second, 30 * kMiB);
  SPW_EXPECT_OK(arena->validate());
  // Opened again, it keeps what it has.
  SPW_EXPECT_OK(Arena::free(second));
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream on) { return on == pooled; }));
  in_pool = must_allocate(*arena, 30 * kMiB, pooled);
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  SPW_EXPECT_OK(arena->set_pool_lends({1, 0}, false));
  SPW_EXPECT_OK(Arena::free(in_pool));
  EXPECT_EQ(arena->allocate(30 * kMiB, other, &second).code(), SPW_ERROR_OUT_OF_MEMORY);
  for (void* block : {kept, first}) SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(device.reports(), "");
}

TEST(Pools, NothingLeavesAPoolBeforeItsRelease) {
  Device device;
  const auto arena = device.arena({.limit_bytes = 40 * kMiB});
  const CUstream stream = device.stream();
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream on) { return on == stream; }));
  void* in_pool = must_allocate(*arena, 30 * kMiB, stream);
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  SPW_EXPECT_OK(Arena::free(in_pool));
  void* other = nullptr;
  EXPECT_EQ(arena->allocate(30 * kMiB, stream, &other).code(), SPW_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(30 * kMiB));
  // The pool itself serves again.
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, nullptr));
  EXPECT_EQ(must_allocate(*arena, 30 * kMiB, stream), in_pool);
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  SPW_EXPECT_OK(Arena::free(in_pool));
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
  other = must_allocate(*arena, 30 * kMiB, stream);
  device.touch(stream, other, 30 * kMiB);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

// What a graph may be captured over waits for nothing when it is replayed, so a pool takes only what the host
// has waited for. A free that another stream held up was counted as used at the time of that wait.
TEST(Pools, APoolIsServedWithWhatAnotherHeapFreedWhileItWaited) {
  Device device("capacity:64MiB,completion:late");
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  const CUstream user = device.stream();
  void* large = must_allocate(*arena, 36 * kMiB, stream);
  void* between = must_allocate(*arena, 2 * kMiB, stream);
  void* used = must_allocate(*arena, 6 * kMiB, stream);
  void* last = must_allocate(*arena, 18 * kMiB, stream);
  for (void* block : {large, used}) device.touch(stream, block, 6 * kMiB);
  device.order(stream, user);
  device.touch(user, used, 6 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(used, user));
  for (void* block : {large, used}) SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream on) { return on == stream; }));
  void* pooled = must_allocate(*arena, 6 * kMiB, stream);
  device.touch(stream, pooled, 6 * kMiB);
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  SPW_EXPECT_OK(arena->validate());
  for (void* block : {between, last, pooled}) SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(device.reports(), "");
}

TEST(Pools, APoolIsServedWithWhatAnotherHeapHasNotUsedSinceAWait) {
  Device device("capacity:256MiB,completion:late");
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  const CUstream captured = device.stream();
  // What was used last is the hole that fits best, and far enough from the other.
  void* small = must_allocate(*arena, 8 * kMiB, stream);
  void* between = must_allocate(*arena, 128 * kMiB, stream);
  void* large = must_allocate(*arena, 110 * kMiB, stream);
  void* last = must_allocate(*arena, 2 * kMiB, stream);
  void* of_other = must_allocate(*arena, 2 * kMiB, captured);
  SPW_EXPECT_OK(Arena::free(large));
  void* refused = nullptr;
  EXPECT_EQ(arena->allocate(200 * kMiB, stream, &refused).code(), SPW_ERROR_OUT_OF_MEMORY);
  const int64_t waits = arena->stats().host_waits;
  EXPECT_GT(waits, 0);
  device.touch(stream, small, 8 * kMiB);
  SPW_EXPECT_OK(Arena::free(small));
  device.begin_capture(captured, CU_STREAM_CAPTURE_MODE_RELAXED);
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream on) { return on == stream; }));
  void* pooled = must_allocate(*arena, 12 * kMiB, stream);
  EXPECT_EQ(arena->stats().host_waits, waits);
  device.touch(stream, pooled, 12 * kMiB);
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  device.discard_capture(captured);
  SPW_EXPECT_OK(arena->validate());
  for (void* block : {between, last, of_other, pooled}) SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(device.reports(), "");
}

TEST(Pools, WhatAPoolHoldsIsCounted) {
  Device device;
  const auto arena = device.arena();
  const CUstream pooled = device.stream();
  const CUstream other = device.stream();
  const auto held = [&](PoolId id) {
    for (const auto& [pool, bytes] : arena->pool_bytes()) {
      if (pool == id) return std::vector<int64_t>{bytes.current, bytes.peak, bytes.allocated, bytes.freed};
    }
    return std::vector<int64_t>();
  };
  constexpr int64_t kPages = 2 * kMiB;
  void* outside = must_allocate(*arena, 8 * kMiB, pooled);
  EXPECT_EQ(held({1, 0}), std::vector<int64_t>());
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream on) { return on == pooled; }));
  void* in_pool = must_allocate(*arena, 6 * kMiB, pooled);
  void* small = must_allocate(*arena, 100, pooled);
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  EXPECT_EQ(held({1, 0}), (std::vector<int64_t>{4 * kPages, 4 * kPages, 4 * kPages, 0}));
  SPW_EXPECT_OK(arena->validate());
  for (void* block : {in_pool, small, outside}) SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(held({1, 0})[0], 4 * kPages);
  // The next pool of the stream gets the memory, once the first one is gone.
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
  EXPECT_EQ(held({1, 0}), (std::vector<int64_t>{0, 4 * kPages, 4 * kPages, 4 * kPages}));
  SPW_EXPECT_OK(arena->trim());
  SPW_EXPECT_OK(arena->begin_pool({2, 0}, [&](CUstream on) { return on == other; }));
  must_allocate(*arena, 2 * kMiB, other);
  SPW_EXPECT_OK(arena->end_pool({2, 0}));
  EXPECT_EQ(held({2, 0})[0], kPages);
  EXPECT_EQ(held({1, 0})[0], 0);
  arena->reset_accumulated();
  EXPECT_EQ(held({1, 0}), (std::vector<int64_t>{0, 4 * kPages, 0, 0}));
  arena->reset_peaks();
  EXPECT_EQ(held({1, 0}), std::vector<int64_t>());
  EXPECT_EQ(held({2, 0}), (std::vector<int64_t>{kPages, kPages, 0, 0}));
  SPW_EXPECT_OK(arena->validate());
}

TEST(Pools, APoolOpenedAgainIsProtectedAgain) {
  Device device;
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  for (int round = 0; round < 2; ++round) {
    SPW_EXPECT_OK(arena->begin_pool({1, 0}, nullptr));
    void* block = must_allocate(*arena, 20 * kMiB, stream);
    SPW_EXPECT_OK(arena->end_pool({1, 0}));
    SPW_EXPECT_OK(Arena::free(block));
    SPW_EXPECT_OK(arena->trim());
    EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(20 * kMiB));
    SPW_EXPECT_OK(arena->release_pool({1, 0}));
    SPW_EXPECT_OK(arena->trim());
    EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0);
  }
}

TEST(Pools, APoolRetainedAgainIsProtectedAgain) {
  Device device;
  const auto arena = device.arena();
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, nullptr));
  void* block = must_allocate(*arena, 20 * kMiB, device.stream());
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
  SPW_EXPECT_OK(arena->retain_pool({1, 0}));
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(20 * kMiB));
}

// A heap may serve one pool after another; the second keeps what it used itself.
TEST(Pools, APoolDoesNotKeepWhatAnotherLeft) {
  Device device("capacity:64MiB");
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  const auto open = [&](PoolId pool) {
    SPW_EXPECT_OK(arena->begin_pool(pool, [=](CUstream on) { return on == stream; }));
    void* block = must_allocate(*arena, 2 * kMiB, stream);
    SPW_EXPECT_OK(Arena::free(block));
    SPW_EXPECT_OK(arena->end_pool(pool));
  };
  const auto reserved = [&] { return arena->stats().reserved_bytes.all.current; };
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, nullptr));
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena, 40 * kMiB, stream)));
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
  EXPECT_TRUE(arena->is_quiet());
  ASSERT_EQ(device.driver->cuCtxSynchronize(), CUDA_SUCCESS);
  const CUstream other = device.stream();
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena, 40 * kMiB, other)));  // behind a wait for all
  open({2, 0});
  EXPECT_GE(reserved(), static_cast<int64_t>(40 * kMiB));
  void* block = must_allocate(*arena, 60 * kMiB, other);
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(reserved(), static_cast<int64_t>(2 * kMiB));
  open({2, 0});
  EXPECT_EQ(reserved(), static_cast<int64_t>(2 * kMiB));
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Pools, MismatchedCallsAreRefused) {
  Device device;
  const auto arena = device.arena();
  EXPECT_EQ(arena->begin_pool({}, nullptr).code(), SPW_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(arena->end_pool({1, 0}).code(), SPW_ERROR_INVALID_STATE);
  EXPECT_EQ(arena->release_pool({1, 0}).code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, nullptr));
  EXPECT_EQ(arena->begin_pool({1, 0}, nullptr).code(), SPW_ERROR_INVALID_STATE);
  EXPECT_EQ(arena->release_pool({1, 0}).code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
  EXPECT_EQ(arena->release_pool({1, 0}).code(), SPW_ERROR_INVALID_STATE);
}

TEST(Pools, WhenAPoolHasEndedItsFilterIsNotRunning) {
  Device device(kLate);
  const auto arena = device.arena();
  std::atomic<bool> inside{false};
  std::atomic<bool> leave{false};
  std::atomic<bool> left{false};
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream) {
    inside = true;
    while (!leave) std::this_thread::yield();
    left = true;
    return false;
  }));
  std::thread other([&] {
    device.driver->cuCtxSetCurrent(device.context);
    SPW_EXPECT_OK(Arena::free(must_allocate(*arena, kMiB, nullptr)));
  });
  while (!inside) std::this_thread::yield();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    leave = true;
  });
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  EXPECT_TRUE(left) << "what the filter uses is the program's again";
  later.join();
  other.join();
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
}

TEST(Pools, AFilterMayEndItsPool) {
  Device device(kLate);
  const auto arena = device.arena();
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream) {
    SPW_EXPECT_OK(arena->end_pool({1, 0}));
    return false;
  }));
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena, kMiB, nullptr)));
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
}

TEST(Pools, ACapturedStreamGetsNewPagesAndTheCaptureGoesOn) {
  Device device;
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream on) { return on == stream; }));
  device.begin_capture(stream);
  void* block = must_allocate(*arena, 20 * kMiB, stream);
  SPW_EXPECT_OK(Arena::free(block));
  void* same = must_allocate(*arena, 20 * kMiB, stream);
  EXPECT_EQ(same, block);
  void* with_user = must_allocate(*arena, 1 * kMiB, stream);
  SPW_EXPECT_OK(Arena::record_stream(with_user, nullptr));
  SPW_EXPECT_OK(Arena::free(with_user));
  EXPECT_EQ(arena->trim().code(), SPW_ERROR_INVALID_STATE);
  const CUgraph graph = device.end_capture(stream);
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  SPW_EXPECT_OK(Arena::free(same));
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0);
  SPW_EXPECT_OK(arena->validate());
  if (graph != nullptr) device.driver->cuGraphDestroy(graph);
}

TEST(Pools, AWaitForPendingFreesLeavesTheCaptureOfAnotherStreamAlone) {
  Device device("capacity:64MiB,completion:run-ahead");
  const auto arena = device.arena({.limit_bytes = 64 * kMiB});
  const CUstream owner = device.stream();
  const CUstream user = device.stream();
  const CUstream captured = device.stream();
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream on) { return on == owner; }));
  void* block = must_allocate(*arena, 60 * kMiB, owner);
  device.order(owner, user);
  device.touch(user, block, 60 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(block, user));
  SPW_EXPECT_OK(Arena::free(block));
  device.begin_capture(captured);
  block = must_allocate(*arena, 60 * kMiB, owner);
  if (device.simulated()) {
    EXPECT_EQ(arena->stats().host_waits, 1);
  }
  device.discard_capture(captured);
  device.touch(owner, block, 60 * kMiB);
  EXPECT_EQ(device.reports(), "");
}

TEST(Pools, ACapturedStreamTakesNothingFromOthersNorTheyFromIt) {
  Device device(kLate);
  const auto arena = device.arena({.limit_bytes = 40 * kMiB});
  const CUstream captured = device.stream();
  const CUstream other = device.stream();
  for (const CUstream stream : {captured, other}) {
    void* block = must_allocate(*arena, 20 * kMiB, stream);
    device.touch(stream, block, 20 * kMiB);
    SPW_EXPECT_OK(Arena::free(block));
  }
  device.begin_capture(captured);
  for (const CUstream stream : {captured, other}) {
    void* block = nullptr;
    EXPECT_EQ(arena->allocate(30 * kMiB, stream, &block).code(), SPW_ERROR_OUT_OF_MEMORY);
  }
  device.discard_capture(captured);
  void* block = must_allocate(*arena, 30 * kMiB, other);
  device.touch(other, block, 30 * kMiB);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

}  // namespace
}  // namespace spillway::test
