// An error of the driver that lasts turns a device's tiers off, once: what is where stays there, and every
// later move says at once what the error was.
#include <cerrno>

#include "offload/spill/device_tiers.h"
#include "tests/offload/spilling.h"

namespace spillway::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kBytes = 20 * kMiB;  // a segment

class LastingErrorTest : public testing::Test {
 protected:
  LastingErrorTest() : device_("capacity:128MiB,completion:late"), arena_(device_.arena()) {
    Result<std::unique_ptr<DeviceTiers>> made = DeviceTiers::create(
        *device_.driver, *arena_, pinned_, disk_options(directory_.path(), false), Codec::kNone);
    if (!made.ok()) throw std::runtime_error(made.status().text());
    tiers_ = std::move(made.value());
    for (const char* tag : {"here", "in-host", "on-disk"}) blocks_.push_back(make(tag));
    SPW_EXPECT_OK(regions().evict("in-host", SpillTo::kHost));
    SPW_EXPECT_OK(regions().evict("on-disk", SpillTo::kDisk));
  }
  ~LastingErrorTest() override {
    device_.clear_faults();
    for (void* block : blocks_) SPW_EXPECT_OK(Arena::free(block));
    for (const char* tag : {"here", "in-host", "on-disk"}) SPW_EXPECT_OK(regions().release(tag));
    SPW_EXPECT_OK(arena_->trim());
  }

  Regions& regions() { return tiers_->regions(); }
  void* make(const char* tag) {
    SPW_EXPECT_OK(regions().begin(tag));
    void* block = must_allocate(*arena_, kBytes, nullptr);
    SPW_EXPECT_OK(regions().end(tag));
    return block;
  }
  void expect_where_they_were() {
    const auto usage = [&](const char* tag) { return regions().report(tag).value().usage; };
    EXPECT_EQ(usage("here").device_bytes, kBytes);
    EXPECT_EQ(usage("in-host").host_bytes, kBytes);
    EXPECT_EQ(usage("on-disk").disk_bytes, kBytes);
  }
  // With the error's name, without a call of the driver.
  void expect_off(const Status& status, const std::string& said) {
    EXPECT_EQ(status.code(), SPW_ERROR_DRIVER) << status.text();
    EXPECT_NE(status.text().find("nothing is moved on this device any more"), std::string::npos)
        << status.text();
    EXPECT_NE(status.text().find(said), std::string::npos) << status.text();
  }
  void expect_all_off(const std::string& said) {
    expect_where_they_were();
    const uint64_t calls = device_.total_calls();
    for (int i = 0; i < 2; ++i) {
      expect_off(regions().evict("here", SpillTo::kHost), said);
      expect_off(regions().evict("here", SpillTo::kDisk), said);
      expect_off(regions().evict("here", SpillTo::kNowhere), said);
      for (const char* tag : {"in-host", "on-disk"}) {
        expect_off(regions().restore(tag), said);
        expect_off(regions().prefetch(tag), said);
      }
      const auto va = reinterpret_cast<CUdeviceptr>(blocks_[0]);
      expect_off(tiers_->stashes().put(va, kMiB, nullptr, Stashes::To::kHost).take_status(), said);
    }
    EXPECT_EQ(device_.total_calls(), calls);
    expect_where_they_were();
  }

  const Folder directory_;
  Device device_;
  PinnedArena pinned_{*device_.driver, {}};
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<DeviceTiers> tiers_;
  std::vector<void*> blocks_;
};

TEST_F(LastingErrorTest, OfACopyOut) {
  device_.inject_fault("cuMemcpyDtoHAsync", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  const Status first = regions().evict("here", SpillTo::kHost);
  EXPECT_EQ(first.code(), SPW_ERROR_DRIVER);
  EXPECT_NE(first.text().find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << first.text();
  expect_all_off("cuMemcpyDtoHAsync: CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(tiers_->copy_streams().lasting_error(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(LastingErrorTest, OfAKernelThatTheMoveWaitsFor) {
  device_.inject_fault("cuCtxSynchronize", 1, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(regions().evict("here", SpillTo::kDisk).code(), SPW_ERROR_DRIVER);
  expect_all_off("CUDA_ERROR_LAUNCH_FAILED");
}

TEST_F(LastingErrorTest, OfACopyBack) {
  for (const char* tag : {"in-host", "on-disk"}) {
    SCOPED_TRACE(tag);
    device_.inject_fault("cuMemcpyHtoDAsync", 2, CUDA_ERROR_ECC_UNCORRECTABLE);
    EXPECT_EQ(regions().restore(tag).code(), SPW_ERROR_DRIVER);
  }
  expect_all_off("CUDA_ERROR_ECC_UNCORRECTABLE");
}

TEST_F(LastingErrorTest, OfAPrefetch) {
  device_.inject_fault("cuMemcpyHtoDAsync", 1, CUDA_ERROR_LAUNCH_TIMEOUT);
  SPW_EXPECT_OK(regions().prefetch("in-host"));
  EXPECT_EQ(regions().restore("in-host").code(), SPW_ERROR_DRIVER);
  expect_all_off("CUDA_ERROR_LAUNCH_TIMEOUT");
}

TEST_F(LastingErrorTest, OfAStash) {
  const auto va = reinterpret_cast<CUdeviceptr>(blocks_[0]);
  Result<Stashes::Stash*> made = tiers_->stashes().put(va, 4 * kMiB, nullptr, Stashes::To::kHost);
  ASSERT_TRUE(made.ok()) << made.status().text();
  device_.inject_fault("cuStreamWaitEvent", 1, CUDA_ERROR_MISALIGNED_ADDRESS);
  EXPECT_EQ(tiers_->stashes().begin_get(*made.value(), va, nullptr).code(), SPW_ERROR_DRIVER);
  expect_all_off("CUDA_ERROR_MISALIGNED_ADDRESS");
  expect_off(tiers_->stashes().begin_get(*made.value(), va, nullptr), "CUDA_ERROR_MISALIGNED_ADDRESS");
  tiers_->stashes().free(made.value());
}

// One that passes leaves them on.
TEST_F(LastingErrorTest, AnErrorThatPassesIsNone) {
  device_.inject_fault("cuMemcpyDtoHAsync", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(regions().evict("here", SpillTo::kHost).code(), SPW_ERROR_DRIVER);
  EXPECT_EQ(tiers_->copy_streams().lasting_error(), 0);
  SPW_EXPECT_OK(regions().evict("here", SpillTo::kHost));
  for (const char* tag : {"here", "in-host", "on-disk"}) SPW_EXPECT_OK(regions().restore(tag));
}

}  // namespace
}  // namespace spillway::test
