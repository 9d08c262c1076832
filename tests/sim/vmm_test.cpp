#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

using ::testing::IsEmpty;

class VmmTest : public DeviceTest {};

TEST_F(VmmTest, ViewsOfOneHandleShareBytes) {
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr first = reserve(kPage);
  const CUdeviceptr second = reserve(kPage);
  map(first, handle);
  map(second, handle);
  SIM_OK(cuMemsetD8(first, 0x42, kPage));
  unsigned char byte = 0;
  SIM_OK(cuMemcpyDtoH(&byte, second + kPage - 1, 1));
  EXPECT_EQ(byte, 0x42);
  EXPECT_EQ(spwSimPhysicalBytes(0), kPage);
  EXPECT_EQ(spwSimLiveMappings(), 2u);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(VmmTest, SizesAndAddressesAreWholePages) {
  const CUmemAllocationProp prop = device_memory();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, kPage + 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  handle = create(2 * kPage);
  const CUdeviceptr at = reserve(4 * kPage);
  EXPECT_EQ(at % kPage, 0u);
  EXPECT_EQ(cuMemMap(at + 4096, 2 * kPage, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at, kPage, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "a part of a handle";
  EXPECT_EQ(cuMemMap(at, kPage, kPage, handle, 0), CUDA_ERROR_INVALID_VALUE) << "an offset";
  EXPECT_EQ(cuMemMap(at + 3 * kPage, 2 * kPage, 0, handle, 0), CUDA_ERROR_INVALID_VALUE)
      << "past the reservation";
  SIM_EXPECT_OK(cuMemMap(at, 2 * kPage, 0, handle, 0));
  EXPECT_EQ(cuMemMap(at + kPage, 2 * kPage, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "overlap";
  EXPECT_EQ(cuMemMap(alloc(), kPage, 0, create(), 0), CUDA_ERROR_INVALID_VALUE) << "memory of cuMemAlloc";
}

TEST_F(VmmTest, AnAddressRangeIsOneMappingAndItsReservationIsAnAttribute) {
  const CUdeviceptr at = reserve(4 * kPage);
  map(at, create());
  map(at + kPage, create(2 * kPage), 2 * kPage);
  CUdeviceptr base = 0;
  size_t size = 0;
  SIM_OK(cuMemGetAddressRange(&base, &size, at + 2 * kPage + 5));
  EXPECT_EQ(base, at + kPage);
  EXPECT_EQ(size, 2 * kPage);
  SIM_OK(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 2 * kPage));
  SIM_OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + 2 * kPage));
  EXPECT_EQ(base, at);
  EXPECT_EQ(size, 4 * kPage);
  EXPECT_EQ(cuMemGetAddressRange(&base, &size, at + 3 * kPage), CUDA_ERROR_NOT_FOUND);
}

TEST_F(VmmTest, UnmapTakesWholeMappings) {
  const CUdeviceptr at = reserve(3 * kPage);
  map(at, create(2 * kPage), 2 * kPage);
  map(at + 2 * kPage, create());
  EXPECT_EQ(cuMemUnmap(at, kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(at + kPage, 2 * kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(spwSimLiveMappings(), 2u);
  SIM_EXPECT_OK(cuMemUnmap(at, 3 * kPage));
  EXPECT_EQ(cuMemUnmap(at, 3 * kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(spwSimLiveMappings(), 0u);
}

TEST_F(VmmTest, AReservationIsFreedWholeAndEmpty) {
  const CUdeviceptr at = reserve(2 * kPage);
  map(at, create());
  EXPECT_EQ(cuMemAddressFree(at, 2 * kPage), CUDA_ERROR_INVALID_VALUE);
  SIM_OK(cuMemUnmap(at, kPage));
  EXPECT_EQ(cuMemAddressFree(at, kPage), CUDA_ERROR_INVALID_VALUE);
  SIM_EXPECT_OK(cuMemAddressFree(at, 2 * kPage));
}

TEST_F(VmmTest, ReservationsAreAlignedAndHonourAFreeHint) {
  CUdeviceptr at = 0;
  SIM_OK(cuMemAddressReserve(&at, kPage, 64 * kMiB, 0, 0));
  EXPECT_EQ(at % (64 * kMiB), 0u);
  SIM_OK(cuMemAddressFree(at, kPage));
  CUdeviceptr again = 0;
  SIM_OK(cuMemAddressReserve(&again, kPage, 0, at, 0));
  EXPECT_EQ(again, at);
  CUdeviceptr other = 0;
  SIM_OK(cuMemAddressReserve(&other, kPage, 0, at, 0));
  EXPECT_NE(other, at);
  EXPECT_EQ(cuMemAddressReserve(&at, kPage, 3 * kPage, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&at, 100, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(VmmTest, MemoryLivesUntilReleasedAndUnmappedEverywhere) {
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr first = reserve(kPage);
  const CUdeviceptr second = reserve(kPage);
  map(first, handle);
  map(second, handle);
  SIM_OK(cuMemRelease(handle));
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(reserve(kPage), kPage, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  SIM_OK(cuMemUnmap(first, kPage));
  EXPECT_EQ(spwSimPhysicalBytes(0), kPage);
  SIM_OK(cuMemUnmap(second, kPage));
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
  EXPECT_EQ(spwSimLiveHandles(), 0u);
}

TEST_F(VmmTest, RetainFindsTheHandleOfAnAddress) {
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr at = reserve(kPage);
  map(at, handle);
  SIM_OK(cuMemRelease(handle));
  CUmemGenericAllocationHandle found = 0;
  SIM_OK(cuMemRetainAllocationHandle(&found, reinterpret_cast<void*>(at + 100)));
  EXPECT_EQ(found, handle);
  SIM_OK(cuMemUnmap(at, kPage));
  EXPECT_EQ(spwSimPhysicalBytes(0), kPage);
  SIM_OK(cuMemRelease(found));
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
}

TEST_F(VmmTest, AccessIsPerDeviceAndPerMapping) {
  start("devices:2");
  const CUdeviceptr at = reserve(2 * kPage);
  SIM_OK(cuMemMap(at, kPage, 0, create(), 0));
  CUmemAccessDesc desc = read_write(1);
  EXPECT_EQ(cuMemSetAccess(at, 2 * kPage, &desc, 1), CUDA_ERROR_INVALID_VALUE) << "half is not mapped";
  SIM_OK(cuMemSetAccess(at, kPage, &desc, 1));
  unsigned long long flags = 9;
  SIM_OK(cuMemGetAccess(&flags, &desc.location, at));
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  desc.location.id = 0;
  SIM_OK(cuMemGetAccess(&flags, &desc.location, at));
  EXPECT_EQ(flags, 0u);
  desc.location.id = 2;
  EXPECT_EQ(cuMemSetAccess(at, kPage, &desc, 1), CUDA_ERROR_INVALID_DEVICE);
  desc.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  EXPECT_EQ(cuMemSetAccess(at, kPage, &desc, 1), CUDA_ERROR_INVALID_VALUE) << "the host, on device memory";
}

TEST_F(VmmTest, HostLocatedMemoryIsReadByBothSides) {
  CUmemAllocationProp prop = device_memory();
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CUmemGenericAllocationHandle handle = 0;
  SIM_OK(cuMemCreate(&handle, kPage, &prop, 0));
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
  const CUdeviceptr at = reserve(kPage);
  map(at, handle);
  CUmemAccessDesc host = read_write();
  host.location = prop.location;
  SIM_OK(cuMemSetAccess(at, kPage, &host, 1));
  SIM_OK(cuMemsetD8(at, 0x33, kPage));
  SIM_OK(cuCtxSynchronize());
  auto* bytes = reinterpret_cast<unsigned char*>(at);
  EXPECT_EQ(bytes[kPage - 1], 0x33);
  bytes[0] = 0x44;
  unsigned char got = 0;
  SIM_OK(cuMemcpyDtoH(&got, at, 1));
  EXPECT_EQ(got, 0x44);
  SIM_OK(cuMemUnmap(at, kPage));
  prop.location.id = -1;
  EXPECT_EQ(cuMemCreate(&handle, kPage, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(VmmTest, ADriverMayMakeNoHostMemory) {
  start("host_vmm:off");
  CUmemAllocationProp prop = device_memory();
  CUmemGenericAllocationHandle handle = 0;
  SIM_OK(cuMemCreate(&handle, kPage, &prop, 0));
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  EXPECT_EQ(cuMemCreate(&handle, kPage, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
  for (const int attribute : {141, 145}) {
    int answer = -1;
    SIM_OK(cuDeviceGetAttribute(&answer, static_cast<CUdevice_attribute>(attribute), 0));
    EXPECT_EQ(answer, 0);
  }
}

TEST_F(VmmTest, ADriverMayMakeMemoryAtANumaNodeAloneOrFaultThere) {
  CUmemAllocationProp prop = device_memory();
  CUmemGenericAllocationHandle handle = 0;
  const auto answers = [](int attribute) {
    int answer = -1;
    EXPECT_EQ(cuDeviceGetAttribute(&answer, static_cast<CUdevice_attribute>(attribute), 0), CUDA_SUCCESS);
    return answer;
  };
  start("host_vmm:off,host_numa:on");
  EXPECT_EQ(answers(141), 1);
  EXPECT_EQ(answers(145), 0);
  prop.location = {static_cast<CUmemLocationType>(2), 0};  // the host
  EXPECT_EQ(cuMemCreate(&handle, kPage, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  SIM_OK(cuMemCreate(&handle, kPage, &prop, 0));
  const auto fault = [&] {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would end the process by itself
    start("host_numa:fault");
    EXPECT_EQ(answers(141), 1);
    EXPECT_EQ(answers(145), 1);
    if (!HasFailure()) (void)cuMemCreate(&handle, kPage, &prop, 0);
  };
  EXPECT_EXIT(fault(), testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(VmmTest, ExportedHandlesComeBackAsTheSameMemory) {
  CUmemAllocationProp prop = device_memory();
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  SIM_OK(cuMemCreate(&handle, kPage, &prop, 0));
  int file = -1;
  SIM_OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle imported = 0;
  SIM_OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUdeviceptr first = reserve(kPage);
  const CUdeviceptr second = reserve(kPage);
  map(first, handle);
  map(second, imported);
  SIM_OK(cuMemsetD8(first, 0x21, 16));
  unsigned char got = 0;
  SIM_OK(cuMemcpyDtoH(&got, second, 1));
  EXPECT_EQ(got, 0x21);
  close(file);
  const CUmemGenericAllocationHandle plain = create();
  EXPECT_EQ(cuMemExportToShareableHandle(&file, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(VmmTest, MappingsHaveALimit) {
  start("backing:none,mappings:3");
  const CUdeviceptr at = reserve(8 * kPage);
  const CUmemAccessDesc desc = read_write();
  for (size_t i = 0; i < 3; ++i) map(at + i * kPage, create());
  SIM_OK(cuMemMap(at + 3 * kPage, kPage, 0, create(), 0));
  EXPECT_EQ(cuMemSetAccess(at + 3 * kPage, kPage, &desc, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(VmmTest, AccountsAloneTakeManyPages) {
  start("capacity:140GiB,backing:none");
  constexpr size_t kPages = 70000;
  const CUdeviceptr at = reserve(kPages * kPage);
  const CUmemAccessDesc desc = read_write();
  for (size_t i = 0; i < kPages; ++i) {
    const CUmemGenericAllocationHandle handle = create();
    SIM_OK(cuMemMap(at + i * kPage, kPage, 0, handle, 0));
    SIM_OK(cuMemRelease(handle));
  }
  SIM_OK(cuMemSetAccess(at, kPages * kPage, &desc, 1));
  EXPECT_EQ(spwSimLiveMappings(), kPages);
  EXPECT_EQ(spwSimPhysicalBytes(0), kPages * kPage);
  touch(stream(), at, kPages * kPage);
  SIM_OK(cuCtxSynchronize());
  EXPECT_THAT(reports(), IsEmpty());
  SIM_OK(cuMemUnmap(at, kPages * kPage));
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
}

TEST_F(VmmTest, ADeviceWithoutItRefuses) {
  start("vmm:off");
  int supported = 1;
  SIM_OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
  EXPECT_EQ(supported, 0);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAddressReserve(&at, kPage, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
  const CUmemAllocationProp prop = device_memory();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, kPage, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
  SIM_EXPECT_OK(cuMemFree(alloc()));
}

}  // namespace
}  // namespace spillway::sim_test
