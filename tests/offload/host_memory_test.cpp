// The host has no memory for one of Spillway's own requests, at every place of a scenario, on whatever
// thread: what was moved comes back, nothing is stuck, and the next try does it.
#include <array>
#include <cstdlib>
#include <new>

#include "offload/pinned_growth.h"
#include "offload/spill/stashes.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"
#include "tests/support/thorough.h"

// These bounds are of this program, and so not of the simulated driver or the C++ library, whose requests do
// not fail.
extern const char kCodeBegin __asm__("__executable_start");
extern const char kCodeEnd __asm__("etext");

namespace {

std::atomic<int64_t> left{-1};     // requests until one fails; negative: none does
std::atomic<int64_t> failures{0};  // still to come, one after the other

bool fails_now(const void* caller) {
  if (left.load(std::memory_order_relaxed) < 0) return false;
  const auto* at = static_cast<const char*>(caller);
  if (at < &kCodeBegin || at >= &kCodeEnd || left.fetch_sub(1) > 0) return false;
  if (failures.fetch_sub(1) > 1) left = 0;
  return true;
}

}  // namespace

// Not inlined, or a compiler sees malloc and free behind new and delete, and warns.
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* memory = fails_now(__builtin_return_address(0)) ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace spillway::test {
namespace {

// Places from one failure to the next.
const auto kStride = static_cast<int64_t>(stride(7, 21, 84));

// Runs steps of which some meet the failures, if they ask that often.
class Shortage {
 public:
  Shortage(int64_t at, int64_t count) : count_(count) {
    failures = count;
    left = at;
  }
  ~Shortage() { left = -1; }
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;

  bool was_met() const { return failures < count_; }
  // Any error is said as a Status, or thrown for the C ABI to say; and where memory is there, there is none.
  template <typename Body>
  Status step(Body body) {
    Status status = caught(body);
    if (!was_met() && !status.ok()) ADD_FAILURE() << status.text();
    return status;
  }

 private:
  const int64_t count_;
};

struct Shape {
  const char* name;
  int64_t failures;  // in a row
  Codec codec;
};

class HostMemoryTest : public testing::TestWithParam<Shape> {
 protected:
  HostMemoryTest() : options_(disk_options(directory_.path())) {
    options_.write_bytes_per_s = 1;
    options_.buffers = 2;
  }

  static constexpr uint64_t kPinnedBytes = 40 * kMiB;  // pinned anew in each round

  const Folder directory_;
  DiskTierOptions options_;
};
INSTANTIATE_TEST_SUITE_P(Shortages, HostMemoryTest,
                         testing::Values(Shape{"once", 1, Codec::kNone}, Shape{"twice", 2, Codec::kNone},
                                         Shape{"packed", 1, Codec::kLz4}),
                         [](const auto& info) { return info.param.name; });

TEST_P(HostMemoryTest, RegionsComeBack) {
  bool goes_on = true;
  for (int64_t at = 0; goes_on; at += kStride) {
    SCOPED_TRACE("request " + std::to_string(at));
    Tiers tiers("capacity:64MiB", options_, kPinnedBytes);
    const std::unique_ptr<Arena> arena = tiers.device.arena();
    TestRegion region(tiers, *arena, {9, 1});
    Packer packer(GetParam().codec);
    region.write(region.allocate(kMiB / 2), TestRegion::kPackable + 1);
    region.write(region.allocate(10 * kMiB), TestRegion::kPackable + 2);
    bool is_out = false;
    {
      Shortage shortage(at, GetParam().failures);
      const auto move = [&](SpillTo to) {
        if (!is_out) is_out = shortage.step([&] { return region.evict(to, &packer); }).ok();
        if (is_out) is_out = !shortage.step([&] { return region.restore(); }).ok();
      };
      move(SpillTo::kDisk);
      move(SpillTo::kHost);
      if (!is_out) is_out = shortage.step([&] { return region.evict(SpillTo::kHost); }).ok();
      if (is_out) (void)shortage.step([&] { return region.write_down(); });
      if (is_out) is_out = !shortage.step([&] { return region.restore(); }).ok();
      goes_on = shortage.was_met();
    }
    if (is_out) SPW_EXPECT_OK(region.restore());
    EXPECT_TRUE(region.all_intact());
    // What the disk's engine knows of must not be what goes here.
    (void)tiers.pinned.release_free();
    SPW_EXPECT_OK(region.evict(SpillTo::kDisk, &packer));
    SPW_EXPECT_OK(region.restore());
    EXPECT_TRUE(region.all_intact());
    EXPECT_EQ(tiers.disk.counters().blocks_bytes, 0u);
    SPW_EXPECT_OK(arena->validate());
    EXPECT_EQ(tiers.device.reports(), "");
    ASSERT_FALSE(HasFailure());
    ASSERT_TRUE(goes_on || at > 50);
  }
}

TEST_P(HostMemoryTest, StashesComeBack) {
  constexpr size_t kBytes = 5 * kMiB;
  const std::vector<char> pattern = TestRegion::pattern(kBytes, TestRegion::kPackable + 3);
  bool goes_on = true;
  for (int64_t at = 0; goes_on; at += kStride) {
    SCOPED_TRACE("request " + std::to_string(at));
    Tiers tiers("capacity:64MiB", options_, kPinnedBytes);
    const std::unique_ptr<Arena> arena = tiers.device.arena();
    const auto va = reinterpret_cast<CUdeviceptr>(must_allocate(*arena, kBytes, nullptr));
    Stashes stashes(arena->context(), *tiers.copy_streams, tiers.pinned, tiers.disk, GetParam().codec);
    const Driver& driver = *tiers.device.driver;
    ASSERT_EQ(driver.cuMemcpyHtoD(va, pattern.data(), kBytes), CUDA_SUCCESS);
    Stashes::Stash* stash = nullptr;
    bool is_back = false;
    const auto bring_back = [&] {
      Status status = stashes.begin_get(*stash, va, nullptr);
      return status.ok() ? stashes.finish_get(*stash, nullptr, nullptr) : std::move(status);
    };
    {
      Shortage shortage(at, GetParam().failures);
      (void)shortage.step([&]() -> Status {
        Result<Stashes::Stash*> made = stashes.put(va, kBytes, nullptr, Stashes::To::kDisk);
        if (made.ok()) stash = made.value();
        return made.take_status();
      });
      // Written down, or as far as it comes.
      for (int tries = 0; stash != nullptr && tries < 50 && stashes.counters().disk_bytes == 0; ++tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (stash != nullptr) {
        ASSERT_EQ(driver.cuCtxSynchronize(), CUDA_SUCCESS);
        ASSERT_EQ(driver.cuMemsetD8Async(va, 0, kBytes, nullptr), CUDA_SUCCESS);
        is_back = shortage.step(bring_back).ok();
        if (is_back) stashes.free(stash);
      }
      goes_on = shortage.was_met();
    }
    if (stash != nullptr && !is_back) {
      SPW_EXPECT_OK(bring_back());
      stashes.free(stash);
    }
    std::vector<char> bytes(kBytes);
    ASSERT_EQ(driver.cuMemcpyDtoH(bytes.data(), va, kBytes), CUDA_SUCCESS);
    EXPECT_TRUE(bytes == pattern);
    // One that is being written down goes when that is done.
    for (int tries = 0; tries < 5000 && stashes.counters().stashes > 0; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(stashes.counters().stashes, 0u);
    EXPECT_EQ(tiers.device.reports(), "");
    SPW_EXPECT_OK(Arena::free(reinterpret_cast<void*>(va)));
    ASSERT_FALSE(HasFailure());
    ASSERT_TRUE(goes_on || at > 20);
  }
}

TEST_P(HostMemoryTest, PinnedMemoryComesAndGoes) {
  bool goes_on = true;
  for (int64_t at = 0; goes_on; at += kStride) {
    SCOPED_TRACE("request " + std::to_string(at));
    Device device("capacity:64MiB");
    PinnedArena arena(*device.driver, {});
    PinnedGrowth growth(*device.driver, device.context, arena);
    {
      Shortage shortage(at, GetParam().failures);
      std::array<void*, 3> blocks{};
      for (void*& block : blocks) {
        (void)shortage.step([&]() -> Status {
          Result<void*> made = arena.allocate(3 * kMiB);
          if (made.ok()) block = made.value();
          return made.take_status();
        });
      }
      for (void* block : blocks) {
        if (block != nullptr) arena.give_back(block, 3 * kMiB);
      }
      (void)shortage.step([&] { return growth.reach(arena.reserved_bytes() + 2 * kMiB); });
      (void)shortage.step([&] { return growth.wait(); });
      (void)shortage.step([&]() -> Status {
        (void)arena.release_free();
        return {};
      });
      goes_on = shortage.was_met();
    }
    SPW_EXPECT_OK(arena.validate());
    SPW_EXPECT_OK(growth.reach(arena.reserved_bytes() + 4 * kMiB));
    SPW_EXPECT_OK(growth.wait());
    // A range that no list had room for stays pinned.
    (void)arena.release_free();
    EXPECT_LE(arena.reserved_bytes(), static_cast<uint64_t>(GetParam().failures) * 4 * kMiB);
    ASSERT_FALSE(HasFailure());
    ASSERT_TRUE(goes_on || at > 10);
  }
}

}  // namespace
}  // namespace spillway::test
