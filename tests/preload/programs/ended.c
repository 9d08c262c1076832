/* usage: ended CASE: calls after the driver's own end, which an exit handler of its own is. What was
 * registered before cuInit runs after that, and so do destructors of libraries and of static objects. Exits
 * with 7. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

enum { kBlocks = 600, kMiB = 1 << 20 };

static const char* which = "";
static CUcontext context;
static CUstream stream;
static CUevent event;
static CUdeviceptr plain[kBlocks];
static CUdeviceptr ordered[kBlocks];
static CUdeviceptr managed;
static CUdeviceptr range;
static CUmemGenericAllocationHandle handle;

static void is_over(CUresult result, const char* call) {
  if (result == CUDA_ERROR_DEINITIALIZED) return;
  fprintf(stderr, "%s: %d\n", call, result);
  _exit(1);
}
/* A block that Spillway serves goes back to it without the driver. */
static void is_over_or_done(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) is_over(result, call);
}
#define OVER(call) is_over(call, #call)
#define OVER_OR_DONE(call) is_over_or_done(call, #call)

static void free_all(void) {
  for (int i = 0; i < kBlocks; ++i) {
    OVER_OR_DONE(cuMemFree(plain[i]));
    OVER_OR_DONE(cuMemFreeAsync(ordered[i], i % 2 == 0 ? stream : NULL));
  }
}

static void ask(void) {
  CUdeviceptr block = 0;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  size_t total = 0;
  unsigned long long id = 0;
  CUstream another = NULL;
  OVER(cuMemAlloc(&block, 1 << 20));
  OVER(cuMemAlloc(&block, (size_t)512 << 20));
  OVER_OR_DONE(cuMemAllocAsync(&block, 1 << 20, stream));
  OVER(cuMemAllocAsync(&block, 1 << 20, NULL));
  OVER(cuMemGetInfo(&bytes, &total));
  OVER(cuMemGetAddressRange(&base, &bytes, plain[0]));
  OVER(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, plain[0]));
  OVER(cuStreamCreate(&another, CU_STREAM_NON_BLOCKING));
  OVER(cuMemAllocManaged(&block, 1 << 20, CU_MEM_ATTACH_GLOBAL));
}

static void leave(void) {
  OVER(cuMemFree(managed));
  OVER(cuMemUnmap(range, 4 * kMiB));
  OVER(cuMemRelease(handle));
  OVER(cuEventDestroy(event));
  OVER(cuStreamDestroy(stream));
  OVER(strcmp(which, "reset") == 0 ? cuDevicePrimaryCtxReset(0) : cuDevicePrimaryCtxRelease(0));
  OVER(cuCtxDestroy(context));
}

static void at_the_end(void) {
  ask();
  free_all();
  if (strcmp(which, "destructor") != 0) leave();
  puts("handled");
  fflush(stdout);
}

__attribute__((destructor)) static void destroy(void) {
  if (context == NULL) return;
  ask();
  leave();
  puts("destroyed");
  fflush(stdout);
}

/* Allocates and frees to the last moment, and does not mind what it is told. */
static void* go_on(void* nothing) {
  if (cuCtxSetCurrent(context) != CUDA_SUCCESS) return nothing;
  for (;;) {
    CUdeviceptr block = 0;
    if (cuMemAlloc(&block, 1 << 16) == CUDA_SUCCESS) (void)cuMemFree(block);
    if (cuMemAllocAsync(&block, 1 << 16, CU_STREAM_PER_THREAD) == CUDA_SUCCESS)
      (void)cuMemFreeAsync(block, CU_STREAM_PER_THREAD);
  }
}

int main(int count, char** arguments) {
  CUmemAllocationProp properties;
  CHECK(count == 2 && atexit(at_the_end) == 0);
  which = arguments[1];
  CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CHECK(cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  CHECK(cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CHECK(cuMemCreate(&handle, 4 * kMiB, &properties, 0) == CUDA_SUCCESS);
  CHECK(cuMemAddressReserve(&range, 4 * kMiB, 0, 0, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(range, 4 * kMiB, 0, handle, 0) == CUDA_SUCCESS);
  for (int i = 0; i < kBlocks; ++i) {
    const size_t bytes = i % 50 == 0 ? 2 * kMiB : 4096;
    CHECK(cuMemAlloc(&plain[i], bytes) == CUDA_SUCCESS);
    CHECK(cuMemAllocAsync(&ordered[i], bytes, i % 3 == 0 ? stream : NULL) == CUDA_SUCCESS);
    CHECK(cuMemsetD8Async(ordered[i], 1, bytes, i % 3 == 0 ? stream : NULL) == CUDA_SUCCESS);
  }
  if (strcmp(which, "threads") == 0) {
    for (int i = 0; i < 3; ++i) {
      pthread_t thread;
      CHECK(pthread_create(&thread, NULL, go_on, NULL) == 0);
    }
    usleep(20000);
  }
  exit(7);
}

void check(int condition, const char* text, const char* file, int line) {
  if (condition) return;
  fprintf(stderr, "%s:%d: %s\n", file, line, text);
  _exit(1);
}
