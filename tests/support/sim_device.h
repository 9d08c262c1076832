// A fresh simulated device for a test: a configuration, the primary context of device 0 made current, and
// short forms of what tests do all the time.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/cuda/sim_control.h"
#include "tests/support/sizes.h"

namespace spillway::sim_test {

using test::kMiB;
constexpr size_t kPage = 2 * kMiB;

#define SIM_OK(call) ASSERT_EQ(call, CUDA_SUCCESS)
#define SIM_EXPECT_OK(call) EXPECT_EQ(call, CUDA_SUCCESS)

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { start(""); }

  void start(const char* configuration) {
    ASSERT_EQ(spwSimConfigure(configuration), CUDA_SUCCESS) << spwSimLastError();
    CUcontext context = nullptr;
    SIM_OK(cuInit(0));
    SIM_OK(cuDevicePrimaryCtxRetain(&context, 0));
    SIM_OK(cuCtxSetCurrent(context));
    spwSimResetCounters();
  }

  static CUmemAllocationProp device_memory(int device = 0) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return prop;
  }
  static CUmemAccessDesc read_write(int device = 0) {
    CUmemAccessDesc desc{};
    desc.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return desc;
  }

  static CUmemGenericAllocationHandle create(size_t bytes = kPage) {
    const CUmemAllocationProp prop = device_memory();
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, bytes, &prop, 0), CUDA_SUCCESS);
    return handle;
  }
  static CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr start = 0;
    EXPECT_EQ(cuMemAddressReserve(&start, bytes, 0, 0, 0), CUDA_SUCCESS);
    return start;
  }
  static void map(CUdeviceptr at, CUmemGenericAllocationHandle handle, size_t bytes = kPage) {
    const CUmemAccessDesc desc = read_write();
    EXPECT_EQ(cuMemMap(at, bytes, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemSetAccess(at, bytes, &desc, 1), CUDA_SUCCESS);
  }
  // A new handle in a new reservation.
  static CUdeviceptr map_new(size_t bytes = kPage) {
    const CUdeviceptr at = reserve(bytes);
    map(at, create(bytes), bytes);
    return at;
  }
  static CUdeviceptr alloc(size_t bytes = kPage) {
    CUdeviceptr block = 0;
    EXPECT_EQ(cuMemAlloc(&block, bytes), CUDA_SUCCESS);
    return block;
  }
  static CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    EXPECT_EQ(cuStreamCreate(&made, flags), CUDA_SUCCESS);
    return made;
  }
  static CUevent event() {
    CUevent made = nullptr;
    EXPECT_EQ(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return made;
  }
  static void touch(CUstream on, CUdeviceptr start, size_t bytes, unsigned flags = SPW_SIM_WRITE) {
    const SpwSimRange range{start, bytes, 0, 0};
    EXPECT_EQ(spwSimTouch(on, &range, 1, flags), CUDA_SUCCESS);
  }

  static std::vector<std::string> reports() {
    std::vector<std::string> texts;
    for (size_t i = 0; i < spwSimReportCount(); ++i) texts.emplace_back(spwSimReport(i));
    return texts;
  }
};

}  // namespace spillway::sim_test
