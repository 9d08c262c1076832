#include "tests/support/forked.h"

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

using test::holds_in_child;

class ForkTest : public DeviceTest {};

TEST_F(ForkTest, AChildHasNoDevice) {
  const CUdeviceptr block = alloc();
  const CUstream work = stream();
  EXPECT_TRUE(holds_in_child([&] {
    CUdeviceptr other = 0;
    CUcontext context = nullptr;
    int count = 0;
    const SpwSimRange range{block, kPage, 0, 0};
    for (const CUresult result :
         {cuInit(0), cuDeviceGetCount(&count), cuDevicePrimaryCtxRetain(&context, 0),
          cuCtxGetCurrent(&context), cuMemAlloc(&other, kPage), cuMemFree(block), cuMemUnmap(block, kPage),
          cuStreamQuery(work), cuStreamDestroy(work), cuCtxSynchronize(),
          static_cast<CUresult>(spwSimTouch(work, &range, 1, SPW_SIM_WRITE))}) {
      if (result != CUDA_ERROR_NOT_INITIALIZED) return false;
    }
    return true;
  }));
  SIM_EXPECT_OK(cuMemFree(block));
}

TEST_F(ForkTest, WhatNeedsNoDeviceAnswersAChild) {
  EXPECT_TRUE(holds_in_child([] {
    int version = 0;
    const char* name = nullptr;
    return cuDriverGetVersion(&version) == CUDA_SUCCESS &&
           cuGetErrorName(CUDA_ERROR_NOT_INITIALIZED, &name) == CUDA_SUCCESS;
  }));
}

TEST_F(ForkTest, AChildOfAChildHasNoneEither) {
  EXPECT_TRUE(holds_in_child(
      [] { return holds_in_child([] { return cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED; }); }));
}

TEST_F(ForkTest, AConfigurationIsAFreshProcessInAChildToo) {
  (void)alloc();
  EXPECT_TRUE(holds_in_child([] {
    CUcontext context = nullptr;
    CUdeviceptr block = 0;
    return spwSimConfigure("") == CUDA_SUCCESS && spwSimPhysicalBytes(0) == 0 &&
           cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
           cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc(&block, kPage) == CUDA_SUCCESS;
  }));
  EXPECT_EQ(spwSimPhysicalBytes(0), kPage) << "the parent's";
}

}  // namespace
}  // namespace spillway::sim_test
