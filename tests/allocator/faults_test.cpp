// Every driver call that an allocation or an arena's creation makes fails once, at each of its places: an
// error is reported or another way found, nothing is lost, nothing leaks, and the next request is served.

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// Growth, a view over scattered pages, and a trim: all kinds of driver calls.
void run_program(Device& device, Arena& arena, std::vector<void*>& live) {
  const auto allocate = [&](size_t bytes) {
    void* pointer = nullptr;
    const Status status = arena.allocate(bytes, nullptr, &pointer);
    EXPECT_TRUE(status.ok() || !status.text().empty());
    if (pointer != nullptr) live.push_back(pointer);
    SPW_EXPECT_OK(arena.validate());
  };
  for (int i = 0; i < 12; ++i) allocate(3 * kMiB);
  for (size_t i = 0; i < live.size(); ++i) {
    SPW_EXPECT_OK(Arena::free(live[i]));
    live.erase(live.begin() + static_cast<ptrdiff_t>(i));
  }
  allocate(14 * kMiB);
  allocate(1000);
  (void)arena.trim();
  SPW_EXPECT_OK(arena.validate());
  allocate(20 * kMiB);
  (void)device;
}

TEST(Faults, EveryCallOfAnAllocationMayFailOnce) {
  Device probe;
  if (!probe.simulated()) GTEST_SKIP() << "faults are injected into the simulated driver";
  for (const char* name : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve", "cuMemUnmap",
                           "cuMemRelease", "cuCtxSynchronize", "cuCtxPushCurrent", "cuStreamIsCapturing"}) {
    for (const CUresult result : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE}) {
      // The first calls one by one, later ones of the same kind in growing steps.
      for (uint64_t nth = 1; nth <= 40; nth += 1 + nth / 6) {
        Device device("capacity:256MiB");
        std::vector<void*> live;
        {
          const auto arena = device.arena();
          const uint64_t before = device.calls(name);
          device.inject_fault(name, nth, result);
          run_program(device, *arena, live);
          const bool reached = device.calls(name) - before >= nth;
          device.clear_faults();
          for (void* pointer : live) SPW_EXPECT_OK(Arena::free(pointer));
          void* after = must_allocate(*arena, 30 * kMiB, nullptr);
          device.touch(nullptr, after, 30 * kMiB);
          SPW_EXPECT_OK(arena->validate());
          SPW_EXPECT_OK(Arena::free(after));
          SPW_EXPECT_OK(arena->trim());
          EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0) << name << " call " << nth;
          if (!reached) nth = 1000;
        }
        EXPECT_EQ(device.live_mappings(), 0u) << name << " call " << nth << " result " << result;
        EXPECT_EQ(device.reports(), "") << name << " call " << nth;
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// An arena that cannot be made says why, and leaves nothing behind.
TEST(Faults, EveryCallOfACreationMayFailOnce) {
  Device probe;
  if (!probe.simulated()) GTEST_SKIP() << "faults are injected into the simulated driver";
  const auto entry_point =
      reinterpret_cast<decltype(&spwSimEntryPoint)>(probe.driver->find("spwSimEntryPoint"));
  int failed = 0;
  for (size_t i = 0; const char* name = entry_point(i); ++i) {
    for (uint64_t nth = 1;; ++nth) {
      Device device;
      const uint64_t before = device.calls(name);
      device.inject_fault(name, nth, CUDA_ERROR_OUT_OF_MEMORY);
      bool made = false;
      {
        const Result<std::unique_ptr<Arena>> arena = Arena::create(device.driver, 0, {});
        made = arena.ok();
        EXPECT_TRUE(made || !arena.status().text().empty()) << name << " call " << nth;
      }
      const bool reached = device.calls(name) - before >= nth;
      device.clear_faults();
      EXPECT_TRUE(made || reached) << name << " call " << nth;
      failed += made ? 0 : 1;
      EXPECT_EQ(device.live_mappings(), 0u) << name << " call " << nth;
      EXPECT_EQ(device.reports(), "") << name << " call " << nth;
      const auto arena = device.arena();
      SPW_EXPECT_OK(Arena::free(must_allocate(*arena, 3 * kMiB, nullptr)));
      if (!reached) break;
    }
  }
  EXPECT_GT(failed, 5);
}

}  // namespace
}  // namespace spillway::test
