// A host tier that is full: what was used longest ago goes on to the disk, and nothing moves in vain.
#include <string>
#include <vector>

#include "offload/spill/regions.h"
#include "tests/support/io_faults.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

// Two regions, of which the host has room for one.
class FullHostTest : public testing::Test {
 protected:
  explicit FullHostTest(DiskTierOptions disk = {})
      : tiers_("capacity:256MiB,completion:late", with_directory(std::move(disk)), 64 * kMiB),
        arena_(tiers_.device.arena()),
        regions_(*arena_, *tiers_.memory) {
    for (const char* tag : {"first", "second"}) {
      SPW_EXPECT_OK(regions_.begin(tag));
      blocks_.push_back(must_allocate(*arena_, kBytes, nullptr));
      SPW_EXPECT_OK(regions_.end(tag));
      contents_.push_back(TestRegion::pattern(kBytes, static_cast<uint32_t>(blocks_.size())));
      EXPECT_EQ(tiers_.device.driver->cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(blocks_.back()),
                                                   contents_.back().data(), kBytes),
                CUDA_SUCCESS);
    }
  }
  ~FullHostTest() override {
    for (const char* tag : {"first", "second"}) {
      if (usage(tag).device_bytes == 0) SPW_EXPECT_OK(regions_.restore(tag));
      SPW_EXPECT_OK(regions_.release(tag));
    }
    for (size_t i = 0; i < blocks_.size(); ++i) {
      std::vector<char> bytes(kBytes);
      EXPECT_EQ(
          tiers_.device.driver->cuMemcpyDtoH(bytes.data(), reinterpret_cast<CUdeviceptr>(blocks_[i]), kBytes),
          CUDA_SUCCESS);
      EXPECT_TRUE(bytes == contents_[i]) << i;
      SPW_EXPECT_OK(Arena::free(blocks_[i]));
    }
    SPW_EXPECT_OK(arena_->trim());
    EXPECT_EQ(tiers_.device.reports(), "");
    EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 0u);
  }
  RegionUsage usage(const char* tag) { return regions_.report(tag).value().usage; }
  DiskTierOptions with_directory(DiskTierOptions disk) const {
    DiskTierOptions options = disk_options(directory_.path(), false);
    options.make_queue = std::move(disk.make_queue);
    return options;
  }

  static constexpr size_t kBytes = 40 * kMiB;
  const Folder directory_;
  Tiers tiers_;
  std::unique_ptr<Arena> arena_;
  Regions regions_;
  std::vector<void*> blocks_;
  std::vector<std::vector<char>> contents_;
};

TEST_F(FullHostTest, WhatWasUsedLongestAgoGoesOnToTheDisk) {
  SPW_EXPECT_OK(regions_.evict("first", SpillTo::kHost));
  EXPECT_EQ(usage("first").host_bytes, kBytes);
  SPW_EXPECT_OK(regions_.evict("second", SpillTo::kHost));
  EXPECT_EQ(usage("first").disk_bytes, kBytes);
  EXPECT_EQ(usage("second").host_bytes, kBytes);
  // Back and away again it is the one that was used last.
  SPW_EXPECT_OK(regions_.restore("first"));
  SPW_EXPECT_OK(regions_.evict("first", SpillTo::kHost));
  EXPECT_EQ(usage("first").host_bytes, kBytes);
  EXPECT_EQ(usage("second").disk_bytes, kBytes);
}

TEST_F(FullHostTest, WhatIsColderThanWhatIsThereTakesTheRestAndTheDisk) {
  SPW_EXPECT_OK(regions_.evict("second", SpillTo::kHost));
  SPW_EXPECT_OK(regions_.evict("first", SpillTo::kHost));
  EXPECT_GT(usage("first").host_bytes, 0u);
  EXPECT_EQ(usage("first").host_bytes + usage("first").disk_bytes, kBytes);
  EXPECT_EQ(usage("second").host_bytes, kBytes);
}

TEST_F(FullHostTest, WhatIsLargerThanAllOfTheHostsTakesItAndTheDisk) {
  SPW_EXPECT_OK(regions_.evict("first", SpillTo::kHost));
  SPW_EXPECT_OK(regions_.begin("large"));
  void* block = must_allocate(*arena_, 80 * kMiB, nullptr);
  SPW_EXPECT_OK(regions_.end("large"));
  SPW_EXPECT_OK(regions_.evict("large", SpillTo::kHost));
  EXPECT_GT(usage("large").host_bytes, 0u);
  EXPECT_GT(usage("large").disk_bytes, 0u);
  EXPECT_EQ(usage("large").host_bytes + usage("large").disk_bytes, 80 * kMiB);
  EXPECT_EQ(usage("first").disk_bytes, kBytes) << "it was used longer ago";
  SPW_EXPECT_OK(regions_.restore("large"));
  SPW_EXPECT_OK(regions_.release("large"));
  SPW_EXPECT_OK(Arena::free(block));
}

// Its blocks are the program's, to be freed at any time.
TEST_F(FullHostTest, WhatWasReleasedIsNotMoved) {
  SPW_EXPECT_OK(regions_.begin("released"));
  void* block = must_allocate(*arena_, 16 * kMiB, nullptr);
  SPW_EXPECT_OK(regions_.end("released"));
  SPW_EXPECT_OK(regions_.evict("released", SpillTo::kHost));
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(regions_.release("released"));
  SPW_EXPECT_OK(regions_.evict("first", SpillTo::kHost));
  SPW_EXPECT_OK(regions_.evict("second", SpillTo::kHost));
  EXPECT_EQ(usage("second").host_bytes, kBytes);
}

class FullHostAndBrokenDiskTest : public FullHostTest {
 protected:
  FullHostAndBrokenDiskTest() : FullHostTest(broken()) {}
  static DiskTierOptions broken() {
    return with_faults({}, [](const IoOperation& operation, uint64_t) {
      return operation.kind == IoKind::kWrite ? fails(-EIO) : IoFault{};
    });
  }
};

TEST_F(FullHostAndBrokenDiskTest, WhatCannotBeWrittenStaysInHostMemory) {
  SPW_EXPECT_OK(regions_.evict("first", SpillTo::kHost));
  EXPECT_EQ(regions_.evict("second", SpillTo::kHost).code(), SPW_ERROR_IO);
  EXPECT_EQ(usage("first").host_bytes, kBytes);
  EXPECT_EQ(usage("second").device_bytes, kBytes);
}

}  // namespace
}  // namespace spillway::test
