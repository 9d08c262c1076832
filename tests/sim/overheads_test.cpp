#include <gmock/gmock.h>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

constexpr uint64_t kContext = 300 * kMiB;
constexpr uint64_t kWindow = 512 * kMiB;

class OverheadsTest : public DeviceTest {
 protected:
  void SetUp() override { start("overheads:on,capacity:310MiB,backing:none"); }

  static CUfunction function_of_a_new_module() {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    EXPECT_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&function, module, "kernel"), CUDA_SUCCESS);
    return function;
  }
  static CUresult launch(CUfunction function) {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  }
};

TEST_F(OverheadsTest, AContextTakesMemory) {
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext);
  size_t free = 0;
  size_t total = 0;
  SIM_OK(cuMemGetInfo(&free, &total));
  EXPECT_EQ(free, total - kContext);
  CUcontext second = nullptr;
  EXPECT_EQ(cuCtxCreate(&second, nullptr, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  SIM_OK(cuDevicePrimaryCtxRelease(0));
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
  SIM_EXPECT_OK(cuCtxCreate(&second, nullptr, 0, 0));
}

TEST_F(OverheadsTest, AModuleTakesMemoryAtItsFirstLaunch) {
  const CUfunction first = function_of_a_new_module();
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext) << "it is loaded lazily";
  SIM_EXPECT_OK(launch(first));
  SIM_EXPECT_OK(launch(first));
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext + kPage);
  const CUmemAllocationProp prop = device_memory();
  CUmemGenericAllocationHandle rest = 0;
  SIM_OK(cuMemCreate(&rest, 8 * kMiB, &prop, 0));
  EXPECT_EQ(launch(function_of_a_new_module()), CUDA_ERROR_OUT_OF_MEMORY) << "nothing is left";
  SIM_EXPECT_OK(launch(first));
  SIM_OK(cuMemRelease(rest));
  SIM_EXPECT_OK(launch(function_of_a_new_module()));
}

TEST_F(OverheadsTest, AnUnloadedModuleGivesItsMemoryBack) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  SIM_OK(cuModuleLoadData(&module, "image"));
  SIM_OK(cuModuleGetFunction(&function, module, "kernel"));
  SIM_OK(launch(function));
  SIM_OK(cuModuleUnload(module));
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext);
}

TEST_F(OverheadsTest, PageTablesComeTwoMibAtATime) {
  const CUdeviceptr at = reserve(1024 * kWindow);
  const CUdeviceptr start = (at + kWindow - 1) / kWindow * kWindow;
  const CUmemGenericAllocationHandle page = create();
  for (uint64_t i = 0; i < 512; ++i) map(start + i * kWindow, page);
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext + 2 * kPage) << "512 tables of 4 KiB, and a page";
  map(start + kPage, page);
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext + 2 * kPage) << "in a window that has a table";
  map(start + 512 * kWindow, page);
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext + 3 * kPage);
  SIM_OK(cuMemUnmap(start + 512 * kWindow, kPage));
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext + 2 * kPage);
}

TEST_F(OverheadsTest, AMappingIsRefusedWhereThereIsNoMemoryForTables) {
  const CUdeviceptr at = reserve(2 * kPage);
  const CUmemAllocationProp prop = device_memory();
  CUmemGenericAllocationHandle all = 0;
  SIM_OK(cuMemCreate(&all, 10 * kMiB, &prop, 0));
  const CUmemGenericAllocationHandle none = all;
  const CUdeviceptr wide = reserve(10 * kMiB);
  EXPECT_EQ(cuMemMap(wide, 10 * kMiB, 0, none, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(spwSimLiveMappings(), 0u);
  SIM_OK(cuMemRelease(all));
  map(at, create());
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext + 2 * kPage);
}

TEST_F(OverheadsTest, AnotherDeviceNeedsTablesOfItsOwn) {
  start("overheads:on,capacity:310MiB,backing:none,devices:2");
  const CUdeviceptr at = map_new();
  EXPECT_EQ(spwSimPhysicalBytes(1), 0u);
  const CUmemAccessDesc desc = read_write(1);
  SIM_OK(cuMemSetAccess(at, kPage, &desc, 1));
  EXPECT_EQ(spwSimPhysicalBytes(1), kPage);
  SIM_OK(cuMemUnmap(at, kPage));
  EXPECT_EQ(spwSimPhysicalBytes(1), 0u);

  const CUmemAllocationProp prop = device_memory(1);
  CUmemGenericAllocationHandle all = 0;
  SIM_OK(cuMemCreate(&all, 310 * kMiB, &prop, 0));
  const CUmemGenericAllocationHandle page = create();
  SIM_OK(cuMemMap(at, kPage, 0, page, 0));
  EXPECT_EQ(cuMemSetAccess(at, kPage, &desc, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(OverheadsTest, ABlockOfCuMemAllocNeedsTablesToo) {
  CUdeviceptr block = 0;
  EXPECT_EQ(cuMemAlloc(&block, 10 * kMiB), CUDA_ERROR_OUT_OF_MEMORY) << "what is left is as large";
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext);
  SIM_OK(cuMemAlloc(&block, 8 * kMiB));
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext + 10 * kMiB);
  SIM_OK(cuMemFree(block));
  EXPECT_EQ(spwSimPhysicalBytes(0), kContext);
}

TEST_F(OverheadsTest, AreOffUnlessAskedFor) {
  start("capacity:4MiB");
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
  (void)map_new(2 * kPage);
  EXPECT_EQ(spwSimPhysicalBytes(0), 2 * kPage);
  SIM_EXPECT_OK(launch(function_of_a_new_module()));
}

}  // namespace
}  // namespace spillway::sim_test
