// Views where mappings are many: see docs/decisions/mappings.md.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// Only addresses: nothing here reads the memory.
constexpr const char* kNoBytes = "capacity:8GiB,backing:none,races:off";
constexpr uint64_t kLiveBytes = 1024 * kMiB;

// Blocks of exponential sizes around a mean, the lives of which end at random.
class RandomSizes {
 public:
  RandomSizes(Arena& arena, uint64_t seed) : arena_(arena), random_(seed) {}

  void run(int allocations, uint64_t mean_bytes) {
    for (int i = 0; i < allocations; ++i) {
      const double draw = static_cast<double>(random_() >> 11) / static_cast<double>(1ULL << 53);
      const auto bytes = std::min(
          kLiveBytes / 4, static_cast<uint64_t>(-std::log(1 - draw) * static_cast<double>(mean_bytes)) + 1);
      while (live_bytes_ + bytes > kLiveBytes) {
        std::swap(blocks_[random_() % blocks_.size()], blocks_.back());
        live_bytes_ -= blocks_.back().bytes;
        SPW_EXPECT_OK(Arena::free(blocks_.back().pointer));
        blocks_.pop_back();
      }
      blocks_.push_back({must_allocate(arena_, bytes, nullptr), bytes});
      live_bytes_ += bytes;
    }
  }
  void free_all() {
    for (const Block& block : blocks_) SPW_EXPECT_OK(Arena::free(block.pointer));
    blocks_.clear();
    live_bytes_ = 0;
  }

 private:
  struct Block {
    void* pointer;
    uint64_t bytes;
  };
  Arena& arena_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
  uint64_t live_bytes_ = 0;
};

TEST(Mappings, RandomSizesHoldMorePagesBeforeTheyMapWithoutEnd) {
  Device device(kNoBytes);
  const auto arena = device.arena({.most_mappings = 8000});
  RandomSizes(*arena, 1).run(20'000, 20 * kMiB);
  const DeviceStats stats = arena->stats();
  EXPECT_LT(stats.host_waits, 30);
  // The bound is one for views; new pages are mapped beyond it. The figures differ by what other tests have
  // left on a device that lacks controls.
  EXPECT_LT(stats.live_mappings, 8000 + 8000 / 64);
  EXPECT_LT(stats.reserved_bytes.all.peak, stats.active_bytes.all.peak * 11 / 8);
  SPW_EXPECT_OK(arena->validate());
}

// Most of these blocks are smaller than a page, so what is lost is lost inside pages.
TEST(Mappings, SizesAroundHalfAPageLoseLittleInsidePages) {
  Device device(kNoBytes);
  const auto arena = device.arena({.slack_percent = 0});  // what is bought is not lost
  RandomSizes(*arena, 1).run(30'000, 1 * kMiB);
  const DeviceStats stats = arena->stats();
  EXPECT_LT(static_cast<double>(stats.reserved_bytes.all.peak), 1.08 * static_cast<double>(kLiveBytes));
  SPW_EXPECT_OK(arena->validate());
}

TEST(Mappings, TheHomeViewAloneIsNotMany) {
  Device device(kNoBytes);
  const auto arena = device.arena({.most_mappings = 20});
  void* first = must_allocate(*arena, 4 * kMiB, nullptr);
  must_allocate(*arena, 2 * kMiB, nullptr);
  void* second = must_allocate(*arena, 4 * kMiB, nullptr);
  must_allocate(*arena, 6 * kMiB, nullptr);
  must_allocate(*arena, 8 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(first));
  SPW_EXPECT_OK(Arena::free(second));
  // The place used last is remembered; the best fit would be the first.
  EXPECT_EQ(must_allocate(*arena, 4 * kMiB, nullptr), second);
}

// Pages that a view would not need are a luxury: a request that fits only without them is served.
class PagesForMappings : public testing::Test {
 protected:
  // 64 pages, of which four lie free here and there, and as many mappings of views as are allowed.
  void SetUp() override {
    ArenaOptions options;
    options.most_mappings = 64 + 4;
    options.limit_bytes = 70 * kPage;
    arena_ = device_.arena(options);
    for (int i = 0; i < 64; ++i) pages_.push_back(must_allocate(*arena_, kPage, nullptr));
    for (size_t i = 1; i < 16; i += 2) SPW_EXPECT_OK(Arena::free(pages_[i]));
    must_allocate(*arena_, 4 * kPage, nullptr);
    ASSERT_EQ(arena_->stats().live_mappings, 64 + 4);
  }
  static constexpr uint64_t kPage = 2 * kMiB;
  Device device_{"capacity:256MiB,backing:none,races:off"};
  std::unique_ptr<Arena> arena_;
  std::vector<void*> pages_;
};

TEST_F(PagesForMappings, AreNotCreatedBeyondTheLimit) {
  must_allocate(*arena_, 8 * kPage, nullptr);
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, static_cast<int64_t>(68 * kPage));
}

TEST_F(PagesForMappings, AreNotNeededWhereOthersFillTheDevice) {
  if (!device_.simulated()) GTEST_SKIP() << "a real device cannot be given the size that is tested";
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle others = 0;
  ASSERT_EQ(device_.driver->cuMemCreate(&others, 64 * kPage, &properties, 0), CUDA_SUCCESS);
  must_allocate(*arena_, 4 * kPage, nullptr);
  for (size_t i = 17; i < 24; i += 2) SPW_EXPECT_OK(Arena::free(pages_[i]));
  const uint64_t creates = device_.calls("cuMemCreate");
  must_allocate(*arena_, 4 * kPage, nullptr);
  EXPECT_EQ(device_.calls("cuMemCreate"), creates) << "the device is known to be full";
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, static_cast<int64_t>(64 * kPage));
  device_.driver->cuMemRelease(others);
}

TEST(Mappings, AtTheLimitRandomSizesAreStillServed) {
  Device device(kNoBytes);
  const auto arena = device.arena({.limit_bytes = kLiveBytes / 100 * 103, .most_mappings = 2000});
  RandomSizes(*arena, 2).run(5000, 20 * kMiB);
  EXPECT_LE(arena->stats().live_mappings, 2000);
  SPW_EXPECT_OK(arena->validate());
}

TEST(Mappings, WhereTheDriverHasNoMemoryForMoreUnusedViewsMakeRoom) {
  Device device(std::string(kNoBytes) + ",mappings:1500");
  if (!device.simulated()) GTEST_SKIP() << "the driver's bound is chosen";
  const auto arena = device.arena({.limit_bytes = 1300 * kMiB});
  RandomSizes program(*arena, 1);
  program.run(20'000, 20 * kMiB);
  EXPECT_GT(arena->stats().host_waits, 0);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device.reports(), "");
}

TEST(Mappings, AProgramThatRepeatsItselfIsRememberedWhereMappingsAreMany) {
  Device device(kNoBytes);
  const auto arena = device.arena({.limit_bytes = kLiveBytes / 100 * 112, .most_mappings = 40'000});
  const auto pass = [&] {
    RandomSizes program(*arena, 3);
    program.run(2500, 12 * kMiB);
    program.free_all();
  };
  for (int i = 0; i < 12; ++i) pass();
  const DeviceStats before = arena->stats();
  EXPECT_GT(before.live_mappings, 40'000 / 4);
  pass();
  const DeviceStats after = arena->stats();
  EXPECT_EQ(after.driver_calls.map, before.driver_calls.map);
  EXPECT_EQ(after.host_waits, before.host_waits);
}

}  // namespace
}  // namespace spillway::test
