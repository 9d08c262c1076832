#include <gmock/gmock.h>

#include <functional>
#include <thread>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

using ::testing::IsEmpty;

class CaptureTest : public DeviceTest {
 protected:
  static CUstreamCaptureStatus status(CUstream of) {
    CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(of, &found), CUDA_SUCCESS);
    return found;
  }
  static void begin(CUstream on, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    ASSERT_EQ(cuStreamBeginCapture(on, mode), CUDA_SUCCESS);
  }
  // Ends a capture that something has invalidated.
  static void expect_invalidated(CUstream on) {
    EXPECT_EQ(status(on), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(on, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(status(on), CU_STREAM_CAPTURE_STATUS_NONE);
  }
  static void end(CUstream on) {
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(on, &graph), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  }
};

TEST_F(CaptureTest, CapturedWorkRunsAtEachLaunch) {
  const CUdeviceptr block = alloc();
  const CUstream work = stream();
  void* pinned = nullptr;
  SIM_OK(cuMemHostAlloc(&pinned, 1, 0));
  auto* byte = static_cast<unsigned char*>(pinned);
  *byte = 5;
  begin(work);
  EXPECT_EQ(status(work), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  SIM_OK(cuMemcpyHtoDAsync(block, byte, 1, work));
  CUgraph graph = nullptr;
  SIM_OK(cuStreamEndCapture(work, &graph));
  unsigned char got = 0;
  SIM_OK(cuMemcpyDtoH(&got, block, 1));
  EXPECT_EQ(got, 0);
  CUgraphExec exec = nullptr;
  SIM_OK(cuGraphInstantiate(&exec, graph, 0));
  SIM_OK(cuGraphDestroy(graph));
  for (unsigned char value = 6; value < 9; ++value) {
    *byte = value;
    SIM_OK(cuGraphLaunch(exec, work));
    SIM_OK(cuStreamSynchronize(work));
    SIM_OK(cuMemcpyDtoH(&got, block, 1));
    EXPECT_EQ(got, value);
  }
  SIM_OK(cuGraphExecDestroy(exec));
  EXPECT_EQ(cuGraphLaunch(exec, work), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(CaptureTest, InfoNamesTheSequenceAndItsDependencies) {
  const CUstream work = stream();
  begin(work);
  CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  size_t count = 9;
  SIM_OK(cuStreamGetCaptureInfo(work, &found, &id, &graph, &nodes, nullptr, &count));
  EXPECT_EQ(found, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(count, 0u);
  touch(work, 4096, 0);
  SIM_OK(cuStreamGetCaptureInfo(work, &found, nullptr, nullptr, &nodes, nullptr, &count));
  EXPECT_EQ(count, 1u);
  SIM_OK(cuGraphGetNodes(graph, nullptr, &count));
  EXPECT_EQ(count, 1u);
  CUgraph ended = nullptr;
  SIM_OK(cuStreamEndCapture(work, &ended));
  EXPECT_EQ(ended, graph);
}

TEST_F(CaptureTest, AllocationIsUnsafeInGlobalMode) {
  const CUstream work = stream();
  begin(work);
  CUdeviceptr block = 0;
  EXPECT_EQ(cuMemAlloc(&block, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, work, nullptr, nullptr),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  expect_invalidated(work);
  SIM_EXPECT_OK(cuMemAlloc(&block, 1));
}

TEST_F(CaptureTest, RelaxedThreadsMayAllocate) {
  const CUstream work = stream();
  begin(work);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  SIM_OK(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  alloc();
  map_new();
  SIM_OK(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(status(work), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  end(work);
}

TEST_F(CaptureTest, ARelaxedCapturePermitsUnsafeCalls) {
  const CUstream work = stream();
  begin(work, CU_STREAM_CAPTURE_MODE_RELAXED);
  alloc();
  end(work);
}

TEST_F(CaptureTest, VmmCallsUnderCaptureAreConfigured) {
  const CUstream work = stream();
  begin(work);
  const CUmemAllocationProp prop = device_memory();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, kPage, &prop, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated(work);
  start("vmm_in_capture:allow");
  const CUstream again = stream();
  begin(again);
  map_new();
  end(again);
}

TEST_F(CaptureTest, AnotherThreadDisturbsAGlobalCaptureOnly) {
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    const CUstream work = stream();
    const CUevent done = event();
    begin(work, mode);
    const bool global = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUresult asked = CUDA_SUCCESS;
    std::thread watchdog([&] { asked = cuEventQuery(done); });
    watchdog.join();
    EXPECT_EQ(asked, global ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
    if (global) {
      expect_invalidated(work);
    } else {
      CUgraph graph = nullptr;
      CUresult ended = CUDA_SUCCESS;
      std::thread other([&] { ended = cuStreamEndCapture(work, &graph); });
      other.join();
      EXPECT_EQ(ended, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
      end(work);
    }
  }
}

TEST_F(CaptureTest, WaitingForACapturingStreamIsRefusedWhateverTheMode) {
  const CUstream work = stream();
  begin(work, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuStreamSynchronize(work), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated(work);
  begin(work, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuStreamQuery(work), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated(work);
  begin(work, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated(work);
}

TEST_F(CaptureTest, CapturedEventsCannotBeAsked) {
  const CUstream work = stream();
  const CUevent inside = event();
  begin(work, CU_STREAM_CAPTURE_MODE_RELAXED);
  SIM_OK(cuEventRecord(inside, work));
  EXPECT_EQ(cuEventQuery(inside), CUDA_ERROR_CAPTURED_EVENT);
  expect_invalidated(work);
  SIM_OK(cuEventRecord(inside, work));
  SIM_EXPECT_OK(cuEventQuery(inside));
}

TEST_F(CaptureTest, OtherStreamsJoinByEventsAndMustComeBack) {
  const CUstream origin = stream();
  const CUstream side = stream();
  const CUevent fork = event();
  begin(origin);
  SIM_OK(cuEventRecord(fork, origin));
  SIM_OK(cuStreamWaitEvent(side, fork, 0));
  EXPECT_EQ(status(side), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  touch(side, 4096, 0);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  expect_invalidated(origin);
  EXPECT_EQ(status(side), CU_STREAM_CAPTURE_STATUS_NONE);

  begin(origin);
  SIM_OK(cuEventRecord(fork, origin));
  SIM_OK(cuStreamWaitEvent(side, fork, 0));
  touch(side, 4096, 0);
  EXPECT_EQ(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);

  begin(origin);
  SIM_OK(cuEventRecord(fork, origin));
  SIM_OK(cuStreamWaitEvent(side, fork, 0));
  touch(side, 4096, 0);
  SIM_OK(cuEventRecord(fork, side));
  SIM_OK(cuStreamWaitEvent(origin, fork, 0));
  end(origin);
}

TEST_F(CaptureTest, OutsideWorkMayNotBeWaitedFor) {
  const CUstream work = stream();
  const CUevent outside = event();
  SIM_OK(cuEventRecord(outside, stream()));
  begin(work);
  EXPECT_EQ(cuStreamWaitEvent(work, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  expect_invalidated(work);
}

TEST_F(CaptureTest, TwoCapturesDoNotMerge) {
  const CUstream first = stream();
  const CUstream second = stream();
  const CUevent inside = event();
  begin(first);
  begin(second);
  SIM_OK(cuEventRecord(inside, first));
  EXPECT_EQ(cuStreamWaitEvent(second, inside, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  expect_invalidated(first);
  expect_invalidated(second);
}

TEST_F(CaptureTest, TheLegacyStreamNeitherCapturesNorDisturbs) {
  EXPECT_EQ(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  begin(blocking);
  CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &found), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(status(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE) << "asking disturbs nothing";
  EXPECT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  expect_invalidated(blocking);
  const CUstream free = stream(CU_STREAM_NON_BLOCKING);
  begin(free);
  SIM_EXPECT_OK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  end(free);
}

TEST_F(CaptureTest, StatesThatAreNot) {
  const CUstream work = stream();
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(work, &graph), CUDA_ERROR_ILLEGAL_STATE);
  begin(work);
  EXPECT_EQ(cuStreamBeginCapture(work, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
  SIM_OK(cuStreamDestroy(work));
  SIM_EXPECT_OK(cuMemFree(alloc()));
}

TEST_F(CaptureTest, MemoryOfAGraphIsFreedByItOrByTheProgram) {
  const CUstream work = stream();
  CUdeviceptr inside = 0;
  CUdeviceptr outside = 0;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  const auto capture = [&](const std::function<void()>& body) {
    begin(work);
    SIM_OK(cuMemAllocAsync(&inside, 1 << 20, work));
    SIM_OK(cuMemsetD8Async(inside, 7, 1 << 20, work));
    body();
    SIM_OK(cuStreamEndCapture(work, &graph));
    SIM_OK(cuGraphInstantiate(&exec, graph, 0));
    SIM_OK(cuGraphDestroy(graph));
  };
  capture([&] { SIM_OK(cuMemFreeAsync(inside, work)); });
  for (int i = 0; i < 3; ++i) SIM_OK(cuGraphLaunch(exec, work));
  SIM_OK(cuGraphExecDestroy(exec));
  outside = alloc();
  capture([&] { EXPECT_EQ(cuMemFreeAsync(outside, work), CUDA_ERROR_INVALID_VALUE); });
  SIM_OK(cuGraphLaunch(exec, work));
  EXPECT_EQ(cuGraphLaunch(exec, work), CUDA_ERROR_INVALID_VALUE) << "nobody freed it";
  SIM_OK(cuMemFreeAsync(inside, work));
  SIM_OK(cuGraphLaunch(exec, work));
  SIM_OK(cuGraphExecDestroy(exec));
}

TEST_F(CaptureTest, AGraphMayBeCapturedIntoAnother) {
  const CUdeviceptr block = alloc();
  const CUstream work = stream();
  begin(work);
  SIM_OK(cuMemsetD8Async(block, 9, 1, work));
  CUgraph inner = nullptr;
  SIM_OK(cuStreamEndCapture(work, &inner));
  CUgraphExec inner_exec = nullptr;
  SIM_OK(cuGraphInstantiate(&inner_exec, inner, 0));
  begin(work);
  SIM_OK(cuGraphLaunch(inner_exec, work));
  CUgraph outer = nullptr;
  SIM_OK(cuStreamEndCapture(work, &outer));
  CUgraphExec outer_exec = nullptr;
  SIM_OK(cuGraphInstantiate(&outer_exec, outer, 0));
  SIM_OK(cuGraphLaunch(outer_exec, work));
  SIM_OK(cuStreamSynchronize(work));
  unsigned char got = 0;
  SIM_OK(cuMemcpyDtoH(&got, block, 1));
  EXPECT_EQ(got, 9);
}

}  // namespace
}  // namespace spillway::sim_test
