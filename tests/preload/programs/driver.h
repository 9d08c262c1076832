/* The driver as the test programs use it: a table of functions, found in whichever way a program was told. */
#ifndef SPILLWAY_TEST_DRIVER_H
#define SPILLWAY_TEST_DRIVER_H

#include <cuda.h>
#include <stdint.h>

#include "sim/cuda/sim_control.h"

#define DRIVER_CALLS(X)                                                                           \
  X(cuInit, "cuInit", 2000, (unsigned))                                                           \
  X(cuDeviceGet, "cuDeviceGet", 2000, (CUdevice*, int))                                           \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, (CUcontext*, CUdevice))           \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, (CUcontext))                                        \
  X(cuCtxSynchronize, "cuCtxSynchronize", 2000, (void))                                           \
  X(cuStreamCreate, "cuStreamCreate", 2000, (CUstream*, unsigned))                                \
  X(cuStreamDestroy_, "cuStreamDestroy_v2", 4000, (CUstream))                                     \
  X(cuMemAlloc_, "cuMemAlloc_v2", 3020, (CUdeviceptr*, size_t))                                   \
  X(cuMemFree_, "cuMemFree_v2", 3020, (CUdeviceptr))                                              \
  X(cuMemGetInfo_, "cuMemGetInfo_v2", 3020, (size_t*, size_t*))                                   \
  X(cuMemGetAddressRange_, "cuMemGetAddressRange_v2", 3020, (CUdeviceptr*, size_t*, CUdeviceptr)) \
  X(cuMemAllocAsync_, "cuMemAllocAsync", 11020, (CUdeviceptr*, size_t, CUstream))                 \
  X(cuMemFreeAsync_, "cuMemFreeAsync", 11020, (CUdeviceptr, CUstream))

typedef struct Driver {
#define MEMBER(name, symbol, version, parameters) CUresult(*name) parameters;
  DRIVER_CALLS(MEMBER)
#undef MEMBER
  /* The simulated device's own; null on a real one. */
  int (*touch)(struct CUstream_st*, const SpwSimRange*, size_t, unsigned);
  size_t (*report_count)(void);
  const char* (*report)(size_t);
  uint64_t (*calls)(const char*);
} Driver;

/* "linked" (programs built so), "dlsym", "first" and "modern" (the two shapes of cuGetProcAddress),
 * "per-thread" (modern, with per-thread default streams), "deepbind" (by a plugin, see plugin.c). Ends the
 * program where something is missing. */
void find_driver(Driver* driver, const char* way);

/* Ends the program with a line unless `condition`. */
#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)
void check(int condition, const char* text, const char* file, int line);

#endif
