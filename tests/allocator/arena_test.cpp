// The arena as its callers see it, on one stream.

#include <set>
#include <thread>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

TEST(Arena, SizeZeroIsNullAndFreeOfNullIsFine) {
  Device device;
  const auto arena = device.arena();
  void* pointer = &pointer;
  SPW_EXPECT_OK(arena->allocate(0, nullptr, &pointer));
  EXPECT_EQ(pointer, nullptr);
  SPW_EXPECT_OK(Arena::free(nullptr));
  SPW_EXPECT_OK(arena->validate());
}

TEST(Arena, BlocksAreAlignedDisjointAndCounted) {
  Device device;
  const auto arena = device.arena();
  std::vector<std::pair<uint64_t, size_t>> blocks;
  int64_t requested = 0;
  for (const size_t bytes : {size_t{1}, size_t{512}, size_t{513}, size_t{16384}, size_t{16385}, size_t{65536},
                             kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 7 * kMiB + 12345, 40 * kMiB}) {
    void* pointer = must_allocate(*arena, bytes, nullptr);
    const auto va = reinterpret_cast<uint64_t>(pointer);
    EXPECT_EQ(va % 512, 0u);
    for (const auto& [other, size] : blocks) EXPECT_TRUE(va + bytes <= other || other + size <= va);
    blocks.emplace_back(va, bytes);
    device.touch(nullptr, pointer, bytes);
    requested += static_cast<int64_t>(bytes);
    SPW_EXPECT_OK(arena->validate());
  }
  const DeviceStats stats = arena->stats();
  EXPECT_EQ(stats.requested_bytes.all.current, requested);
  EXPECT_EQ(stats.allocation.all.current, static_cast<int64_t>(blocks.size()));
  EXPECT_GE(stats.active_bytes.all.current, requested);
  EXPECT_EQ(
      stats.reserved_bytes.all.current,
      stats.active_bytes.all.current + stats.inactive_split_bytes.all.current + stats.cached_free_bytes);
  for (const auto& [va, bytes] : blocks) SPW_EXPECT_OK(Arena::free(reinterpret_cast<void*>(va)));
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(arena->stats().active_bytes.all.current, 0);
  EXPECT_EQ(device.reports(), "");
}

TEST(Arena, SlabsFillAPageToItsEnd) {
  Device device;
  const auto arena = device.arena();
  for (int i = 0; i < 2 * 32 * 4; ++i) must_allocate(*arena, 16 << 10, nullptr);
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, 2 * int64_t{2 << 20});
}

TEST(Arena, NeighboursShareTheirEdgePages) {
  Device device;
  const auto arena = device.arena();
  // Ten blocks of 2.5 pages fill 25 pages exactly.
  for (int i = 0; i < 10; ++i) must_allocate(*arena, 5 * kMiB, nullptr);
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(50 * kMiB));
}

TEST(Arena, WithoutSharedEdgesEveryLargeBlockHasItsOwnPages) {
  Device device;
  const auto arena = device.arena({.share_edges = false});
  for (int i = 0; i < 10; ++i) must_allocate(*arena, 5 * kMiB, nullptr);
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(60 * kMiB));
  SPW_EXPECT_OK(arena->validate());
}

TEST(Arena, ScatteredFreePagesServeALargeBlockThroughAView) {
  Device device;
  const auto arena = device.arena();
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(must_allocate(*arena, 4 * kMiB, nullptr));
  const int64_t before = reserved(*arena);
  for (size_t i = 0; i < blocks.size(); i += 2) SPW_EXPECT_OK(Arena::free(blocks[i]));
  void* large = must_allocate(*arena, 80 * kMiB, nullptr);
  EXPECT_EQ(reserved(*arena), before);
  EXPECT_EQ(arena->stats().rungs.view.hits, 1);
  device.touch(nullptr, large, 80 * kMiB);
  SPW_EXPECT_OK(arena->validate());
  SPW_EXPECT_OK(Arena::free(large));
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Arena, ARepeatedProgramMakesNoDriverCallAfterItsFirstPass) {
  Device device;
  if (!device.simulated()) GTEST_SKIP() << "a real driver does not count its calls";
  const auto arena = device.arena();
  std::vector<void*> kept;
  uint64_t calls_after_two = 0;
  for (int pass = 0; pass < 6; ++pass) {
    if (pass == 2) calls_after_two = device.total_calls();
    for (size_t i = 1; i < 60; ++i) {
      kept.push_back(must_allocate(*arena, (i * i * 7919) % (9 * kMiB) + 1, nullptr));
      if (i % 3 == 0) {
        SPW_EXPECT_OK(Arena::free(kept[kept.size() / 2]));
        kept.erase(kept.begin() + static_cast<ptrdiff_t>(kept.size() / 2));
      }
    }
    for (void* pointer : kept) SPW_EXPECT_OK(Arena::free(pointer));
    kept.clear();
  }
  EXPECT_EQ(device.total_calls(), calls_after_two);
  SPW_EXPECT_OK(arena->validate());
}

