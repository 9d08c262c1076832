// Owners of contexts, memory and events on a device: the simulated one, or a real one under the label gpu.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "driver/context.h"
#include "driver/driver.h"
#include "driver/event.h"
#include "driver/memory.h"

namespace spillway {
namespace {

using testing::Each;
using testing::HasSubstr;

// A program that uses device 0, as every program does before Spillway meets it.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::shared_ptr<const Driver>> opened = Driver::open();
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    driver_ = opened.value();
    ASSERT_EQ(driver_->cuDevicePrimaryCtxRetain(&program_context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver_->cuCtxSetCurrent(program_context_), CUDA_SUCCESS);
    ASSERT_EQ(driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    Result<DeviceProperties> properties = query_device(*driver_, 0);
    ASSERT_TRUE(properties.ok()) << properties.status().text();
    granule_ = properties.value().granularity_bytes;
    total_bytes_ = properties.value().total_bytes;
    if (!properties.value().vmm_supported) GTEST_SKIP() << "this device has no virtual memory management";
  }

  void TearDown() override {
    if (driver_ == nullptr) return;
    if (stream_ != nullptr) {
      EXPECT_EQ(driver_->cuStreamDestroy(stream_), CUDA_SUCCESS);
    }
    EXPECT_EQ(driver_->cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(driver_->cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  }

  const Driver& driver() const { return *driver_; }

  PhysicalHandle handle(size_t bytes, Sharing sharing = Sharing::kNone) {
    Result<PhysicalHandle> made = PhysicalHandle::create(driver(), 0, bytes, sharing);
    EXPECT_TRUE(made.ok()) << made.status().text();
    return std::move(made.value());
  }
  AddressRange range(size_t bytes) {
    Result<AddressRange> made = AddressRange::reserve(driver(), bytes);
    EXPECT_TRUE(made.ok()) << made.status().text();
    return std::move(made.value());
  }
  Event event() {
    Result<Event> made = Event::create(driver());
    EXPECT_TRUE(made.ok()) << made.status().text();
    return std::move(made.value());
  }
  std::vector<unsigned char> read(CUdeviceptr from, size_t bytes) {
    std::vector<unsigned char> host(bytes);
    EXPECT_EQ(driver_->cuStreamSynchronize(stream_), CUDA_SUCCESS);
    EXPECT_EQ(driver_->cuMemcpyDtoH(host.data(), from, bytes), CUDA_SUCCESS);
    return host;
  }

  std::shared_ptr<const Driver> driver_;
  CUcontext program_context_ = nullptr;
  CUstream stream_ = nullptr;
  size_t granule_ = 0;
  size_t total_bytes_ = 0;
};

#define EXPECT_OK(expression)                        \
  do {                                               \
    const Status status_of = (expression);           \
    EXPECT_TRUE(status_of.ok()) << status_of.text(); \
  } while (false)

TEST(ContextTest, ADeviceThatNobodyUsesIsLeftAlone) {
  Result<std::shared_ptr<const Driver>> driver = Driver::open();
  ASSERT_TRUE(driver.ok()) << driver.status().text();
  const auto context = RetainedContext::retain(driver.value(), 0);
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.status().code(), SPW_ERROR_INVALID_STATE);
  EXPECT_THAT(context.status().text(), HasSubstr("device 0 has no active context"));
  unsigned flags = 0;
  int active = 1;
  ASSERT_EQ(driver.value()->cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
}

TEST_F(DeviceTest, PropertiesAreThoseOfADevice) {
  const auto properties = query_device(driver(), 0);
  ASSERT_TRUE(properties.ok()) << properties.status().text();
  EXPECT_FALSE(properties.value().name.empty());
  EXPECT_GT(total_bytes_, size_t{0});
  EXPECT_GT(granule_, size_t{0});
  EXPECT_EQ(granule_ & (granule_ - 1), 0U);
  EXPECT_EQ(properties.value().recommended_granularity_bytes % granule_, 0U);
}

TEST_F(DeviceTest, TheActivePrimaryContextIsRetainedAndOutlivesItsProgram) {
  auto retained = RetainedContext::retain(driver_, 0);
  ASSERT_TRUE(retained.ok()) << retained.status().text();
  EXPECT_EQ(retained.value().get(), program_context_);
  ASSERT_EQ(driver_->cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  unsigned flags = 0;
  int active = 0;
  ASSERT_EQ(driver_->cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
  ASSERT_EQ(driver_->cuDevicePrimaryCtxRetain(&program_context_, 0), CUDA_SUCCESS);
  RetainedContext moved = std::move(retained.value());
  EXPECT_TRUE(moved);
  EXPECT_FALSE(retained.value());
}

TEST_F(DeviceTest, AnotherThreadFindsThePrimaryContextToo) {
  std::thread([this] {
    const auto retained = RetainedContext::retain(driver_, 0);
    ASSERT_TRUE(retained.ok()) << retained.status().text();
    EXPECT_EQ(retained.value().get(), program_context_);
    CUcontext current = nullptr;
    EXPECT_EQ(driver_->cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
    {
      const ScopedContext scope(*driver_, retained.value().get());
      EXPECT_TRUE(scope.status().ok()) << scope.status().text();
      EXPECT_EQ(driver_->cuCtxGetCurrent(&current), CUDA_SUCCESS);
      EXPECT_EQ(current, program_context_);
      const ScopedContext again(*driver_, retained.value().get());
      EXPECT_TRUE(again.status().ok());
    }
    EXPECT_EQ(driver_->cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
  }).join();
}

TEST_F(DeviceTest, ADeviceThatDoesNotExistIsNamed) {
  const auto context = RetainedContext::retain(driver_, 4711);
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.status().code(), SPW_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(context.status().text(), HasSubstr("device 4711"));
}

TEST_F(DeviceTest, TwoViewsOfOneHandleShowTheSameBytes) {
  const PhysicalHandle memory = handle(granule_);
  const AddressRange one = range(granule_);
  const AddressRange two = range(granule_);
  for (const AddressRange* view : {&one, &two}) {
    EXPECT_OK(map(driver(), view->base(), memory));
    EXPECT_OK(set_access(driver(), view->base(), granule_, 0));
  }
  ASSERT_EQ(driver_->cuMemsetD8Async(one.base(), 0x5A, granule_, stream_), CUDA_SUCCESS);
  EXPECT_THAT(read(two.base(), granule_), Each(0x5A));
  EXPECT_OK(unmap(driver(), one.base(), granule_));
  EXPECT_THAT(read(two.base(), granule_), Each(0x5A));
  EXPECT_OK(unmap(driver(), two.base(), granule_));
}

TEST_F(DeviceTest, OneCallGrantsAndRemovesManyMappings) {
  constexpr size_t kHandles = 4;
  std::vector<PhysicalHandle> handles;
  const AddressRange view = range(kHandles * granule_);
  for (size_t i = 0; i < kHandles; ++i) {
    handles.push_back(handle(granule_));
    EXPECT_OK(map(driver(), view.base() + i * granule_, handles.back()));
  }
  const int devices[] = {0};
  EXPECT_OK(set_access(driver(), view.base(), kHandles * granule_, devices, 1));
  ASSERT_EQ(driver_->cuMemsetD8Async(view.base(), 0x17, kHandles * granule_, stream_), CUDA_SUCCESS);
  EXPECT_THAT(read(view.base() + granule_ - 16, 32), Each(0x17));
  EXPECT_OK(unmap(driver(), view.base(), kHandles * granule_));
}

TEST_F(DeviceTest, MemoryComesBackWhenItsHandleIsReleased) {
  size_t before = 0;
  size_t during = 0;
  size_t total = 0;
  const size_t bytes = 32 * granule_;
  ASSERT_EQ(driver_->cuMemGetInfo(&before, &total), CUDA_SUCCESS);
  PhysicalHandle memory = handle(bytes);
  EXPECT_EQ(memory.bytes(), bytes);
  ASSERT_EQ(driver_->cuMemGetInfo(&during, &total), CUDA_SUCCESS);
  EXPECT_LE(during + bytes, before);
  PhysicalHandle moved = std::move(memory);
  EXPECT_FALSE(memory);  // NOLINT(bugprone-use-after-move): what is left behind is the subject
  EXPECT_OK(moved.release());
  EXPECT_FALSE(moved);
  EXPECT_OK(moved.release());
}

TEST_F(DeviceTest, MoreThanTheDeviceHasIsOutOfMemory) {
  const size_t absurd = (total_bytes_ / granule_ + 1) * granule_;
  const auto memory = PhysicalHandle::create(driver(), 0, absurd);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(memory.status().text(), HasSubstr("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"));
  const auto block = DeviceBlock::allocate(driver(), absurd);
  ASSERT_FALSE(block.ok());
  EXPECT_EQ(block.status().code(), SPW_ERROR_OUT_OF_MEMORY);
}

TEST_F(DeviceTest, ASizeThatIsNoMultipleOfTheGranularityIsTheDriversError) {
  const auto memory = PhysicalHandle::create(driver(), 0, granule_ + 1);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), SPW_ERROR_DRIVER);
  EXPECT_THAT(memory.status().text(), HasSubstr("cuMemCreate: CUDA_ERROR_INVALID_VALUE"));
}

TEST_F(DeviceTest, AnExportableHandleGivesADescriptor) {
  const auto properties = query_device(driver(), 0);
  if (properties.value().posix_handles != 1) GTEST_SKIP() << "this device exports no file descriptors";
  const PhysicalHandle memory = handle(granule_, sharing_of(true, properties.value().rdma_vmm == 1));
  const auto descriptor = export_file_descriptor(driver(), memory.get());
  ASSERT_TRUE(descriptor.ok()) << descriptor.status().text();
  EXPECT_GE(descriptor.value(), 0);
  EXPECT_EQ(close(descriptor.value()), 0);
}

TEST_F(DeviceTest, PlainMemoryHoldsBytes) {
  auto block = DeviceBlock::allocate(driver(), 1000);
  ASSERT_TRUE(block.ok()) << block.status().text();
  ASSERT_EQ(driver_->cuMemsetD8Async(block.value().base(), 0x33, 1000, stream_), CUDA_SUCCESS);
  EXPECT_THAT(read(block.value().base(), 1000), Each(0x33));
  EXPECT_OK(block.value().release());
}

TEST_F(DeviceTest, AnEventMarksThePointWhereItWasRecorded) {
  const Event done = event();
  ASSERT_TRUE(done.completed().ok());
  const DeviceBlock block = std::move(DeviceBlock::allocate(driver(), 4096).value());
  ASSERT_EQ(driver_->cuMemsetD8Async(block.base(), 0x44, 4096, stream_), CUDA_SUCCESS);
  EXPECT_OK(done.record(stream_));
  CUstream other = nullptr;
  ASSERT_EQ(driver_->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  EXPECT_OK(done.make_wait(other));
  std::vector<unsigned char> host(4096);
  ASSERT_EQ(driver_->cuMemcpyDtoHAsync(host.data(), block.base(), host.size(), other), CUDA_SUCCESS);
  ASSERT_EQ(driver_->cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_THAT(host, Each(0x44));
  EXPECT_OK(done.synchronize());
  EXPECT_TRUE(done.completed().value());
  ASSERT_EQ(driver_->cuStreamDestroy(other), CUDA_SUCCESS);
}

TEST_F(DeviceTest, ThePoolGivesAnEventOutAgain) {
  EventPool pool(driver());
  auto first = pool.acquire();
  ASSERT_TRUE(first.ok()) << first.status().text();
  const CUevent known = first.value().get();
  EXPECT_OK(first.value().record(stream_));
  pool.give_back(std::move(first.value()));
  EXPECT_EQ(pool.kept(), 1U);
  auto second = pool.acquire();
  ASSERT_TRUE(second.ok()) << second.status().text();
  EXPECT_EQ(second.value().get(), known);
  EXPECT_EQ(pool.kept(), 0U);
  pool.give_back(std::move(second.value()));
  pool.clear();
  EXPECT_EQ(pool.kept(), 0U);
}

TEST_F(DeviceTest, ThreadsShareOnePoolOfEvents) {
  EventPool pool(driver());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const ScopedContext scope(driver(), program_context_);
      for (int i = 0; i < 100; ++i) {
        auto taken = pool.acquire();
        ASSERT_TRUE(taken.ok()) << taken.status().text();
        pool.give_back(std::move(taken.value()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(pool.kept(), 1U);
  EXPECT_LE(pool.kept(), 4U);
  pool.clear();
}

}  // namespace
}  // namespace spillway
