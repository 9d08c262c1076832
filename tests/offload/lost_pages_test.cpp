// Pages that the disk lost: they are named, what else the region has is not lost with them, and it comes back
// when nobody has the lost ones any more.
#include <fmt/format.h>

#include <algorithm>

#include "offload/spill/regions.h"
#include "tests/support/io_faults.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

// A region of two blocks on pages of their own, of which the disk loses the first, of so many bytes.
class LostPagesTest : public testing::TestWithParam<size_t> {
 protected:
  void lose(bool is_captured = false) {
    SPW_EXPECT_OK(regions_.begin("a"));
    lost_ = must_allocate(*arena_, GetParam(), stream_);
    kept_ = must_allocate(*arena_, kBytes, nullptr);
    SPW_EXPECT_OK(regions_.end("a"));
    write(lost_, GetParam());
    write(kept_, kBytes);
    if (is_captured) capture();
    SPW_EXPECT_OK(regions_.evict("a", SpillTo::kDisk));
    damage(directory_.path(), 8192);
  }
  ~LostPagesTest() override {
    SPW_EXPECT_OK(arena_->trim());
    SPW_EXPECT_OK(arena_->validate());
    EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 0u);
    EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0);
    EXPECT_EQ(tiers_.device.reports(), "");
  }
  // A graph whose temporary memory lies in the region's pool, with a claim on that.
  void capture() {
    const PoolId pool = regions_.pool("a").value();
    const CUstream stream = tiers_.device.stream();
    tiers_.device.begin_capture(stream);
    SPW_EXPECT_OK(arena_->begin_pool(pool, nullptr));
    SPW_EXPECT_OK(Arena::free(must_allocate(*arena_, 512, stream)));
    SPW_EXPECT_OK(arena_->end_pool(pool));
    tiers_.device.discard_capture(stream);
  }
  void write(void* block, size_t bytes) {
    EXPECT_EQ(
        tiers_.device.driver->cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(block), content_.data(), bytes),
        CUDA_SUCCESS);
  }
  bool is_intact(void* block, size_t bytes) {
    std::vector<char> found(bytes);
    EXPECT_EQ(tiers_.device.driver->cuMemcpyDtoH(found.data(), reinterpret_cast<CUdeviceptr>(block), bytes),
              CUDA_SUCCESS);
    return std::equal(found.begin(), found.end(), content_.begin());
  }
  // Names where it is, each time; nothing is on the device.
  void expect_lost() {
    for (int i = 0; i < 2; ++i) {
      const Status status = regions_.restore("a");
      EXPECT_EQ(status.code(), SPW_ERROR_DATA_LOST) << status.text();
      const std::string from = fmt::format("from {:#x} ", reinterpret_cast<uint64_t>(lost_));
      EXPECT_NE(status.text().find(from), std::string::npos) << status.text();
      EXPECT_GT(usage().lost_bytes, 0u);
      EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0);
    }
  }
  void expect_the_rest() {
    SPW_EXPECT_OK(regions_.restore("a"));
    EXPECT_TRUE(is_intact(kept_, kBytes));
    EXPECT_EQ(usage().lost_bytes, 0u);
    EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 0u);
    // What took its place is memory like any other.
    SPW_EXPECT_OK(regions_.begin("a"));
    void* again = must_allocate(*arena_, GetParam(), stream_);
    SPW_EXPECT_OK(regions_.end("a"));
    for (int i = 0; i < 2; ++i) {
      write(again, GetParam());
      SPW_EXPECT_OK(regions_.evict("a", SpillTo::kDisk));
      SPW_EXPECT_OK(regions_.restore("a"));
      EXPECT_TRUE(is_intact(again, GetParam()) && is_intact(kept_, kBytes));
    }
    SPW_EXPECT_OK(Arena::free(again));
    SPW_EXPECT_OK(Arena::free(kept_));
    SPW_EXPECT_OK(regions_.release("a"));
  }
  RegionUsage usage() { return regions_.report("a").value().usage; }

  static constexpr size_t kBytes = 24 * kMiB;
  const std::vector<char> content_ = TestRegion::pattern(kBytes, 7);
  Folder directory_;
  Tiers tiers_{"capacity:128MiB,completion:late", disk_options(directory_.path())};
  std::unique_ptr<Arena> arena_ = tiers_.device.arena();
  Regions regions_{*arena_, *tiers_.memory};
  const CUstream stream_ = tiers_.device.stream();
  void* lost_ = nullptr;
  void* kept_ = nullptr;
};
// A large one, and a slot of a slab.
INSTANTIATE_TEST_SUITE_P(Sizes, LostPagesTest, testing::Values(24 * kMiB, size_t{512}));

TEST_P(LostPagesTest, TheRestComesBackWhenItsBlocksAreFreed) {
  lose();
  expect_lost();
  SPW_EXPECT_OK(Arena::free(lost_));
  expect_the_rest();
}

TEST_P(LostPagesTest, IsNotMissedWhereItsBlocksWereFreedBefore) {
  lose();
  SPW_EXPECT_OK(Arena::free(lost_));
  expect_the_rest();
}

TEST_P(LostPagesTest, IsKeptForAGraphWithAClaim) {
  lose(true);
  SPW_EXPECT_OK(Arena::free(lost_));
  expect_lost();
  SPW_EXPECT_OK(arena_->release_pool(regions_.pool("a").value()));
  expect_the_rest();
}

TEST_P(LostPagesTest, CanBeReleasedWhereItIs) {
  lose();
  expect_lost();
  SPW_EXPECT_OK(regions_.release("a"));
  SPW_EXPECT_OK(Arena::free(lost_));
  SPW_EXPECT_OK(Arena::free(kept_));
}

}  // namespace
}  // namespace spillway::test