TEST(Arena, WrongFreesAreRefusedAndChangeNothing) {
  Device device;
  const auto arena = device.arena();
  auto* small = static_cast<char*>(must_allocate(*arena, 1000, nullptr));
  auto* large = static_cast<char*>(must_allocate(*arena, 3 * kMiB, nullptr));
  int on_the_host = 0;
  const DeviceStats before = arena->stats();
  for (void* wrong :
       {static_cast<void*>(&on_the_host), static_cast<void*>(small + 512), static_cast<void*>(large + 512),
        static_cast<void*>(large + 2 * kMiB), reinterpret_cast<void*>(~uintptr_t{0})}) {
    EXPECT_EQ(Arena::free(wrong).code(), SPW_ERROR_INVALID_POINTER);
    EXPECT_EQ(Arena::record_stream(wrong, nullptr).code(), SPW_ERROR_INVALID_POINTER);
  }
  EXPECT_EQ(arena->stats().active_bytes.all.current, before.active_bytes.all.current);
  SPW_EXPECT_OK(Arena::free(small));
  SPW_EXPECT_OK(Arena::free(large));
  EXPECT_EQ(Arena::free(small).code(), SPW_ERROR_INVALID_POINTER);
  const Status twice = Arena::free(large);
  EXPECT_EQ(twice.code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_NE(twice.text().find("no live block"), std::string::npos) << twice.text();
  SPW_EXPECT_OK(arena->validate());
}

TEST(Arena, AbsurdSizesAreOutOfMemoryAndChangeNothing) {
  Device device("capacity:64MiB");
  const auto arena = device.arena();
  void* pointer = nullptr;
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 511, size_t{1} << 62, size_t{1} << 46, size_t{65} << 20}) {
    const Status status = arena->allocate(bytes, nullptr, &pointer);
    EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY) << bytes << ": " << status.text();
    EXPECT_NE(status.text().find("iB ("), std::string::npos) << status.text();
    EXPECT_NE(status.text().find("\n  next: "), std::string::npos) << status.text();
    EXPECT_EQ(pointer, nullptr);
    SPW_EXPECT_OK(arena->validate());
  }
  EXPECT_EQ(arena->stats().num_ooms, 5);
  if (device.simulated()) {
    SPW_EXPECT_OK(Arena::free(must_allocate(*arena, 64 * kMiB, nullptr)));
  }
}

TEST(Arena, ADeviceThatDoesNotExistIsNamed) {
  Device device;
  const auto arena = Arena::create(device.driver, 99, {});
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.status().code(), SPW_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(arena.status().text().find("99"), std::string::npos);
}

