#include <gmock/gmock.h>

#include <cstring>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MemoryTest : public DeviceTest {};

TEST_F(MemoryTest, CopiesCarryBytesThereAndBack) {
  const CUdeviceptr block = alloc(1000);
  std::vector<char> sent(1000);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 7);
  std::vector<char> got(1000, 0);
  SIM_OK(cuMemcpyHtoD(block, sent.data(), sent.size()));
  SIM_OK(cuMemcpyDtoH(got.data(), block, got.size()));
  EXPECT_EQ(got, sent);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(MemoryTest, TheHostSeesAndChangesBytesAtOnce) {
  const CUdeviceptr block = alloc(64);
  const char sent[] = "abcdefgh";
  const SpwSimRange ranges[] = {{block + 4, 3, 0, 0}, {block + 32, 5, 0, 0}};
  EXPECT_EQ(spwSimPoke(ranges, 2, sent), CUDA_SUCCESS);
  char got[9] = {};
  EXPECT_EQ(spwSimPeek(ranges, 2, got), CUDA_SUCCESS);
  EXPECT_STREQ(got, sent);
  SIM_OK(cuMemcpyDtoH(got, block + 32, 5));
  EXPECT_STREQ(got, "defghfgh");
  const SpwSimRange nowhere{1, 8, 0, 0};
  EXPECT_EQ(spwSimPeek(&nowhere, 1, got), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(spwSimPoke(&nowhere, 1, got), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, AnAnswerTakesThePlaceOfTheNextSmallCopiesToTheHost) {
  const CUdeviceptr block = alloc(64);
  SIM_OK(cuMemsetD8(block, 1, 64));
  spwSimAnswer(7, 2);
  int64_t wide[2] = {};
  int narrow = 0;
  SIM_OK(cuMemcpyDtoH(wide, block, sizeof wide));
  EXPECT_EQ(wide[0], 0x0101010101010101);
  SIM_OK(cuMemcpyDtoD(block + 32, block, 8));
  SIM_OK(cuMemcpyDtoH(&narrow, block, sizeof narrow));
  EXPECT_EQ(narrow, 7);
  SIM_OK(cuMemcpyDtoH(wide, block, 8));
  EXPECT_EQ(wide[0], 7);
  SIM_OK(cuMemcpyDtoH(wide, block, 8));
  EXPECT_EQ(wide[0], 0x0101010101010101);
  spwSimAnswer(7, 1);
  spwSimAnswer(0, 0);
  SIM_OK(cuMemcpyDtoH(&narrow, block, sizeof narrow));
  EXPECT_EQ(narrow, 0x01010101);
}

TEST_F(MemoryTest, CopiesToTheDeviceMoveNothingWhereAThreadSaysSo) {
  const CUdeviceptr from = alloc(1 << 20), to = alloc(1 << 20);
  SIM_OK(cuMemsetD8(from, 1, 1 << 20));
  SIM_OK(cuMemsetD8(to, 2, 1 << 20));
  unsigned char last = 0;
  const auto read = [&] { SIM_OK(cuMemcpyDtoH(&last, to + (1 << 20) - 1, 1)); };
  spwSimCopyNothing(1);
  SIM_OK(cuMemcpyDtoD(to, from, 1 << 20));
  const std::vector<char> host(1 << 20, 3);
  SIM_OK(cuMemcpyHtoD(to, host.data(), host.size()));
  read();
  EXPECT_EQ(last, 2) << "a copy to the host moved nothing, or one to the device did";
  spwSimCopyNothing(0);
  SIM_OK(cuMemcpyDtoD(to, from, 1 << 20));
  read();
  EXPECT_EQ(last, 1);
}

TEST_F(MemoryTest, FillsOfEachWidth) {
  const CUdeviceptr block = alloc(64);
  unsigned words[4] = {};
  SIM_OK(cuMemsetD32(block, 0x01020304, 4));
  SIM_OK(cuMemcpyDtoH(words, block, sizeof words));
  EXPECT_THAT(words, ElementsAre(0x01020304, 0x01020304, 0x01020304, 0x01020304));
  SIM_OK(cuMemsetD16(block, 0xabcd, 2));
  SIM_OK(cuMemsetD8(block + 4, 0x11, 1));
  SIM_OK(cuMemcpyDtoH(words, block, sizeof words));
  EXPECT_EQ(words[0], 0xabcdabcdu);
  EXPECT_EQ(words[1], 0x01020311u);
  EXPECT_EQ(cuMemsetD32(block + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, CapacityIsAccountedInPages) {
  start("capacity:8MiB");
  const CUdeviceptr first = alloc(1);
  const CUdeviceptr second = alloc(3 * kMiB);
  EXPECT_EQ(spwSimPhysicalBytes(0), 6 * kMiB);
  size_t free_bytes = 0;
  size_t total = 0;
  SIM_OK(cuMemGetInfo(&free_bytes, &total));
  EXPECT_EQ(free_bytes, 2 * kMiB);
  EXPECT_EQ(total, 8 * kMiB);
  CUdeviceptr third = 0;
  EXPECT_EQ(cuMemAlloc(&third, 3 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  SIM_OK(cuMemFree(second));
  SIM_OK(cuMemAlloc(&third, 3 * kMiB));
  SIM_OK(cuMemFree(first));
  SIM_OK(cuMemFree(third));
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
  EXPECT_EQ(spwSimPeakPhysicalBytes(0), 6 * kMiB);
}

TEST_F(MemoryTest, FreeTakesOnlyBlockStarts) {
  const CUdeviceptr block = alloc();
  EXPECT_EQ(cuMemFree(block + 512), CUDA_ERROR_INVALID_VALUE);
  SIM_OK(cuMemFree(block));
  EXPECT_EQ(cuMemFree(block), CUDA_ERROR_INVALID_VALUE);
  SIM_EXPECT_OK(cuMemFree(0));
  EXPECT_EQ(cuMemFree(map_new()), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr none = 0;
  EXPECT_EQ(cuMemAlloc(&none, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc(&none, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(MemoryTest, PointersAreDescribed) {
  const CUdeviceptr block = alloc(1000);
  int type = 0;
  SIM_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block + 10));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  CUdeviceptr start = 0;
  size_t size = 0;
  SIM_OK(cuMemGetAddressRange(&start, &size, block + 10));
  EXPECT_EQ(start, block);
  EXPECT_EQ(size, 1000u);
  int ipc = -1;
  SIM_OK(cuPointerGetAttribute(&ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block));
  EXPECT_EQ(ipc, 1);
  SIM_OK(cuPointerGetAttribute(&ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, map_new()));
  EXPECT_EQ(ipc, 0);
  int local = 0;
  EXPECT_EQ(
      cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&local)),
      CUDA_ERROR_INVALID_VALUE);
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* out = &type;
  SIM_OK(cuPointerGetAttributes(1, &asked, &out, reinterpret_cast<CUdeviceptr>(&local)));
  EXPECT_EQ(type, 0);
}

TEST_F(MemoryTest, PinnedHostMemoryIsItsOwnDeviceAddress) {
  void* host = nullptr;
  SIM_OK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr device = 0;
  SIM_OK(cuMemHostGetDevicePointer(&device, host, 0));
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(host));
  SIM_OK(cuMemsetD8(device, 0x5a, 4096));
  SIM_OK(cuCtxSynchronize());
  EXPECT_EQ(static_cast<char*>(host)[4095], 0x5a);
  EXPECT_EQ(cuMemHostUnregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  SIM_OK(cuMemFreeHost(host));
  EXPECT_EQ(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(MemoryTest, RegisteredHostMemory) {
  std::vector<char> own(8192);
  SIM_OK(cuMemHostRegister(own.data(), own.size(), 0));
  EXPECT_EQ(cuMemHostRegister(own.data(), own.size(), 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuMemFreeHost(own.data()), CUDA_ERROR_INVALID_VALUE);
  SIM_OK(cuMemHostUnregister(own.data()));
}

TEST_F(MemoryTest, AContextsEndFreesItsBlocksButNoHandles) {
  CUcontext second = nullptr;
  SIM_OK(cuDevicePrimaryCtxReset(0));
  SIM_OK(cuDevicePrimaryCtxRetain(&second, 0));
  SIM_OK(cuCtxSetCurrent(second));
  alloc();
  create();
  EXPECT_EQ(spwSimPhysicalBytes(0), 2 * kPage);
  SIM_OK(cuDevicePrimaryCtxRelease(0));
  EXPECT_EQ(spwSimPhysicalBytes(0), kPage);
  CUdeviceptr block = 0;
  EXPECT_EQ(cuMemAlloc(&block, 1), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(MemoryTest, AccountsAloneHoldMoreThanTheHost) {
  start("capacity:1TiB,backing:none");
  const CUdeviceptr block = alloc(size_t{1} << 38);
  SIM_OK(cuMemsetD8Async(block, 1, size_t{1} << 38, nullptr));
  EXPECT_EQ(spwSimPhysicalBytes(0), size_t{1} << 38);
  SIM_OK(cuMemFree(block));
  EXPECT_THAT(reports(), IsEmpty());
}

}  // namespace
}  // namespace spillway::sim_test
