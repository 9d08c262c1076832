// The stand-in runtime of CUDA 12, as programs that were built for it call it: functions by that version of
// their names, the older structure.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace {

// Offsets in cudaDeviceProp of CUDA 12, in bytes (driver_types.h of 12.0 to 12.9).
constexpr size_t kTotalGlobalMem = 288;
constexpr size_t kMultiProcessorCount = 388;
constexpr size_t kL2CacheSize = 616;
constexpr size_t kSharedMemPerBlockOptin = 696;
constexpr size_t kBytes = 1032;

template <typename Function>
Function* of_cuda12(const char* name) {
  static void* const kLibrary = ::dlopen(SPILLWAY_CUDART12, RTLD_NOW);
  EXPECT_NE(kLibrary, nullptr) << ::dlerror();
  void* const found = kLibrary == nullptr ? nullptr : ::dlvsym(kLibrary, name, "libcudart.so.12");
  EXPECT_NE(found, nullptr) << name;
  Function* function = nullptr;
  std::memcpy(&function, &found, sizeof function);
  return function;
}

template <typename Value>
Value at(const std::array<std::byte, kBytes + 64>& bytes, size_t offset) {
  Value value{};
  std::memcpy(&value, &bytes.at(offset), sizeof value);
  return value;
}

TEST(Cudart12, SaysItsVersion) {
  int version = 0;
  ASSERT_EQ(of_cuda12<int(int*)>("cudaRuntimeGetVersion")(&version), 0);
  EXPECT_EQ(version / 1000, 12);
}

TEST(Cudart12, DescribesADeviceInTheOlderStructure) {
  std::array<std::byte, kBytes + 64> bytes{};
  for (size_t i = kBytes; i < bytes.size(); ++i) bytes.at(i) = std::byte{0x5a};
  ASSERT_EQ(of_cuda12<int(void*, int)>("cudaGetDeviceProperties_v2")(bytes.data(), 0), 0);
  for (size_t i = kBytes; i < bytes.size(); ++i) ASSERT_EQ(bytes.at(i), std::byte{0x5a}) << i;

  const auto attribute = [](CUdevice_attribute which) {
    int value = 0;
    // The runtime's attributes have the driver's numbers.
    EXPECT_EQ(of_cuda12<int(int*, int, int)>("cudaDeviceGetAttribute")(&value, which, 0), 0);
    return value;
  };
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ASSERT_EQ(of_cuda12<int(size_t*, size_t*)>("cudaMemGetInfo")(&free_bytes, &total_bytes), 0);
  EXPECT_EQ(at<size_t>(bytes, kTotalGlobalMem), total_bytes);
  EXPECT_EQ(at<int>(bytes, kMultiProcessorCount), attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  EXPECT_EQ(at<int>(bytes, kL2CacheSize), attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  EXPECT_EQ(static_cast<int>(at<size_t>(bytes, kSharedMemPerBlockOptin)),
            attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  EXPECT_GT(at<int>(bytes, kMultiProcessorCount), 0);
}

TEST(Cudart12, SaysWhatLiesAtAnAddressInTheOlderStructure) {
  void* block = nullptr;
  ASSERT_EQ(of_cuda12<int(void**, size_t)>("cudaMalloc")(&block, 4096), 0);
  struct {
    int type;
    int device;
    void* device_pointer;
    void* host_pointer;
    uint64_t behind[8];
  } attributes{};
  for (uint64_t& word : attributes.behind) word = 0x5a5a5a5a5a5a5a5a;
  ASSERT_EQ(of_cuda12<int(void*, const void*)>("cudaPointerGetAttributes")(&attributes, block), 0);
  EXPECT_EQ(attributes.type, 2);  // cudaMemoryTypeDevice
  EXPECT_EQ(attributes.device_pointer, block);
  for (const uint64_t word : attributes.behind) EXPECT_EQ(word, 0x5a5a5a5a5a5a5a5a);
  EXPECT_EQ(of_cuda12<int(void*)>("cudaFree")(block), 0);
}

TEST(Cudart12, TellsOfACaptureWithoutEdges) {
  void* stream = nullptr;
  ASSERT_EQ(of_cuda12<int(void**)>("cudaStreamCreate")(&stream), 0);
  ASSERT_EQ(of_cuda12<int(void*, int)>("cudaStreamBeginCapture")(stream, 2), 0);
  int status = 0;
  unsigned long long id = 0;
  void* graph = nullptr;
  size_t dependencies = 7;
  ASSERT_EQ(of_cuda12<int(void*, int*, unsigned long long*, void**, void***, size_t*)>(
                "cudaStreamGetCaptureInfo_v2")(stream, &status, &id, &graph, nullptr, &dependencies),
            0);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_NE(graph, nullptr);
  EXPECT_EQ(dependencies, 0U);
  ASSERT_EQ(of_cuda12<int(void*, void**)>("cudaStreamEndCapture")(stream, &graph), 0);
}

}  // namespace