TEST(Arena, TheLimitHoldsAndCanBeMoved) {
  Device device;
  const auto arena = device.arena({.limit_bytes = 16 * kMiB});
  void* first = must_allocate(*arena, 16 * kMiB, nullptr);
  void* second = nullptr;
  EXPECT_EQ(arena->allocate(2 * kMiB, nullptr, &second).code(), SPW_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(arena->set_limit(18 * kMiB));
  second = must_allocate(*arena, 2 * kMiB, nullptr);
  SPW_EXPECT_OK(arena->set_limit(4 * kMiB));
  SPW_EXPECT_OK(Arena::free(first));
  EXPECT_EQ(arena->allocate(4 * kMiB, nullptr, &first).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(4 * kMiB));
  must_allocate(*arena, 2 * kMiB, nullptr);
  EXPECT_EQ(arena->stats().num_ooms, 2);
  SPW_EXPECT_OK(arena->validate());
}

TEST(Arena, TrimGivesBackEverythingThatIsFree) {
  Device device;
  const auto arena = device.arena();
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(must_allocate(*arena, 4 * kMiB, nullptr));
  for (size_t i = 0; i < blocks.size(); i += 2) SPW_EXPECT_OK(Arena::free(blocks[i]));
  void* view = must_allocate(*arena, 30 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(view));
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(40 * kMiB));
  SPW_EXPECT_OK(arena->validate());
  for (size_t i = 1; i < blocks.size(); i += 2) SPW_EXPECT_OK(Arena::free(blocks[i]));
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(reserved(*arena), 0);
  if (device.simulated()) {
    EXPECT_EQ(device.live_handles(), 0u);
    EXPECT_EQ(device.live_mappings(), 0u);
  }
  void* again = must_allocate(*arena, 30 * kMiB, nullptr);
  device.touch(nullptr, again, 30 * kMiB);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Arena, ATrimUnmapsARunOfPagesInOneCall) {
  Device device;
  if (!device.simulated()) GTEST_SKIP() << "a real driver does not count its calls";
  const auto arena = device.arena();
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(must_allocate(*arena, 20 * kMiB, nullptr));
  // A view, over pages that lie apart.
  for (const size_t i : {1u, 3u, 5u}) SPW_EXPECT_OK(Arena::free(blocks[i]));
  void* view = must_allocate(*arena, 60 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(view));
  SPW_EXPECT_OK(Arena::free(blocks[8]));
  const uint64_t unmapped = device.calls("cuMemUnmap");
  SPW_EXPECT_OK(arena->trim());
  // The view, and four runs at home.
  EXPECT_EQ(device.calls("cuMemUnmap") - unmapped, 5u);
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(120 * kMiB));
  SPW_EXPECT_OK(arena->validate());
  for (const size_t i : {0u, 2u, 4u, 6u, 7u, 9u}) {
    device.touch(nullptr, blocks[i], 20 * kMiB);
    SPW_EXPECT_OK(Arena::free(blocks[i]));
  }
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(device.live_handles(), 0u);
  EXPECT_EQ(device.live_mappings(), 0u);
  EXPECT_EQ(device.reports(), "");
}

TEST(Arena, OnceItHasSettledWhatIsFreeServesEveryStreamWithoutAWait) {
  Device device("capacity:64MiB,completion:run-ahead");
  const auto arena = device.arena();
  const CUstream first = device.stream();
  const CUstream second = device.stream();
  void* block = must_allocate(*arena, 60 * kMiB, first);
  device.touch(first, block, 60 * kMiB);
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena->settle());
  EXPECT_EQ(reserved(*arena), static_cast<int64_t>(60 * kMiB));
  const int64_t waits = arena->stats().host_waits;
  // A capture can wait for nobody.
  device.begin_capture(second);
  SPW_EXPECT_OK(arena->begin_pool({1, 0}, [&](CUstream on) { return on == second; }));
  void* taken = must_allocate(*arena, 60 * kMiB, second);
  device.touch(second, taken, 60 * kMiB);
  SPW_EXPECT_OK(arena->end_pool({1, 0}));
  device.discard_capture(second);
  EXPECT_EQ(arena->stats().host_waits, waits);
  EXPECT_EQ(device.reports(), "");
  SPW_EXPECT_OK(Arena::free(taken));
  SPW_EXPECT_OK(arena->release_pool({1, 0}));
  // Beyond a limit it goes back.
  SPW_EXPECT_OK(arena->set_limit(20 * kMiB));
  SPW_EXPECT_OK(arena->settle());
  EXPECT_LE(reserved(*arena), static_cast<int64_t>(20 * kMiB));
  SPW_EXPECT_OK(arena->validate());
}

TEST(Arena, WithoutVmmWhatSettlesIsTrimmedSinceSegmentsCannotBeJoined) {
  Device device("capacity:256MiB,vmm:off");
  const auto arena = device.arena();
  for (int i = 0; i < 4; ++i) SPW_EXPECT_OK(Arena::free(must_allocate(*arena, 20 * kMiB, nullptr)));
  SPW_EXPECT_OK(arena->settle());
  EXPECT_EQ(reserved(*arena), 0);
}

TEST(Arena, NetworkCardsMayReachItsMemoryWhereTheDeviceSaysSo) {
  Device device;
  Result<DeviceProperties> properties = query_device(*device.driver, 0);
  ASSERT_TRUE(properties.ok());
  const auto arena = device.arena();
  void* block = must_allocate(*arena, 20 * kMiB, nullptr);
  int capable = -1;
  const auto address = reinterpret_cast<CUdeviceptr>(block);
  EXPECT_EQ(device.driver->cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                                                 address),
            CUDA_SUCCESS);
  EXPECT_EQ(capable, properties->rdma_vmm == 1 ? 1 : 0);
}

TEST(Arena, EverythingGoesBackWithTheArena) {
  Device device;
  if (!device.simulated()) GTEST_SKIP() << "a real driver does not count its handles";
  {
    const auto arena = device.arena();
    for (int i = 0; i < 10; ++i) must_allocate(*arena, 3 * kMiB, nullptr);
  }
  EXPECT_EQ(device.live_handles(), 0u);
  EXPECT_EQ(device.live_mappings(), 0u);
}

