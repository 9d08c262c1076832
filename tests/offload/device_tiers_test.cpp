// All that lies below one device, as a whole: it gives up host memory that nothing is in, and an error of the
// driver that lasts turns it off, once: what is where stays there, and every later move says at once what the
// error was.
#include "offload/spill/device_tiers.h"

#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

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

class DeviceTiersTest : public testing::Test {
 protected:
  Result<std::unique_ptr<DeviceTiers>> make() {
    DiskTierOptions options = disk_options(directory_.path(), false);
    options.buffers = 2;  // all are used, and kept
    return DeviceTiers::create(*device_.driver, *arena_, pinned_, options, Codec::kNone);
  }

  const Folder directory_;
  Device device_{"capacity:128MiB,completion:late"};
  PinnedArena pinned_{*device_.driver, {}};
  std::unique_ptr<Arena> arena_ = device_.arena();
};

TEST_F(DeviceTiersTest, WithoutItsStreamsThereAreNone) {
  for (const uint64_t nth : {1u, 2u}) {
    device_.inject_fault("cuStreamCreate", nth, CUDA_ERROR_UNKNOWN);
    const uint64_t destroyed = device_.calls("cuStreamDestroy");
    const Status status = make().take_status();
    EXPECT_EQ(status.code(), SPW_ERROR_DRIVER);
    EXPECT_NE(status.text().find("cuStreamCreate"), std::string::npos) << status.text();
    EXPECT_EQ(device_.calls("cuStreamDestroy"), destroyed + nth - 1) << "of those that were made";
  }
  SPW_EXPECT_OK(make().take_status());
}

TEST_F(DeviceTiersTest, HostMemoryThatNothingIsInAnyMoreIsGivenUp) {
  Result<std::unique_ptr<DeviceTiers>> made = make();
  ASSERT_TRUE(made.ok()) << made.status().text();
  DeviceTiers& tiers = *made.value();
  SPW_EXPECT_OK(tiers.regions().begin("a"));
  void* block = must_allocate(*arena_, 2 * kBytes, nullptr);
  SPW_EXPECT_OK(tiers.regions().end("a"));
  const auto va = reinterpret_cast<CUdeviceptr>(block);
  Result<Stashes::Stash*> over = tiers.stashes().put(va, kMiB, nullptr, Stashes::To::kHost);
  Result<Stashes::Stash*> kept = tiers.stashes().put(va, 3 * kMiB, nullptr, Stashes::To::kHost);
  ASSERT_TRUE(over.ok() && kept.ok());
  tiers.stashes().free(over.value());
  SPW_EXPECT_OK(tiers.regions().evict("a", SpillTo::kDisk));  // by buffers, which waits for the copies too
  EXPECT_EQ(tiers.regions().report("a").value().usage.disk_bytes, 2 * kBytes);
  (void)pinned_.release_free();
  EXPECT_GT(pinned_.reserved_bytes(), 2 * Staging::kBufferBytes);
  // Any thread may call it, without a context.
  EXPECT_EQ(device_.driver->cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  tiers.give_up_host_memory();
  EXPECT_EQ(device_.driver->cuCtxSetCurrent(device_.context), CUDA_SUCCESS);
  (void)pinned_.release_free();
  EXPECT_LE(pinned_.reserved_bytes(), 4 * kMiB) << "of what is still in use";
  EXPECT_GE(pinned_.reserved_bytes(), 3 * kMiB);
  SPW_EXPECT_OK(tiers.regions().restore("a"));
  tiers.stashes().free(kept.value());
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(tiers.regions().release("a"));
  SPW_EXPECT_OK(arena_->trim());
}

}  // namespace
}  // namespace spillway::test
