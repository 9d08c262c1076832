// One region: which moves it refuses and why, what a prefetch that failed leaves, and that nobody waits for
// it while room is being made.
#include "offload/spill/region.h"

#include <stdexcept>
#include <thread>

#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

class RegionTest : public testing::Test {
 protected:
  static constexpr PoolId kPool{9, 1};

  RegionTest() : region_(std::make_shared<Region>("weights", kPool, *arena_, *tiers_.memory, Codec::kNone)) {
    block_ = bytes_.allocate(20 * kMiB);
    bytes_.write(block_, 7);
  }
  ~RegionTest() override {
    bytes_.free(block_);
    EXPECT_EQ(tiers_.device.reports(), "");
  }

  // Calls `body` with the region in hand.
  template <typename Body>
  auto settled(Body body) {
    Status refused;
    if (!region_->settle(&refused)) throw std::runtime_error(refused.text());
    const Lock lock(region_->mutex, kAdoptLock);
    return std::invoke(body, *region_);
  }
  Status evict(SpillTo to = SpillTo::kHost) {
    return settled([to](Region& region)
                       SPW_REQUIRES(region.mutex) -> Status { return region.evict(to, nullptr); });
  }
  Status restore() {
    return settled([](Region& region) SPW_REQUIRES(region.mutex) -> Status { return region.restore(); });
  }
  RegionReport report() {
    return settled([](Region& region) SPW_REQUIRES(region.mutex) -> RegionReport { return region.report(); });
  }
  bool may_go() {
    return settled([](Region& region) SPW_REQUIRES(region.mutex) -> bool { return region.may_go(); });
  }

  Folder directory_;
  Tiers tiers_{"capacity:128MiB,completion:late", disk_options(directory_.path())};
  std::unique_ptr<Arena> arena_ = tiers_.device.arena();
  TestRegion bytes_{tiers_, *arena_, kPool};
  std::shared_ptr<Region> region_;
  void* block_ = nullptr;
};

TEST_F(RegionTest, AMoveThatMayNotBeIsRefusedAndNothingMoves) {
  const auto expect_refused = [&](const Status& status, const char* why) {
    EXPECT_EQ(status.code(), SPW_ERROR_INVALID_STATE);
    EXPECT_EQ(status.text(), std::string("region 'weights' ") + why);
  };
  expect_refused(restore(), "is on the device already");
  expect_refused(
      settled([](Region& region) SPW_REQUIRES(region.mutex) -> Status { return region.prefetch(); }),
      "is on the device already");
  EXPECT_TRUE(may_go());
  settled([](Region& region) SPW_REQUIRES(region.mutex) { region.pins = 2; });
  EXPECT_FALSE(may_go());
  expect_refused(evict(), "is pinned 2 times: it must stay");
  settled([](Region& region) SPW_REQUIRES(region.mutex) {
    region.pins = 0;
    region.opened = 1;
  });
  EXPECT_FALSE(may_go());
  expect_refused(evict(), "is open: end it before it is evicted");
  EXPECT_EQ(report().evictions, 0u);

  settled([](Region& region) SPW_REQUIRES(region.mutex) { region.opened = 0; });
  SPW_EXPECT_OK(evict());
  EXPECT_FALSE(may_go());
  expect_refused(evict(), "is not on the device already");
  expect_refused(
      settled([](Region& region) SPW_REQUIRES(region.mutex) -> Status { return region.not_here(); }),
      "is not on the device: restore it first");
  SPW_EXPECT_OK(restore());
  EXPECT_EQ(report().evictions, 1u);
  EXPECT_EQ(report().restores, 1u);
  EXPECT_TRUE(bytes_.all_intact());
}

TEST_F(RegionTest, WhatIsWrittenDownIsCountedOnce) {
  const auto write_down = [this] {
    return settled([](Region& region) SPW_REQUIRES(region.mutex) -> uint64_t { return region.write_down(); });
  };
  EXPECT_EQ(write_down(), 0u);
  SPW_EXPECT_OK(evict());
  const uint64_t held = report().usage.host_bytes;
  EXPECT_GE(held, 20 * kMiB);
  EXPECT_EQ(write_down(), held);
  EXPECT_EQ(report().usage.disk_bytes, held);
  EXPECT_EQ(report().usage.host_bytes, 0u);
  EXPECT_EQ(write_down(), 0u);
  SPW_EXPECT_OK(restore());
  EXPECT_TRUE(bytes_.all_intact());
}

TEST_F(RegionTest, APrefetchThatFailedIsSaidOnceByWhoeverAsksNext) {
  SPW_EXPECT_OK(evict());
  void* in_the_way = must_allocate(*arena_, 120 * kMiB, nullptr);
  const auto prefetch = [this] {
    return settled([](Region& region) SPW_REQUIRES(region.mutex) -> Status { return region.prefetch(); });
  };
  const auto not_here = [this] {
    return settled([](Region& region) SPW_REQUIRES(region.mutex) -> Status { return region.not_here(); });
  };
  SPW_EXPECT_OK(prefetch());
  const Status failed = not_here();
  EXPECT_EQ(failed.code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(failed.text().find("region 'weights' is not on the device: its prefetch failed: "),
            std::string::npos)
      << failed.text();
  EXPECT_EQ(not_here().text(), "region 'weights' is not on the device: restore it first");

  SPW_EXPECT_OK(prefetch());
  EXPECT_EQ(restore().code(), SPW_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(Arena::free(in_the_way));
  SPW_EXPECT_OK(restore());
  EXPECT_TRUE(bytes_.all_intact());
}

TEST_F(RegionTest, WhileRoomIsBeingMadeNobodyWaitsForIt) {
  int asked = 0;
  const auto rung = arena_->last_rungs().add(Rung::kEvict, [&](uint64_t) -> uint64_t {
    Status refused;
    const bool is_mine = region_->settle(&refused);
    if (is_mine) region_->mutex.unlock();
    EXPECT_FALSE(is_mine);
    EXPECT_EQ(refused.text(),
              "region 'weights' is being moved or used, and nothing waits for that while room is being made");
    ++asked;
    return 0;
  });
  // Another thread asks for more than there is while this one has the region in hand.
  settled([&](Region& region) SPW_REQUIRES(region.mutex) {
    (void)region;
    std::thread([&] {
      void* block = nullptr;
      EXPECT_EQ(arena_->allocate(120 * kMiB, nullptr, &block).code(), SPW_ERROR_OUT_OF_MEMORY);
    }).join();
  });
  EXPECT_GT(asked, 0);
  arena_->last_rungs().remove(rung);
}

TEST_F(RegionTest, UsesAreCountedOverAllRegions) {
  Region other("cache", PoolId{9, 2}, *arena_, *tiers_.memory, Codec::kNone);
  const uint64_t before = Region::uses();
  region_->note_use();
  other.note_use();
  EXPECT_LT(region_->last_use(), other.last_use());
  EXPECT_EQ(Region::uses(), before + 2);
}

}  // namespace
}  // namespace spillway::test
