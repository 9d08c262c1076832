// Blocks that leave the process: an extent for each, counted once, freed in order, and never another's once
// exported.

#include <unistd.h>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr int64_t kExtent = 32 * kMiB;

class SharedBlocksTest : public testing::Test {
 protected:
  static void* must_share(Arena& arena, size_t bytes, CUstream stream) {
    void* pointer = nullptr;
    const Status status = arena.allocate_shareable(bytes, stream, &pointer);
    EXPECT_TRUE(status.ok()) << status.text();
    return pointer;
  }
  static void must_export(void* pointer) {
    Result<Exported> exported = Arena::export_block(pointer);
    ASSERT_TRUE(exported.ok()) << exported.status().text();
    close(exported->descriptor);
  }

  Device device_{"capacity:256MiB,completion:run-ahead"};
  std::unique_ptr<Arena> arena_ = device_.arena();
};

TEST_F(SharedBlocksTest, AreExtentsOfTheirOwnCountedOnce) {
  void* plain = must_allocate(*arena_, kMiB, nullptr);
  void* small = must_share(*arena_, 1000, nullptr);
  void* large = must_share(*arena_, 33 * kMiB, nullptr);
  EXPECT_EQ(reinterpret_cast<uint64_t>(small) % (2 * kMiB), 0u);
  DeviceStats stats = arena_->stats();
  EXPECT_EQ(stats.reserved_bytes.all.current, static_cast<int64_t>(2 * kMiB) + kExtent + 34 * int64_t{kMiB});
  EXPECT_EQ(stats.active_bytes.all.current, static_cast<int64_t>(kMiB) + kExtent + 34 * int64_t{kMiB});
  EXPECT_EQ(stats.requested_bytes.all.current, static_cast<int64_t>(kMiB + 1000 + 33 * kMiB));
  int64_t total = 0;
  for (const SegmentRow& segment : arena_->segments()) total += static_cast<int64_t>(segment.total_bytes);
  EXPECT_EQ(total, stats.reserved_bytes.all.current);
  SPW_EXPECT_OK(arena_->validate());
  for (void* block : {plain, small, large}) SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(Arena::free(small).code(), SPW_ERROR_INVALID_POINTER);
  SPW_EXPECT_OK(arena_->validate());
  SPW_EXPECT_OK(arena_->trim());
  stats = arena_->stats();
  EXPECT_EQ(stats.reserved_bytes.all.current, 0);
  EXPECT_EQ(stats.live_mappings, 0);
  SPW_EXPECT_OK(arena_->validate());
}

