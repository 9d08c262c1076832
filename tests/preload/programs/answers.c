/* usage: answers WAY: what the driver says about memory that Spillway serves. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

static CUresult (*get_attribute)(void*, CUpointer_attribute, CUdeviceptr);
static CUresult (*get_attributes)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);

static unsigned long long id_of(CUdeviceptr pointer) {
  unsigned long long id = 0;
  unsigned long long together = 0;
  CUpointer_attribute wanted = CU_POINTER_ATTRIBUTE_BUFFER_ID;
  void* answer = &together;
  CHECK(get_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer) == CUDA_SUCCESS);
  CHECK(get_attributes(1, &wanted, &answer, pointer) == CUDA_SUCCESS && together == id && id != 0);
  return id;
}

/* A block has one number, another has another, and so has a later one at its address. */
static void check_ids(const Driver* driver) {
  enum { kRounds = 1000 };
  static CUdeviceptr addresses[kRounds];
  static unsigned long long ids[kRounds];
  CUdeviceptr kept = 0;
  CHECK(driver->cuMemAlloc_(&kept, 4096) == CUDA_SUCCESS);
  const unsigned long long of_kept = id_of(kept);
  int came_again[2] = {0, 0};
  for (int i = 0; i < kRounds; ++i) {
    const int is_ordered = i % 2;
    CHECK((is_ordered ? driver->cuMemAllocAsync_(&addresses[i], 4096, NULL)
                      : driver->cuMemAlloc_(&addresses[i], 4096)) == CUDA_SUCCESS);
    ids[i] = id_of(addresses[i]);
    CHECK(id_of(addresses[i] + 4095) == ids[i] && ids[i] != of_kept);
    for (int j = 0; j < i; ++j) {
      CHECK(ids[j] != ids[i]);
      came_again[is_ordered] += addresses[j] == addresses[i] && j % 2 == is_ordered;
    }
    CHECK((is_ordered ? driver->cuMemFreeAsync_(addresses[i], NULL) : driver->cuMemFree_(addresses[i])) ==
          CUDA_SUCCESS);
  }
  CHECK(came_again[0] > 0 && came_again[1] > 0 && id_of(kept) == of_kept);
  CHECK(driver->cuMemFree_(kept) == CUDA_SUCCESS);
}

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
  check_ids(&driver);
  return 0;
}
