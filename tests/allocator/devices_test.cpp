// Several devices in one process: blocks and frees, whichever context is current, and access from peers. The
// race detector reports work of a device on memory that it was given no access to.

#include "allocator/allocator.h"
#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

const char* const kTwo = "capacity:64MiB,completion:run-ahead,devices:2";

class Devices : public testing::Test {
 protected:
  explicit Devices(const char* configuration = kTwo) : device_(configuration) {
    if (!device_.simulated()) return;
    contexts_[0] = device_.context;
    EXPECT_EQ(device_.driver->cuDevicePrimaryCtxRetain(&contexts_[1], 1), CUDA_SUCCESS);
  }
  ~Devices() override {
    if (!device_.simulated()) return;
    enter(1);
    device_.driver->cuCtxSynchronize();
    enter(0);
    device_.driver->cuDevicePrimaryCtxRelease(1);
  }
  void SetUp() override {
    if (!device_.simulated()) GTEST_SKIP() << "needs two devices that are peers";
  }
  void enter(size_t device) const {
    EXPECT_EQ(device_.driver->cuCtxSetCurrent(contexts_[device]), CUDA_SUCCESS);
  }
  std::unique_ptr<Arena> arena_of(int device, const ArenaOptions& options = {}) const {
    Result<std::unique_ptr<Arena>> arena = Arena::create(device_.driver, device, options);
    if (!arena.ok()) throw std::runtime_error(arena.status().text());
    return std::move(arena.value());
  }
  // Work of device 1 on the range, after all that the host has enqueued so far.
  void touch_from_peer(void* pointer, size_t bytes) const {
    device_.driver->cuCtxSynchronize();
    enter(1);
    device_.touch(nullptr, pointer, bytes);
    device_.driver->cuCtxSynchronize();
    enter(0);
  }
  bool peer_has_access(void* pointer) const {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = 1;
    unsigned long long flags = 0;
    EXPECT_EQ(device_.driver->cuMemGetAccess(&flags, &location, reinterpret_cast<CUdeviceptr>(pointer)),
              CUDA_SUCCESS);
    return flags != 0;
  }

  Device device_;
  CUcontext contexts_[2] = {};
};