TEST_F(SharedBlocksTest, AreReusedForTheSameSizeBehindAllTheirStreams) {
  const CUstream owner = device_.stream();
  const CUstream user = device_.stream();
  const CUstream next = device_.stream();
  void* block = must_share(*arena_, kMiB, owner);
  device_.touch(owner, block, kExtent);
  device_.order(owner, user);
  const Gate gate = device_.hold(user);
  device_.touch(user, block, kExtent);
  SPW_EXPECT_OK(Arena::record_stream(block, user));
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(arena_->stats().pending_bytes, kExtent);
  EXPECT_EQ(must_share(*arena_, 2 * kMiB, next), block);
  device_.touch(next, block, kExtent);
  EXPECT_EQ(arena_->stats().host_waits, 0);
  SPW_EXPECT_OK(arena_->validate());
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(SharedBlocksTest, OfStreamsThatAreGoneWaitForTheDevice) {
  arena_ = device_.arena({.check_streams = true});
  CUstream owner = nullptr;
  ASSERT_EQ(device_.driver->cuStreamCreate(&owner, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  void* block = must_share(*arena_, kMiB, owner);
  device_.touch(owner, block, kExtent);
  ASSERT_EQ(device_.driver->cuStreamDestroy(owner), CUDA_SUCCESS);
  const CUstream next = device_.stream();
  SPW_EXPECT_OK(Arena::free(block));
  void* other = must_share(*arena_, kMiB, next);
  EXPECT_NE(other, block);
  device_.touch(next, other, kExtent);
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, kExtent);
  SPW_EXPECT_OK(arena_->validate());
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(SharedBlocksTest, OnceExportedGoBackToTheDriver) {
  void* block = must_share(*arena_, kMiB, nullptr);
  must_export(static_cast<char*>(block) + 4096);
  const Gate gate = device_.hold(nullptr);
  device_.touch(nullptr, block, kExtent);
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(Arena::export_block(block).status().code(), SPW_ERROR_INVALID_POINTER);
  void* other = must_share(*arena_, kMiB, nullptr);
  EXPECT_NE(other, block) << "another process may still look at it";
  gate.open();
  device_.driver->cuCtxSynchronize();
  SPW_EXPECT_OK(Arena::free(other));
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, kExtent) << "the exported one is gone";
  SPW_EXPECT_OK(arena_->validate());
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(SharedBlocksTest, OnceExportedServeNobodyEvenIfTheDriverDoesNotTakeThem) {
  if (!device_.simulated()) GTEST_SKIP() << "the driver must refuse";
  void* block = must_share(*arena_, kMiB, nullptr);
  must_export(block);
  // At the free, and when the next block is asked for.
  device_.inject_fault("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  device_.inject_fault("cuMemUnmap", 2, CUDA_ERROR_UNKNOWN);
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_NE(must_share(*arena_, kMiB, nullptr), block);
  device_.clear_faults();
  SPW_EXPECT_OK(arena_->validate());
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, kExtent);
}

TEST_F(SharedBlocksTest, StayWithinTheLimitAndGiveWay) {
  SPW_EXPECT_OK(arena_->set_limit(96 * kMiB));
  void* plain = must_allocate(*arena_, 60 * kMiB, nullptr);
  device_.touch(nullptr, plain, 60 * kMiB);
  void* block = must_share(*arena_, kMiB, nullptr);
  void* refused = &refused;
  EXPECT_EQ(arena_->allocate_shareable(kMiB, nullptr, &refused).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(refused, nullptr);
  EXPECT_EQ(arena_->allocate(8 * kMiB, nullptr, &refused).code(), SPW_ERROR_OUT_OF_MEMORY);
  // What is free of plain memory makes room for a shared block, and the reverse.
  SPW_EXPECT_OK(Arena::free(plain));
  void* second = must_share(*arena_, kMiB, nullptr);
  device_.touch(nullptr, second, kExtent);
  SPW_EXPECT_OK(Arena::free(second));
  SPW_EXPECT_OK(Arena::free(block));
  must_allocate(*arena_, 90 * kMiB, nullptr);
  EXPECT_LE(arena_->stats().reserved_bytes.all.peak, static_cast<int64_t>(96 * kMiB));
  SPW_EXPECT_OK(arena_->validate());
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(SharedBlocksTest, MistakesAreErrorsAndChangeNothing) {
  void* plain = must_allocate(*arena_, kMiB, nullptr);
  const Status refused = Arena::export_block(plain).take_status();
  EXPECT_EQ(refused.code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_NE(refused.text().find("spw_alloc_shareable"), std::string::npos);
  EXPECT_EQ(Arena::export_block(nullptr).status().code(), SPW_ERROR_INVALID_POINTER);
  void* block = must_share(*arena_, kMiB, nullptr);
  EXPECT_EQ(Arena::free(static_cast<char*>(block) + 512).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(Arena::close_import(block).code(), SPW_ERROR_INVALID_POINTER);
  void* out = nullptr;
  EXPECT_EQ(arena_->import_block(-1, kExtent, &out).code(), SPW_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(arena_->import_block(0, kExtent + 1, &out).code(), SPW_ERROR_INVALID_ARGUMENT);
  const int wrong = dup(0);
  if (wrong >= 0) {
    EXPECT_EQ(arena_->import_block(wrong, kExtent, &out).code(), SPW_ERROR_DRIVER);
    close(wrong);
  }
  void* none = &none;
  SPW_EXPECT_OK(arena_->allocate_shareable(0, nullptr, &none));
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(arena_->allocate_shareable(SIZE_MAX, nullptr, &none).code(), SPW_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(arena_->validate());
}

TEST_F(SharedBlocksTest, EveryRefusalOfTheDriverLeavesAllAsItWas) {
  if (!device_.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  for (const char* call : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    device_.inject_fault(call, 1, CUDA_ERROR_INVALID_VALUE);
    void* out = &out;
    EXPECT_EQ(arena_->allocate_shareable(kMiB, nullptr, &out).code(), SPW_ERROR_DRIVER) << call;
    device_.clear_faults();
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0) << call;
    EXPECT_EQ(device_.live_handles(), 0u) << call;
    EXPECT_EQ(device_.live_mappings(), 0u) << call;
    SPW_EXPECT_OK(arena_->validate());
  }
  // A process that is out of device memory gives back what it can and tries again.
  device_.inject_fault("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  must_share(*arena_, kMiB, nullptr);
  EXPECT_EQ(arena_->stats().num_alloc_retries, 1);
}

TEST_F(SharedBlocksTest, AnImportIsSharedMemoryAndCountsWhereItWasMade) {
  void* block = must_share(*arena_, kMiB, nullptr);
  Result<Exported> exported = Arena::export_block(static_cast<char*>(block) + 1024);
  ASSERT_TRUE(exported.ok()) << exported.status().text();
  EXPECT_EQ(exported->offset, 1024u);
  EXPECT_EQ(exported->bytes, static_cast<uint64_t>(kExtent));
  void* seen = nullptr;
  SPW_EXPECT_OK(arena_->import_block(exported->descriptor, exported->bytes, &seen));
  close(exported->descriptor);
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, kExtent);
  SPW_EXPECT_OK(arena_->validate());
  EXPECT_EQ(Arena::free(seen).code(), SPW_ERROR_INVALID_POINTER);
  EXPECT_EQ(Arena::export_block(seen).status().code(), SPW_ERROR_INVALID_POINTER);
  device_.touch(nullptr, seen, kExtent);
  SPW_EXPECT_OK(Arena::close_import(seen));
  EXPECT_EQ(Arena::close_import(seen).code(), SPW_ERROR_INVALID_POINTER);
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(SharedBlocksTest, EndNoCapture) {
  const CUstream owner = device_.stream();
  const CUstream captured = device_.stream();
  void* block = must_share(*arena_, kMiB, owner);
  Result<Exported> exported = Arena::export_block(must_share(*arena_, kMiB, owner));
  ASSERT_TRUE(exported.ok()) << exported.status().text();
  void* seen = nullptr;
  SPW_EXPECT_OK(arena_->import_block(exported->descriptor, exported->bytes, &seen));
  close(exported->descriptor);
  const int64_t held = arena_->stats().reserved_bytes.all.current;
  device_.touch(owner, block, kExtent);
  // The arena was never asked for memory on the stream that captures.
  const PoolId pool{1, 0};
  SPW_EXPECT_OK(arena_->begin_pool(pool, [=](CUstream on) { return on == captured; }));
  device_.begin_capture(captured);
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, held - kExtent);
  EXPECT_EQ(Arena::close_import(seen).code(), SPW_ERROR_INVALID_STATE);
  device_.discard_capture(captured);
  SPW_EXPECT_OK(arena_->end_pool(pool));
  device_.touch(captured, seen, kExtent);
  SPW_EXPECT_OK(Arena::close_import(seen));
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(SharedBlocksTest, TheEndOfAnArenaWaitsForThem) {
  const CUstream stream = device_.stream();
  void* block = must_share(*arena_, kMiB, stream);
  device_.touch(stream, block, kExtent);
  arena_.reset();
  device_.driver->cuCtxSynchronize();
  EXPECT_EQ(device_.reports(), "");
  if (device_.simulated()) {
    EXPECT_EQ(device_.live_mappings(), 0u);
  }
}

TEST_F(SharedBlocksTest, StayMappedAtTheEndOfAnArenaWhileSomethingCaptures) {
  void* block = must_share(*arena_, kMiB, nullptr);
  CUstream blocking = nullptr;
  ASSERT_EQ(device_.driver->cuStreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  device_.begin_capture(blocking);
  device_.touch(blocking, block, kExtent);
  arena_.reset();
  const CUgraph graph = device_.end_capture(blocking);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(device_.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
  device_.driver->cuGraphDestroy(graph);
  EXPECT_EQ(device_.graph_launch(exec, blocking), CUDA_SUCCESS);
  EXPECT_EQ(device_.graph_exec_destroy(exec), CUDA_SUCCESS);
  device_.driver->cuCtxSynchronize();
  EXPECT_EQ(device_.reports(), "");
  device_.driver->cuStreamDestroy(blocking);
}

TEST(SharedBlocks, AreUnsupportedOnMigInstancesAndWithoutVirtualMemory) {
  for (const char* configuration : {"capacity:256MiB,mig:1", "capacity:256MiB,vmm:off"}) {
    Device device(configuration);
    if (!device.simulated()) GTEST_SKIP() << "needs a MIG instance";
    const auto arena = device.arena();
    void* out = &out;
    EXPECT_EQ(arena->allocate_shareable(kMiB, nullptr, &out).code(), SPW_ERROR_UNSUPPORTED);
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(arena->import_block(0, kExtent, &out).code(), SPW_ERROR_UNSUPPORTED);
  }
}

}  // namespace
}  // namespace spillway::test
