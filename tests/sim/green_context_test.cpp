#include <gmock/gmock.h>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

class GreenContextTest : public DeviceTest {
 protected:
  static CUdevResource all_of(CUdevice device) {
    CUdevResource resource{};
    EXPECT_EQ(cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    return resource;
  }
  static CUgreenCtx make(unsigned multiprocessors) {
    const CUdevResource all = all_of(0);
    CUdevResource group{};
    unsigned groups = 1;
    EXPECT_EQ(cuDevSmResourceSplitByCount(&group, &groups, &all, nullptr, 0, multiprocessors), CUDA_SUCCESS);
    CUdevResourceDesc descriptor = nullptr;
    EXPECT_EQ(cuDevResourceGenerateDesc(&descriptor, &group, 1), CUDA_SUCCESS);
    CUgreenCtx context = nullptr;
    EXPECT_EQ(cuGreenCtxCreate(&context, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
    return context;
  }
  static CUcontext converted(CUgreenCtx green) {
    CUcontext context = nullptr;
    EXPECT_EQ(cuCtxFromGreenCtx(&context, green), CUDA_SUCCESS);
    return context;
  }
  static CUstream stream_of(CUgreenCtx green) {
    CUstream made = nullptr;
    EXPECT_EQ(cuGreenCtxStreamCreate(&made, green, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    return made;
  }
};

TEST_F(GreenContextTest, MultiprocessorsAreSplitIntoGroups) {
  const CUdevResource all = all_of(0);
  EXPECT_EQ(all.sm.smCount, 132u);
  unsigned groups = 0;
  SIM_OK(cuDevSmResourceSplitByCount(nullptr, &groups, &all, nullptr, 0, 10));
  EXPECT_EQ(groups, 8u) << "of 16 each";
  CUdevResource some[2] = {};
  CUdevResource rest{};
  groups = 2;
  SIM_OK(cuDevSmResourceSplitByCount(some, &groups, &all, &rest, 0, 10));
  EXPECT_EQ(groups, 2u);
  EXPECT_EQ(some[1].sm.smCount, 16u);
  EXPECT_EQ(rest.sm.smCount, 100u);
  EXPECT_EQ(cuDevSmResourceSplitByCount(some, &groups, &all, nullptr, 0, 133), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GreenContextTest, IsAnotherContextOfTheSameDevice) {
  CUcontext primary = nullptr;
  SIM_OK(cuCtxGetCurrent(&primary));
  const CUgreenCtx green = make(8);
  const CUcontext own = converted(green);
  EXPECT_NE(own, primary);
  SIM_OK(cuCtxPushCurrent(own));
  CUdevice device = -1;
  SIM_OK(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 0);
  const CUdeviceptr block = alloc();
  SIM_OK(cuCtxPopCurrent(nullptr));
  SIM_OK(cuGreenCtxDestroy(green));
  SIM_EXPECT_OK(cuMemFree(block)) << "memory is the primary context's";
  EXPECT_EQ(cuCtxSetCurrent(own), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(GreenContextTest, AHandleIsNoContextBeforeItIsConverted) {
  const CUgreenCtx green = make(8);
  EXPECT_EQ(cuCtxSetCurrent(reinterpret_cast<CUcontext>(green)), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxDestroy(converted(green)), CUDA_ERROR_INVALID_CONTEXT);
  CUcontext primary = nullptr;
  SIM_OK(cuCtxGetCurrent(&primary));
  CUcontext none = nullptr;
  EXPECT_EQ(cuCtxFromGreenCtx(&none, reinterpret_cast<CUgreenCtx>(primary)), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(GreenContextTest, AStreamNamesItsOwnContext) {
  CUcontext primary = nullptr;
  SIM_OK(cuCtxGetCurrent(&primary));
  const CUgreenCtx green = make(8);
  CUstream work = nullptr;
  EXPECT_EQ(cuGreenCtxStreamCreate(&work, green, CU_STREAM_DEFAULT, 0), CUDA_ERROR_INVALID_VALUE);
  work = stream_of(green);
  CUcontext context = nullptr;
  CUgreenCtx of_stream = nullptr;
  SIM_OK(cuStreamGetCtx(work, &context));
  EXPECT_EQ(context, converted(green));
  SIM_OK(cuStreamGetCtx_v2(work, &context, &of_stream));
  EXPECT_EQ(context, primary);
  EXPECT_EQ(of_stream, green);
  SIM_OK(cuStreamGetGreenCtx(work, &of_stream));
  EXPECT_EQ(of_stream, green);
  SIM_OK(cuStreamGetGreenCtx(stream(), &of_stream));
  EXPECT_EQ(of_stream, nullptr);
  touch(work, alloc(), kPage);
  SIM_EXPECT_OK(cuStreamSynchronize(work));
}

TEST_F(GreenContextTest, StreamsAreOfNoUseAfterItsEnd) {
  const CUgreenCtx green = make(8);
  const CUstream work = stream_of(green);
  SIM_OK(cuGreenCtxDestroy(green));
  EXPECT_EQ(cuStreamQuery(work), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuEventRecord(event(), work), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuStreamDestroy(work), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(GreenContextTest, RetainsThePrimaryContext) {
  const CUgreenCtx green = make(8);
  SIM_OK(cuDevicePrimaryCtxRelease(0));
  unsigned flags = 0;
  int active = 0;
  SIM_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 1);
  SIM_OK(cuGreenCtxDestroy(green));
  SIM_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 0);
}

TEST_F(GreenContextTest, AWaitForThePrimaryContextIsOneForItsGreenOnes) {
  start("completion:run-ahead");
  const CUgreenCtx green = make(8);
  const CUstream stream = stream_of(green);
  const CUdeviceptr block = alloc();
  SIM_OK(cuMemsetD8Async(block, 1, 16, stream));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  SIM_OK(cuCtxSynchronize());
  SIM_EXPECT_OK(cuStreamQuery(stream));
}

}  // namespace
}  // namespace spillway::sim_test