TEST_F(Devices, BlocksOfSeveralDevicesAreFreedFromAnyContext) {
  ArenaOptions options;
  Result<std::unique_ptr<Allocator>> made = Allocator::create(device_.driver, options);
  ASSERT_TRUE(made.ok());
  Allocator& allocator = *made.value();
  std::vector<void*> blocks;
  for (int round = 0; round < 20; ++round) {
    for (const int device : {0, 1}) {
      enter(static_cast<size_t>(round % 2));  // of the other device every second time
      void* block =
          must_allocate(*allocator.arena(device).value(), kMiB + static_cast<size_t>(round) * 512, nullptr);
      enter(static_cast<size_t>(device));
      device_.touch(nullptr, block, kMiB);
      blocks.push_back(block);
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    enter(i / 2 % 2);
    SPW_EXPECT_OK(allocator.free(blocks[i]));
  }
  for (const int device : {0, 1}) {
    Arena& arena = *allocator.existing(device);
    EXPECT_EQ(arena.stats().allocated_bytes.all.current, 0);
    EXPECT_EQ(arena.stats().allocation.all.allocated, 20);
    enter(static_cast<size_t>(1 - device));
    SPW_EXPECT_OK(arena.trim());
    SPW_EXPECT_OK(arena.validate());
    EXPECT_EQ(arena.stats().reserved_bytes.all.current, 0);
    CUcontext current = nullptr;
    device_.driver->cuCtxGetCurrent(&current);
    EXPECT_EQ(current, contexts_[1 - device]) << "the program's context must be as it was";
  }
  enter(0);
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(Devices, APeerReachesWhatIsThereAndWhatComes) {
  const auto arena = arena_of(0);
  // Scattered pages, so that the second large block lies in an aliasing view.
  std::vector<void*> pages;
  for (int i = 0; i < 20; ++i) pages.push_back(must_allocate(*arena, 2 * kMiB, nullptr));
  for (size_t i = 0; i < pages.size(); i += 2) SPW_EXPECT_OK(Arena::free(pages[i]));
  void* pieced = must_allocate(*arena, 16 * kMiB, nullptr);
  EXPECT_LE(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(40 * kMiB));
  EXPECT_GT(arena->stats().live_mappings, 20) << "this must be an aliasing view";

  touch_from_peer(pages[1], 2 * kMiB);
  EXPECT_NE(device_.reports().find("use without access"), std::string::npos);
  const size_t reports = device_.report_count();
  SPW_EXPECT_OK(arena->enable_peer(1));
  touch_from_peer(pages[1], 2 * kMiB);
  touch_from_peer(pieced, 16 * kMiB);
  touch_from_peer(must_allocate(*arena, 10 * kMiB, nullptr), 10 * kMiB);
  for (size_t i = 1; i < pages.size(); i += 2) SPW_EXPECT_OK(Arena::free(pages[i]));
  touch_from_peer(must_allocate(*arena, 18 * kMiB, nullptr), 18 * kMiB);
  EXPECT_EQ(device_.report_count(), reports);

  const uint64_t calls = device_.calls("cuMemSetAccess");
  SPW_EXPECT_OK(arena->enable_peer(1));
  EXPECT_EQ(device_.calls("cuMemSetAccess"), calls);
  SPW_EXPECT_OK(arena->validate());
}

TEST_F(Devices, APeerThatComesWhileAPoolIsAwayReachesItOnceItIsBack) {
  constexpr PoolId kPool{0, 7};
  const auto arena = arena_of(0);
  SPW_EXPECT_OK(arena->retain_pool(kPool));
  SPW_EXPECT_OK(arena->make_pool_movable(kPool, [](const PageRange&) {}));
  SPW_EXPECT_OK(arena->begin_pool(kPool, nullptr));
  std::vector<void*> pages;
  for (int i = 0; i < 8; ++i) pages.push_back(must_allocate(*arena, 2 * kMiB, nullptr));
  for (size_t i = 0; i < pages.size(); i += 2) SPW_EXPECT_OK(Arena::free(pages[i]));
  void* viewed = must_allocate(*arena, 8 * kMiB, nullptr);
  SPW_EXPECT_OK(arena->end_pool(kPool));
  void* own = must_allocate(*arena, 4 * kMiB, nullptr);
  SPW_EXPECT_OK(arena->move_pool_out(kPool, [](const std::vector<PageRange>&) { return Status(); }));
  EXPECT_TRUE(arena->pool_is_away(kPool));
  SPW_EXPECT_OK(arena->enable_peer(1));
  EXPECT_TRUE(peer_has_access(own));
  SPW_EXPECT_OK(arena->bring_pool_back(kPool, [](const std::vector<PageRange>&, bool*) { return Status(); }));
  EXPECT_FALSE(arena->pool_is_away(kPool));
  touch_from_peer(pages[1], 2 * kMiB);
  touch_from_peer(viewed, 8 * kMiB);
  EXPECT_EQ(device_.reports(), "");
  SPW_EXPECT_OK(arena->validate());
}

TEST_F(Devices, APeerThatIsRefusedHalfwayHasNoAccess) {
  const auto arena = arena_of(0);
  std::vector<void*> pages;
  for (int i = 0; i < 20; ++i) pages.push_back(must_allocate(*arena, 2 * kMiB, nullptr));
  for (size_t i = 0; i < pages.size(); i += 2) SPW_EXPECT_OK(Arena::free(pages[i]));
  void* pieced = must_allocate(*arena, 16 * kMiB, nullptr);
  for (const uint64_t nth : {uint64_t{1}, uint64_t{2}}) {
    device_.inject_fault("cuMemSetAccess", nth, CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(arena->enable_peer(1).code(), SPW_ERROR_DRIVER);
    device_.clear_faults();
    EXPECT_FALSE(peer_has_access(pages[1]));
    EXPECT_FALSE(peer_has_access(pieced));
    EXPECT_FALSE(peer_has_access(must_allocate(*arena, 4 * kMiB, nullptr)));
  }
  SPW_EXPECT_OK(arena->enable_peer(1));
  EXPECT_TRUE(peer_has_access(pages[1]));
  EXPECT_TRUE(peer_has_access(pieced));
  SPW_EXPECT_OK(arena->validate());
}

TEST_F(Devices, WithoutVirtualMemoryThePeersContextIsAsked) {
  ArenaOptions options;
  options.use_vmm = false;
  const auto arena = arena_of(0, options);
  void* block = must_allocate(*arena, 20 * kMiB, nullptr);
  SPW_EXPECT_OK(arena->enable_peer(1));
  SPW_EXPECT_OK(arena->enable_peer(1));
  touch_from_peer(block, 20 * kMiB);
  touch_from_peer(must_allocate(*arena, 20 * kMiB, nullptr), 20 * kMiB);
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(Devices, WhatIsNoPeerIsRefused) {
  const auto arena = arena_of(0);
  EXPECT_EQ(arena->enable_peer(0).code(), SPW_ERROR_INVALID_ARGUMENT);
  for (const int none : {-1, 2, 64}) EXPECT_EQ(arena->enable_peer(none).code(), SPW_ERROR_INVALID_ARGUMENT);
}

TEST_F(Devices, AnotherContextOfTheDeviceIsRefused) {
  const auto arena = arena_of(0);
  void* block = must_allocate(*arena, kMiB, nullptr);
  const auto create =
      reinterpret_cast<CUresult (*)(CUcontext*, unsigned, CUdevice)>(device_.driver->find("cuCtxCreate_v2"));
  const auto destroy = reinterpret_cast<CUresult (*)(CUcontext)>(device_.driver->find("cuCtxDestroy_v2"));
  ASSERT_TRUE(create != nullptr && destroy != nullptr);
  CUcontext second = nullptr;
  ASSERT_EQ(create(&second, 0, 0), CUDA_SUCCESS);
  CUstream foreign = nullptr;
  ASSERT_EQ(device_.driver->cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (const CUstream stream : {foreign, CU_STREAM_PER_THREAD}) {
    void* out = &out;
    const Status refused = arena->allocate(kMiB, stream, &out);
    EXPECT_EQ(refused.code(), SPW_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(refused.text().find("another context"), std::string::npos);
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(Arena::record_stream(block, stream).code(), SPW_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(arena->allocate_shareable(kMiB, stream, &out).code(), SPW_ERROR_INVALID_ARGUMENT);
  }
  // Frees say nothing of streams: they work from anywhere.
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(arena->stats().pending_bytes, 0);
  ASSERT_EQ(device_.driver->cuStreamDestroy(foreign), CUDA_SUCCESS);
  ASSERT_EQ(destroy(second), CUDA_SUCCESS);
  enter(0);
  SPW_EXPECT_OK(arena->validate());
}

// A process under MPS may be refused memory that cuMemGetInfo calls free: to Spillway that is a full device.
TEST_F(Devices, MemoryThatIsRefusedBelowTheDevicesSizeIsTakenFromOthers) {
  const auto arena = arena_of(0);
  const CUstream first = device_.stream();
  const CUstream second = device_.stream();
  void* block = must_allocate(*arena, 20 * kMiB, first);
  device_.touch(first, block, 20 * kMiB);
  SPW_EXPECT_OK(Arena::free(block));
  const auto refuse_from_now_on = [&] {
    for (uint64_t nth = 1; nth <= 50; ++nth)
      device_.inject_fault("cuMemCreate", nth, CUDA_ERROR_OUT_OF_MEMORY);
  };
  refuse_from_now_on();
  void* borrowed = must_allocate(*arena, 20 * kMiB, second);
  device_.touch(second, borrowed, 20 * kMiB);
  EXPECT_EQ(arena->stats().reserved_bytes.all.current, static_cast<int64_t>(20 * kMiB));
  EXPECT_EQ(arena->stats().host_waits, 0);
  void* refused = &refused;
  const Status status = arena->allocate(20 * kMiB, first, &refused);
  EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(refused, nullptr);
  SPW_EXPECT_OK(arena->validate());
  // The other processes may have given some back since.
  device_.clear_faults();
  must_allocate(*arena, 20 * kMiB, first);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(Devices, ASharedBlockIsReachedByPeersToo) {
  const auto arena = arena_of(0);
  void* before = nullptr;
  void* after = nullptr;
  SPW_EXPECT_OK(arena->allocate_shareable(kMiB, nullptr, &before));
  device_.inject_fault("cuMemSetAccess", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(arena->enable_peer(1).code(), SPW_ERROR_DRIVER);
  EXPECT_FALSE(peer_has_access(before));
  SPW_EXPECT_OK(arena->enable_peer(1));
  SPW_EXPECT_OK(Arena::free(before));
  SPW_EXPECT_OK(arena->allocate_shareable(kMiB, nullptr, &before));
  SPW_EXPECT_OK(arena->trim());
  SPW_EXPECT_OK(Arena::free(before));
  SPW_EXPECT_OK(arena->trim());
  SPW_EXPECT_OK(arena->allocate_shareable(kMiB, nullptr, &after));
  touch_from_peer(after, 32 * kMiB);
  EXPECT_EQ(device_.reports(), "");
}

class MigDevices : public Devices {
 protected:
  MigDevices() : Devices("capacity:64MiB,devices:2,mig:1") {}
};

TEST_F(MigDevices, HaveNoPeers) {
  const auto arena = arena_of(0);
  const Status refused = arena->enable_peer(1);
  EXPECT_EQ(refused.code(), SPW_ERROR_UNSUPPORTED);
  EXPECT_NE(refused.text().find("MIG"), std::string::npos);
  must_allocate(*arena, 20 * kMiB, nullptr);
  SPW_EXPECT_OK(arena->validate());
}

}  // namespace
}  // namespace spillway::test
