// Host memory for the allocator's tables runs out at each place where an arena's creation or requests of a
// program need some, once: what was asked fails or is done, nothing is lost, and the next one is served.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "allocator/host_blocks.h"
#include "tests/support/device.h"
#include "tests/support/placement.h"
#include "tests/support/sizes.h"

namespace {

// Counts down with the allocations of this thread that code of this program asks for; the one that reaches 0
// fails. The driver's own are not the allocator's to survive.
thread_local uint64_t countdown = 0;

bool is_of_this_program(const void* caller) {
  static const void* const kBase = [] {
    Dl_info info{};
    return dladdr(reinterpret_cast<void*>(&is_of_this_program), &info) != 0 ? info.dli_fbase : nullptr;
  }();
  Dl_info info{};
  return dladdr(caller, &info) != 0 && info.dli_fbase == kBase;
}

// The tables that are mapped take so much.
int64_t mapped_bytes = 0;

bool fails_now() {
  return countdown > 0 && --countdown == 0;
}

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  if (is_of_this_program(__builtin_return_address(0)) && fails_now()) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes); memory != nullptr) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

// The linker puts these in place of mmap() and munmap() in this program (--wrap): large tables are mapped.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" void* __real_mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset);
extern "C" void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  if (fails_now()) return MAP_FAILED;
  mapped_bytes += static_cast<int64_t>(bytes);
  return __real_mmap(at, bytes, protection, flags, file, offset);
}
extern "C" int __real_munmap(void* memory, size_t bytes);
extern "C" int __wrap_munmap(void* memory, size_t bytes) {
  mapped_bytes -= static_cast<int64_t>(bytes);
  return __real_munmap(memory, bytes);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace spillway::test {
namespace {

// Blocks of all kinds in the home view, on two streams, so that every table grows.
void run_program(Arena& arena, const CUstream (&streams)[2], std::vector<void*>& live) {
  for (const CUstream stream : streams) {
    for (const size_t bytes :
         {size_t{700}, 40 * size_t{1024}, 3 * kMiB, size_t{5000}, 9 * kMiB + 512, size_t{700}}) {
      void* block = nullptr;
      try {
        const Status status = arena.allocate(bytes, stream, &block);
        EXPECT_TRUE(status.ok() || status.code() == SPW_ERROR_OUT_OF_MEMORY) << status.text();
      } catch (const std::bad_alloc&) {
        block = nullptr;  // an error's text, too, needs memory; the C ABI has a code for that
      }
      const uint64_t left = std::exchange(countdown, 0);
      if (block != nullptr) live.push_back(block);
      SPW_EXPECT_OK(arena.validate());
      countdown = left;
    }
  }
}

TEST(HostMemory, EveryAllocationOfATableMayFailOnce) {
  uint64_t nth = 1;
  for (bool reached = true; reached && nth < 1000; ++nth) {
    Device device("capacity:256MiB");
    const auto arena = device.arena();
    const CUstream streams[2] = {device.stream(), device.stream()};
    std::vector<void*> live;
    live.reserve(64);
    countdown = nth;
    run_program(*arena, streams, live);
    reached = countdown == 0;
    countdown = 0;
    run_program(*arena, streams, live);
    EXPECT_GE(live.size(), 12u);
    for (void* block : live) SPW_EXPECT_OK(Arena::free(block));
    SPW_EXPECT_OK(arena->validate());
    SPW_EXPECT_OK(arena->trim());
    EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0);
    if (HasFailure()) FAIL() << "allocation " << nth;
  }
  EXPECT_GT(nth, 30u);
}

TEST(HostMemory, ATrimThatFailsLosesNoPage) {
  uint64_t nth = 1;
  for (bool reached = true; reached && nth < 1000; ++nth) {
    Device device("capacity:256MiB");
    const auto arena = device.arena();
    std::vector<void*> blocks;
    for (int i = 0; i < 12; ++i) blocks.push_back(must_allocate(*arena, 4 * kMiB, nullptr));
    for (size_t i = 0; i < blocks.size(); i += 2) SPW_EXPECT_OK(Arena::free(blocks[i]));
    // A view over pages that lie apart.
    void* view = must_allocate(*arena, 24 * kMiB, nullptr);
    SPW_EXPECT_OK(Arena::free(view));
    countdown = nth;
    try {
      (void)arena->trim();
    } catch (const std::bad_alloc&) {
      // The C ABI has a code for that.
    }
    reached = countdown == 0;
    countdown = 0;
    SPW_EXPECT_OK(arena->validate());
    for (size_t i = 1; i < blocks.size(); i += 2) SPW_EXPECT_OK(Arena::free(blocks[i]));
    SPW_EXPECT_OK(arena->trim());
    EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0);
    EXPECT_EQ(device.live_handles(), 0u);
    if (HasFailure()) FAIL() << "allocation " << nth;
  }
  EXPECT_GT(nth, 5u);
}

TEST(HostMemory, EveryAllocationOfACreationMayFailOnce) {
  uint64_t nth = 1;
  uint64_t failed = 0;
  for (bool reached = true; reached && nth < 1000; ++nth) {
    Device device;
    bool made = false;
    const int64_t mapped_before = mapped_bytes;
    countdown = nth;
    try {
      const Result<std::unique_ptr<Arena>> arena = Arena::create(device.driver, 0, {});
      reached = std::exchange(countdown, 0) == 0;
      made = arena.ok();
    } catch (const std::bad_alloc&) {
      countdown = 0;
    }
    EXPECT_TRUE(made || reached) << "allocation " << nth;
    failed += made ? 0 : 1;
    EXPECT_EQ(mapped_bytes, mapped_before) << "allocation " << nth;
    const auto arena = device.arena();
    SPW_EXPECT_OK(Arena::free(must_allocate(*arena, 3 * kMiB, nullptr)));
  }
  EXPECT_GE(failed, 4u);  // the arena, its store, the store's two tables
}

TEST(HostMemory, EveryAllocationOfAPlacedBlockMayFailOnce) {
  uint64_t nth = 1;
  for (bool reached = true; reached && nth < 100; ++nth) {
    Placement placement;
    const std::shared_ptr<const HostPlacement> functions = placement.functions();
    DeviceCounters counters;
    HostBlocks blocks;
    void* block = nullptr;
    countdown = nth;
    try {
      block = blocks.place(functions, 1000, nullptr, counters);
      SPW_EXPECT_OK(blocks.record_stream(reinterpret_cast<uint64_t>(block), CU_STREAM_PER_THREAD, {}));
    } catch (const std::bad_alloc&) {
    }
    reached = std::exchange(countdown, 0) == 0;
    EXPECT_EQ(placement.held(), block == nullptr ? 0u : 1u) << "allocation " << nth;
    EXPECT_EQ(counters.snapshot().host_placed_blocks, block == nullptr ? 0 : 1);
    blocks.release_all(counters);
    EXPECT_EQ(placement.held(), 0u);
    EXPECT_EQ(counters.snapshot().host_placed_bytes, 0);
  }
  EXPECT_GT(nth, 4u);
}

}  // namespace
}  // namespace spillway::test
