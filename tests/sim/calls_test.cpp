#include <gmock/gmock.h>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

using ::testing::HasSubstr;

class CallsTest : public DeviceTest {};

TEST_F(CallsTest, CallsAreCountedByBaseName) {
  alloc();
  alloc();
  CUdeviceptr none = 0;
  EXPECT_EQ(cuMemAlloc(&none, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(spwSimCalls("cuMemAlloc"), 3u);
  EXPECT_EQ(spwSimTotalCalls(), 3u);
  EXPECT_EQ(spwSimCalls("cuMemAlloc_v2"), 0u);
  spwSimResetCounters();
  EXPECT_EQ(spwSimTotalCalls(), 0u);
  EXPECT_EQ(spwSimCalls("cuMemAlloc"), 0u);
}

TEST_F(CallsTest, EveryEntryPointIsListedOnce) {
  std::vector<std::string> names;
  for (size_t i = 0; spwSimEntryPoint(i) != nullptr; ++i) names.emplace_back(spwSimEntryPoint(i));
  EXPECT_GT(names.size(), 100u);
  EXPECT_THAT(names, ::testing::Contains("cuMemSetAccess"));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST_F(CallsTest, TheNthCallFailsOnce) {
  ASSERT_EQ(spwSimInjectFault("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY), CUDA_SUCCESS);
  CUdeviceptr block = 0;
  SIM_EXPECT_OK(cuMemAlloc(&block, 1));
  EXPECT_EQ(cuMemAlloc(&block, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(spwSimPhysicalBytes(0), kPage) << "a failed call does nothing";
  SIM_EXPECT_OK(cuMemAlloc(&block, 1));
}

TEST_F(CallsTest, AnErrorThatLastsIsEveryCallsFromThenOn) {
  CUdeviceptr block = 0;
  ASSERT_EQ(spwSimInjectFault("cuMemAlloc", 1, CUDA_ERROR_ILLEGAL_ADDRESS), CUDA_SUCCESS);
  SIM_EXPECT_OK(cuCtxSynchronize());
  EXPECT_EQ(cuMemAlloc(&block, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuMemAlloc(&block, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUcontext current = nullptr;
  SIM_EXPECT_OK(cuCtxGetCurrent(&current));
  spwSimClearFaults();
  SIM_EXPECT_OK(cuMemAlloc(&block, 1));
}

TEST_F(CallsTest, FaultsComeFromTheConfigurationToo) {
  start("fault:cuMemMap@2=1,fault:cuMemMap@3,fault:cuStreamCreate@1=999");
  const CUdeviceptr at = reserve(4 * kPage);
  SIM_EXPECT_OK(cuMemMap(at, kPage, 0, create(), 0));
  EXPECT_EQ(cuMemMap(at + kPage, kPage, 0, create(), 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at + kPage, kPage, 0, create(), 0), CUDA_ERROR_OUT_OF_MEMORY);
  SIM_EXPECT_OK(cuMemMap(at + kPage, kPage, 0, create(), 0));
  CUstream made = nullptr;
  EXPECT_EQ(cuStreamCreate(&made, 0), CUDA_ERROR_UNKNOWN);
  SIM_EXPECT_OK(cuStreamCreate(&made, 0));
}

TEST_F(CallsTest, EveryEntryPointCanFail) {
  for (size_t i = 0; spwSimEntryPoint(i) != nullptr; ++i) {
    EXPECT_EQ(spwSimInjectFault(spwSimEntryPoint(i), 1, CUDA_ERROR_UNKNOWN), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuMemUnmap(0, 0), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(cuEventRecord(nullptr, nullptr), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(cuMemcpyHtoDAsync(0, nullptr, 0, nullptr), CUDA_ERROR_UNKNOWN);
  spwSimClearFaults();
  SIM_EXPECT_OK(cuStreamSynchronize(nullptr));
  SIM_EXPECT_OK(cuCtxSynchronize());
  EXPECT_EQ(spwSimInjectFault("cuNothing", 1, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(spwSimLastError(), HasSubstr("cuNothing"));
  EXPECT_EQ(spwSimInjectFault("cuMemMap", 0, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(spwSimInjectFault("cuMemMap", 1, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CallsTest, VirtualTimeReadsBothWays) {
  const CUdeviceptr at = reserve(32 * kPage);
  const CUmemAccessDesc desc = read_write();
  for (size_t i = 0; i < 32; ++i) SIM_OK(cuMemMap(at + i * kPage, kPage, 0, create(), 0));
  spwSimResetCounters();
  SIM_OK(cuMemSetAccess(at, 32 * kPage, &desc, 1));
  const uint64_t per_call = spwSimVirtualNs();
  EXPECT_GT(per_call, 0u);
  EXPECT_EQ(spwSimVirtualNsPerMapping(), 32 * per_call);
  start("set_access_cost:per-mapping");
  const CUdeviceptr again = reserve(2 * kPage);
  for (size_t i = 0; i < 2; ++i) SIM_OK(cuMemMap(again + i * kPage, kPage, 0, create(), 0));
  spwSimResetCounters();
  SIM_OK(cuMemSetAccess(again, 2 * kPage, &desc, 1));
  EXPECT_EQ(spwSimVirtualNs(), 2 * per_call);
  SIM_OK(cuMemSetAccess(again, 2 * kPage, &desc, 1));
  EXPECT_EQ(spwSimVirtualNs(), 2 * per_call) << "granted already";
  spwSimResetCounters();
  SIM_OK(cuMemUnmap(again, 2 * kPage));
  const uint64_t unmapped = spwSimVirtualNs();
  EXPECT_GT(unmapped, 0u);
  EXPECT_EQ(unmapped % 2, 0u) << "each is paid for";
}

TEST_F(CallsTest, AnH100IsPaidByTheMapping) {
  start("costs:h100");
  const CUdeviceptr at = reserve(4 * kPage);
  const CUmemAccessDesc desc = read_write();
  for (size_t i = 0; i < 4; ++i) SIM_OK(cuMemMap(at + i * kPage, kPage, 0, create(), 0));
  spwSimResetCounters();
  SIM_OK(cuMemSetAccess(at, 4 * kPage, &desc, 1));
  EXPECT_EQ(spwSimVirtualNs(), 4 * 28912u);
}

}  // namespace
}  // namespace spillway::sim_test