TEST(Arena, WithoutVmmSegmentsServe) {
  for (const char* configuration : {"capacity:256MiB,vmm:off", "capacity:256MiB"}) {
    Device device(configuration);
    const auto arena = device.arena({.use_vmm = false});
    std::vector<void*> blocks;
    for (int i = 0; i < 30; ++i) blocks.push_back(must_allocate(*arena, 5 * kMiB, nullptr));
    for (void* block : blocks) {
      device.touch(nullptr, block, 5 * kMiB);
      SPW_EXPECT_OK(Arena::free(block));
    }
    SPW_EXPECT_OK(arena->validate());
    // Nothing contiguous is that large: the empty segments are given back first.
    void* large = must_allocate(*arena, 200 * kMiB, nullptr);
    device.touch(nullptr, large, 200 * kMiB);
    SPW_EXPECT_OK(arena->validate());
    SPW_EXPECT_OK(Arena::free(large));
    SPW_EXPECT_OK(arena->trim());
    EXPECT_EQ(reserved(*arena), 0);
    EXPECT_EQ(device.reports(), "");
  }
}

// A program without VMM may run for months: what a segment took of the tables must serve the next one.
TEST(Arena, WithoutVmmSegmentsMayComeAndGoForever) {
  Device device("capacity:64MiB,vmm:off,backing:none");
  const auto arena = device.arena({.use_vmm = false});
  for (int i = 0; i < 300; ++i) {
    const size_t bytes = static_cast<size_t>(i % 7 + 1) * 4 * kMiB + 512;
    void* first = must_allocate(*arena, bytes, nullptr);
    void* second = must_allocate(*arena, 9 * kMiB, nullptr);
    ASSERT_TRUE(first != nullptr && second != nullptr) << i;
    device.touch(nullptr, first, bytes);
    device.touch(nullptr, second, 9 * kMiB);
    SPW_EXPECT_OK(Arena::free(i % 2 == 0 ? first : second));
    if (i % 3 == 0) SPW_EXPECT_OK(arena->trim());
    SPW_EXPECT_OK(Arena::free(i % 2 == 0 ? second : first));
    if (i % 5 == 0) SPW_EXPECT_OK(arena->trim());
    if (i % 50 == 0) SPW_EXPECT_OK(arena->validate());
  }
  EXPECT_EQ(device.reports(), "");
}

// Until the block's end: the next one at the same address was allocated somewhere else.
TEST(Arena, BlocksKeepTheStacksThatWereNoted) {
  Device device;
  const auto arena = device.arena();
  const auto stack_at = [&](const void* block) {
    for (const SegmentRow& segment : arena->segments()) {
      for (const BlockRow& row : segment.blocks) {
        if (row.address == reinterpret_cast<uint64_t>(block)) return row.stack;
      }
    }
    return UINT32_MAX;
  };
  void* const large = must_allocate(*arena, 5 * kMiB, nullptr);
  void* const small = must_allocate(*arena, 700, nullptr);
  EXPECT_EQ(stack_at(large), 0u);
  Arena::note_stack(large, 7);
  Arena::note_stack(small, 8);
  const int elsewhere = 0;
  Arena::note_stack(&elsewhere, 9);
  EXPECT_EQ(stack_at(large), 7u);
  EXPECT_EQ(stack_at(small), 0u);
  SPW_EXPECT_OK(Arena::free(large));
  ASSERT_EQ(must_allocate(*arena, 5 * kMiB, nullptr), large);
  EXPECT_EQ(stack_at(large), 0u);
}

