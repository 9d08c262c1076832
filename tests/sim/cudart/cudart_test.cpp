// The stand-in CUDA runtime over whatever driver SPILLWAY_LIBCUDA names.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

// Declared under another name, for programs that are built for per-thread default streams.
extern "C" cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char*, void**, unsigned int,
                                                             unsigned long long,
                                                             cudaDriverEntryPointQueryResult*);

namespace {

TEST(CudartTest, CountsAndDescribesDevices) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  ASSERT_GE(count, 1);
  cudaDeviceProp properties{};
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(properties.totalGlobalMem, total_bytes);
  EXPECT_LE(free_bytes, total_bytes);
  EXPECT_NE(std::string(properties.name), "");
  EXPECT_GT(properties.major, 0);
  EXPECT_EQ(properties.unifiedAddressing, 1);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, count), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST(CudartTest, MakesThePrimaryContextCurrentOnFirstUse) {
  std::thread([] {
    void* pointer = nullptr;
    ASSERT_EQ(cudaMalloc(&pointer, 4096), cudaSuccess);
    EXPECT_NE(pointer, nullptr);
    EXPECT_EQ(cudaFree(pointer), cudaSuccess);
    EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  }).join();
}

TEST(CudartTest, KeepsTheLastErrorOfEachThread) {
  void* pointer = &pointer;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&pointer, total_bytes * 2), cudaErrorMemoryAllocation);
  EXPECT_EQ(pointer, nullptr);
  std::thread([] { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }).join();
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

TEST(CudartTest, SetDeviceRefusesWhatIsNotThere) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  int device = -1;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(count), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0);
  (void)cudaGetLastError();
}

TEST(CudartTest, CopiesRoundTrip) {
  std::array<char, 4096> out{};
  std::array<char, 4096> back{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i * 7);
  void* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, out.size()), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(pointer, out.data(), out.size(), cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(back.data(), pointer, back.size(), cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(std::memcmp(out.data(), back.data(), out.size()), 0);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
}

TEST(CudartTest, EventsCompleteInStreamOrder) {
  int least = 0;
  int greatest = 0;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  EXPECT_LE(greatest, least);
  cudaStream_t stream = nullptr;
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, least), cudaSuccess);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST(CudartTest, PoolsKeepWhatTheyAreToldTo) {
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  const auto get = [&](cudaMemPoolAttr attribute) {
    uint64_t value = 0;
    EXPECT_EQ(cudaMemPoolGetAttribute(pool, attribute, &value), cudaSuccess);
    return value;
  };
  uint64_t all = UINT64_MAX;
  ASSERT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), cudaSuccess);
  EXPECT_EQ(get(cudaMemPoolAttrReleaseThreshold), UINT64_MAX);
  void* block = nullptr;
  ASSERT_EQ(cudaMallocAsync(&block, 1000, stream), cudaSuccess);
  EXPECT_EQ(get(cudaMemPoolAttrUsedMemCurrent), 1000u);
  ASSERT_EQ(cudaFreeAsync(block, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(get(cudaMemPoolAttrUsedMemCurrent), 0u);
  EXPECT_GE(get(cudaMemPoolAttrReservedMemCurrent), 1000u);
  EXPECT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &all), cudaErrorInvalidValue);
  ASSERT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  EXPECT_EQ(get(cudaMemPoolAttrReservedMemCurrent), 0u);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(CudartTest, GraphsFreeTheirMemoryBeforeTheyRunAgain) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t once = nullptr;
  void* block = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(cudaMallocAsync(&block, 1000, stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(block, 1, 1000, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&once, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(once, stream), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(once, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  ASSERT_EQ(cudaFreeAsync(block, stream), cudaSuccess);
  ASSERT_EQ(cudaGraphExecDestroy(once), cudaSuccess);
  cudaGraphExec_t often = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&often, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch), cudaSuccess);
  ASSERT_EQ(cudaGraphUpload(often, stream), cudaSuccess);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(often, stream), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(block, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  uint64_t bytes = 0;
  ASSERT_EQ(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &bytes), cudaSuccess);
  EXPECT_GE(bytes, 1000u);
  ASSERT_EQ(cudaDeviceGraphMemTrim(0), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &bytes), cudaSuccess);
  EXPECT_EQ(bytes, 0u);
  uint64_t zero = 0;
  ASSERT_EQ(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrReservedMemHigh, &zero), cudaSuccess);
}

TEST(CudartTest, FindsDriverFunctionsByNameAndVersion) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuMemCreate", &address, 12000, cudaEnableDefault, &status),
            cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSuccess);
  EXPECT_NE(address, nullptr);
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &address, 12000, cudaEnableDefault, &status),
            cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(address, nullptr);
  void* per_thread = nullptr;
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuMemAllocAsync", &address, 12000, cudaEnableDefault, &status),
            cudaSuccess);
  ASSERT_EQ(cudaGetDriverEntryPointByVersion_ptsz("cuMemAllocAsync", &per_thread, 12000, cudaEnableDefault,
                                                  &status),
            cudaSuccess);
  EXPECT_NE(per_thread, nullptr);
  EXPECT_NE(address, per_thread);
}

// In a process of its own: the driver is resolved once.
TEST(CudartDeathTest, SaysSoWhereThereIsNoDriver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("SPILLWAY_LIBCUDA", "/nowhere/libcuda.so.1", 1);
        int count = -1;
        int version = -1;
        const bool right = cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver && count == 0 &&
                           cudaDriverGetVersion(&version) == cudaSuccess && version == 0;
        std::_Exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// A handler that is older than the runtime's first call runs after the runtime's own, as a library's
// destructors do.
TEST(CudartDeathTest, EndsBeforeTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atexit([] {
          int device = -1;
          void* pointer = nullptr;
          const bool told = cudaGetDevice(&device) == cudaErrorCudartUnloading &&
                            cudaSetDevice(0) == cudaErrorCudartUnloading &&
                            cudaMalloc(&pointer, 4096) == cudaErrorCudartUnloading;
          std::_Exit(told ? 0 : 1);
        });
        int device = -1;
        std::exit(cudaGetDevice(&device) == cudaSuccess ? 2 : 3);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
