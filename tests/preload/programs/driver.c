#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void check(int condition, const char* text, const char* file, int line) {
  if (condition) return;
  fprintf(stderr, "%s:%d: %s\n", file, line, text);
  exit(1);
}

static void* open_driver(void) {
  const char* named = getenv("SPILLWAY_LIBCUDA");
  void* library = dlopen(named != NULL ? named : "libcuda.so.1", RTLD_NOW);
  CHECK(library != NULL);
  return library;
}

typedef CUresult (*First)(const char*, void**, int, cuuint64_t);
typedef CUresult (*Modern)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

/* cuGetProcAddress knows base names. */
static void* find(void* library, const char* way, const char* symbol, int version) {
  if (strcmp(way, "dlsym") == 0) return dlsym(library, symbol);
  char base[64];
  snprintf(base, sizeof base, "%s", symbol);
  char* suffix = strstr(base, "_v2");
  if (suffix != NULL) *suffix = '\0';
  void* found = NULL;
  if (strcmp(way, "first") == 0) {
    First get = (First)dlsym(library, "cuGetProcAddress");
    CHECK(get(base, &found, version, CU_GET_PROC_ADDRESS_DEFAULT) == CUDA_SUCCESS);
  } else {
    const cuuint64_t flags = strcmp(way, "per-thread") == 0 ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                                            : CU_GET_PROC_ADDRESS_DEFAULT;
    Modern get = (Modern)dlsym(library, "cuGetProcAddress_v2");
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CHECK(get(base, &found, version, flags, &status) == CUDA_SUCCESS);
    CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
  }
  return found;
}

static void find_controls(Driver* driver, void* library) {
  *(void**)&driver->touch = dlsym(library, "spwSimTouch");
  *(void**)&driver->report_count = dlsym(library, "spwSimReportCount");
  *(void**)&driver->report = dlsym(library, "spwSimReport");
  *(void**)&driver->calls = dlsym(library, "spwSimCalls");
}

#ifdef DRIVER_IS_LINKED
static void find_linked(Driver* driver) {
  driver->cuInit = cuInit;
  driver->cuDeviceGet = cuDeviceGet;
  driver->cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain;
  driver->cuCtxSetCurrent = cuCtxSetCurrent;
  driver->cuCtxSynchronize = (CUresult(*)(void))cuCtxSynchronize;
  driver->cuStreamCreate = cuStreamCreate;
  driver->cuStreamDestroy_ = cuStreamDestroy;
  driver->cuMemAlloc_ = cuMemAlloc;
  driver->cuMemFree_ = cuMemFree;
  driver->cuMemGetInfo_ = cuMemGetInfo;
  driver->cuMemGetAddressRange_ = cuMemGetAddressRange;
  driver->cuMemAllocAsync_ = cuMemAllocAsync;
  driver->cuMemFreeAsync_ = cuMemFreeAsync;
}
#endif

void find_driver(Driver* driver, const char* way) {
  memset(driver, 0, sizeof *driver);
#ifdef DRIVER_IS_LINKED
  if (strcmp(way, "linked") == 0) {
    find_linked(driver);
    find_controls(driver, RTLD_DEFAULT);
    return;
  }
#endif
  if (strcmp(way, "deepbind") == 0) {
    void* plugin = dlopen(getenv("TEST_PLUGIN"), RTLD_NOW | RTLD_DEEPBIND);
    CHECK(plugin != NULL);
    void (*fill)(Driver*, const char*) = (void (*)(Driver*, const char*))dlsym(plugin, "find_driver");
    CHECK(fill != NULL);
    fill(driver, "modern");
    return;
  }
  void* library = open_driver();
#define FIND(name, symbol, version, parameters)                 \
  *(void**)&driver->name = find(library, way, symbol, version); \
  CHECK(driver->name != NULL);
  DRIVER_CALLS(FIND)
#undef FIND
  find_controls(driver, library);
}
