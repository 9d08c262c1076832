// The regions of a device by tag: which of them goes first where the device is short of memory, and what
// somebody has in hand meanwhile.
#include "offload/spill/regions.h"

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

class RegionsTest : public testing::Test {
 protected:
  void expect_sound() {
    SPW_EXPECT_OK(arena_->validate());
    EXPECT_EQ(tiers_.device.reports(), "");
  }
  int64_t reserved() const { return arena_->stats().reserved_bytes.all.current; }

  Tiers tiers_{"capacity:128MiB,completion:late", disk_options("")};
  std::unique_ptr<Arena> arena_ = tiers_.device.arena();
};

TEST_F(RegionsTest, RelievingStopsBetweenTwoRegions) {
  Regions regions(*arena_, *tiers_.memory);
  std::vector<void*> blocks;
  for (const char* tag : {"optimizer", "cache"}) {
    SPW_EXPECT_OK(regions.begin(tag));
    blocks.push_back(must_allocate(*arena_, 20 * kMiB, nullptr));
    SPW_EXPECT_OK(regions.end(tag));
    SPW_EXPECT_OK(regions.set_priority(tag, 1));
  }
  const auto relieve = [&](const std::function<bool()>& goes_on) {
    Result<EvictionResult> result = regions.relieve(kMiB, 0, goes_on);
    EXPECT_TRUE(result.ok()) << result.status().text();
    return result.ok() ? result->bytes : 0;
  };
  int asked = 0;
  EXPECT_EQ(relieve([&asked] { return ++asked == 1; }), 20 * kMiB);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(relieve([] { return true; }), 20 * kMiB);
  EXPECT_EQ(reserved(), 0);
  // What is wanted again meanwhile stays, though it would be the next to go.
  for (const char* tag : {"optimizer", "cache"}) SPW_EXPECT_OK(regions.restore(tag));
  asked = 0;
  EXPECT_EQ(relieve([&] {
              if (++asked == 2) SPW_EXPECT_OK(regions.restore("optimizer"));
              return true;
            }),
            20 * kMiB);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(reserved(), static_cast<int64_t>(20 * kMiB));
  for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
  for (const char* tag : {"optimizer", "cache"}) SPW_EXPECT_OK(regions.release(tag));
  expect_sound();
}

TEST_F(RegionsTest, WhatSomebodyHasInHandIsLeftAndSaid) {
  Regions regions(*arena_, *tiers_.memory);
  SPW_EXPECT_OK(regions.begin("cold"));
  void* block = must_allocate(*arena_, 2 * kMiB, nullptr);
  SPW_EXPECT_OK(regions.end("cold"));
  SPW_EXPECT_OK(regions.set_priority("cold", 1));
  std::atomic<bool> is_over{false};
  std::thread looks([&] {
    while (!is_over) {
      (void)regions.report("cold");
      std::this_thread::yield();
    }
  });
  int passed_over = 0;
  for (int round = 0; round < 100; ++round) {
    for (;;) {
      Result<EvictionResult> result = regions.relieve(kMiB, 0, [] { return true; });
      EXPECT_TRUE(result.ok()) << result.status().text();
      if (!result.ok() || result->is_complete) break;
      ++passed_over;
      std::this_thread::yield();
    }
    EXPECT_EQ(reserved(), 0);
    SPW_EXPECT_OK(regions.restore("cold"));
  }
  RecordProperty("passed_over", passed_over);
  is_over = true;
  looks.join();
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(regions.release("cold"));
}

}  // namespace
}  // namespace spillway::test
