/* usage: answers WAY: what the driver says about memory that Spillway serves. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

static CUresult (*get_attribute)(void*, CUpointer_attribute, CUdeviceptr);
static CUresult (*get_attributes)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);

int main(int count, char** arguments) {
  Driver driver;
  CUdevice device = 0;
  CUcontext context = NULL;
  CHECK(count == 2);
  find_driver(&driver, arguments[1]);
  void* library = dlopen(getenv("SPILLWAY_LIBCUDA"), RTLD_NOW);
  *(void**)&get_attribute = dlsym(library, "cuPointerGetAttribute");
  *(void**)&get_attributes = dlsym(library, "cuPointerGetAttributes");
  CHECK(driver.cuInit(0) == CUDA_SUCCESS);
  CHECK(driver.cuDeviceGet(&device, 0) == CUDA_SUCCESS);
  CHECK(driver.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
  CHECK(driver.cuCtxSetCurrent(context) == CUDA_SUCCESS);

  const size_t kSizes[] = {700, 100 * 1024, ((size_t)5 << 20) + 300};
  CUdeviceptr blocks[3];
  for (int i = 0; i < 3; ++i) CHECK(driver.cuMemAlloc_(&blocks[i], kSizes[i]) == CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    const size_t offsets[] = {0, 1, kSizes[i] / 2, kSizes[i] - 1};
    for (int j = 0; j < 4; ++j) {
      const CUdeviceptr inside = blocks[i] + offsets[j];
      CUdeviceptr base = 0;
      size_t bytes = 0;
      CHECK(driver.cuMemGetAddressRange_(&base, &bytes, inside) == CUDA_SUCCESS);
      CHECK(base == blocks[i] && bytes == kSizes[i]);
      CUcontext owner = NULL;
      CHECK(get_attribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, inside) == CUDA_SUCCESS && owner == context);
      int type = 0;
      CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                      CU_POINTER_ATTRIBUTE_RANGE_SIZE};
      void* answers[] = {&type, &base, &bytes};
      base = bytes = 0;
      CHECK(get_attributes(3, wanted, answers, inside) == CUDA_SUCCESS);
      CHECK(type == CU_MEMORYTYPE_DEVICE && base == blocks[i] && bytes == kSizes[i]);
    }
  }
  CHECK(driver.cuMemFree_(blocks[2] + 512) == CUDA_ERROR_INVALID_VALUE);
  CHECK(driver.cuMemFree_(0x1234) == CUDA_ERROR_INVALID_VALUE);

  /* What was freed is free, whoever holds it. */
  size_t before = 0;
  size_t total = 0;
  size_t during = 0;
  size_t after = 0;
  CUdeviceptr large = 0;
  const size_t kLarge = (size_t)256 << 20;
  CHECK(driver.cuMemGetInfo_(&before, &total) == CUDA_SUCCESS);
  CHECK(driver.cuMemAlloc_(&large, kLarge) == CUDA_SUCCESS);
  CHECK(driver.cuMemGetInfo_(&during, &total) == CUDA_SUCCESS);
  CHECK(driver.cuMemFree_(large) == CUDA_SUCCESS);
  CHECK(driver.cuMemGetInfo_(&after, &total) == CUDA_SUCCESS);
  /* But for the pages that it shares with its neighbours. */
  const size_t kEdges = (size_t)4 << 20;
  CHECK(before - during <= kLarge + kEdges && before - during + kEdges >= kLarge);
  CHECK(after <= before + kEdges && after + kEdges >= before);
  CHECK(driver.cuMemFree_(large) == CUDA_ERROR_INVALID_VALUE);
  for (int i = 0; i < 3; ++i) CHECK(driver.cuMemFree_(blocks[i]) == CUDA_SUCCESS);
  return 0;
}
