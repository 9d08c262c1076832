/* A library that is linked with the driver and calls it: the loader binds it to the driver's own functions
 * where it is opened with RTLD_DEEPBIND. */
#include "driver.h"

CUresult allocate_and_free(int rounds);

CUresult allocate_and_free(int rounds) {
  CUcontext context = NULL;
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, 0);
  if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
  for (int i = 0; result == CUDA_SUCCESS && i < rounds; ++i) {
    CUdeviceptr pointer = 0;
    result = cuMemAlloc(&pointer, 1 << 20);
    if (result == CUDA_SUCCESS) result = cuMemFree(pointer);
  }
  return result;
}