TEST(Arena, SegmentsAddUpToReserved) {
  Device device;
  const auto arena = device.arena();
  std::vector<void*> blocks;
  for (size_t i = 1; i < 100; ++i)
    blocks.push_back(must_allocate(*arena, i * 37'123 % (6 * kMiB) + 1, nullptr));
  for (size_t i = 0; i < blocks.size(); i += 3) SPW_EXPECT_OK(Arena::free(blocks[i]));
  must_allocate(*arena, 33 * kMiB, nullptr);
  uint64_t total = 0;
  uint64_t active = 0;
  uint64_t requested = 0;
  for (const SegmentRow& segment : arena->segments()) {
    uint64_t end = segment.address;
    for (const BlockRow& block : segment.blocks) {
      EXPECT_EQ(block.address, end);
      end += block.bytes;
    }
    EXPECT_EQ(end, segment.address + segment.total_bytes);
    total += segment.total_bytes;
    active += segment.active_bytes;
    requested += segment.requested_bytes;
  }
  const DeviceStats stats = arena->stats();
  EXPECT_EQ(static_cast<int64_t>(total), stats.reserved_bytes.all.current);
  EXPECT_EQ(static_cast<int64_t>(active), stats.active_bytes.all.current);
  EXPECT_EQ(static_cast<int64_t>(requested), stats.requested_bytes.all.current);
}

TEST(Arena, ThreadsOnOneStreamAndOnTheirOwn) {
  Device device;
  const auto arena = device.arena();
  std::vector<CUstream> streams;
  for (int i = 0; i < 2; ++i) streams.push_back(device.stream());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      device.driver->cuCtxSetCurrent(device.context);
      std::vector<void*> mine;
      for (size_t i = 0; i < 400; ++i) {
        void* pointer = nullptr;
        const Status status =
            arena->allocate((i * 7919 + t * 104729) % (3 * kMiB) + 1, streams[t % 2], &pointer);
        ASSERT_TRUE(status.ok()) << status.text();
        mine.push_back(pointer);
        if (mine.size() > 20) {
          const size_t victim = (i * 31) % mine.size();
          ASSERT_TRUE(Arena::free(mine[victim]).ok());
          mine.erase(mine.begin() + static_cast<ptrdiff_t>(victim));
        }
      }
      for (void* pointer : mine) ASSERT_TRUE(Arena::free(pointer).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(arena->stats().active_bytes.all.current, 0);
}

// A program that repeats itself may be "idle" and "busy" in turn: what its passes find is as it was.
TEST(Arena, WhatWentForAWhileIsTakenBackSoThatAPassNeedsNoDriver) {
  Device device;
  if (!device.simulated()) GTEST_SKIP() << "counts the simulated driver's calls";
  const auto arena = device.arena();
  const CUstream streams[] = {device.stream(), device.stream()};
  const auto pass = [&] {
    std::vector<void*> blocks;
    for (int i = 0; i < 40; ++i) {
      const size_t bytes = size_t(1 + i * 7 % 11) << 20;
      blocks.push_back(must_allocate(*arena, bytes, streams[i % 2]));
      device.touch(streams[i % 2], blocks.back(), bytes);
      if (i % 3 == 2) {
        SPW_EXPECT_OK(Arena::free(blocks[blocks.size() - 2]));
        blocks.erase(blocks.end() - 2);
      }
    }
    for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
    device.driver->cuCtxSynchronize();
  };
  const auto calls_of = [&](const auto& work) {
    const uint64_t before = device.total_calls();
    work();
    return device.total_calls() - before;
  };
  for (int i = 0; i < 4; ++i) pass();
  const uint64_t settled = calls_of(pass);
  const int64_t held = arena->stats().reserved_bytes.all.current;

  SPW_EXPECT_OK(arena->trim_for_now());
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0);
  const uint64_t without = calls_of(pass);
  EXPECT_GT(without, settled + static_cast<uint64_t>(held) / kPageBytes);

  const int64_t held_again = arena->stats().reserved_bytes.all.current;
  SPW_EXPECT_OK(arena->trim_for_now());
  EXPECT_EQ(arena->take_back(), static_cast<uint64_t>(held_again));
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, held_again);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_LT(calls_of(pass), without / 3);
  EXPECT_EQ(arena->take_back(), 0u);  // once

  // No more than the limit leaves, nothing that others took meanwhile, and not what an ordinary trim gave.
  SPW_EXPECT_OK(arena->trim_for_now());
  SPW_EXPECT_OK(arena->set_limit(20 << 20));
  EXPECT_EQ(arena->take_back(), uint64_t{20} << 20);
  SPW_EXPECT_OK(arena->set_limit(UINT64_MAX));
  SPW_EXPECT_OK(arena->trim_for_now());
  pass();
  arena->take_back();
  EXPECT_LE(arena->stats().reserved_bytes.all.current, held + (int64_t{20} << 20));
  SPW_EXPECT_OK(arena->validate());
  SPW_EXPECT_OK(arena->trim());
  EXPECT_EQ(arena->take_back(), 0u);
  SPW_EXPECT_OK(arena->trim_for_now());
  device.inject_fault("cuMemCreate", 3, CUDA_ERROR_OUT_OF_MEMORY);
  arena->take_back();
  device.clear_faults();
  SPW_EXPECT_OK(arena->validate());
  pass();
  EXPECT_EQ(device.reports(), "");
}

}  // namespace
}  // namespace spillway::test
