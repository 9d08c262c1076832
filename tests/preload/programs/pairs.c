/* usage: pairs WAY [END]: allocates, uses and frees memory with and without a stream, on several streams
 * whose work is late, and lets the race detector judge. END: "exit" or "abort" in the middle, "child" (a
 * child of fork after the work), "first-child" (all the work in a child of fork). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum { kRounds = 200, kStreams = 3 };

static Driver driver;

static void use(CUstream stream, CUdeviceptr pointer, size_t bytes) {
  const SpwSimRange range = {pointer, bytes, 0, 0};
  if (driver.touch != NULL) CHECK(driver.touch(stream, &range, 1, SPW_SIM_READ_WRITE) == 0);
}

static CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr pointer = 0;
  CHECK(driver.cuMemAlloc_(&pointer, bytes) == CUDA_SUCCESS);
  return pointer;
}

static CUdeviceptr allocate_on(size_t bytes, CUstream stream) {
  CUdeviceptr pointer = 0;
  CHECK(driver.cuMemAllocAsync_(&pointer, bytes, stream) == CUDA_SUCCESS);
  return pointer;
}

/* What the device has to say, before the program ends in whichever way. */
static void judge(void) {
  for (size_t i = 0; driver.report_count != NULL && i < driver.report_count(); ++i) {
    fprintf(stderr, "race: %s\n", driver.report(i));
  }
  CHECK(driver.report_count == NULL || driver.report_count() == 0);
  if (driver.calls != NULL) printf("driver calls of cuMemAlloc: %d\n", (int)driver.calls("cuMemAlloc"));
  fflush(stdout);
}

/* Of a driver that has them: a null stream is the default stream of whichever kind the program asked for. */
static void work(const char* end) {
  CUstream streams[kStreams] = {NULL};
  for (int i = 1; i < kStreams; ++i) {
    CHECK(driver.cuStreamCreate(&streams[i], i == 1 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT) ==
          CUDA_SUCCESS);
  }
  for (int round = 0; round < kRounds; ++round) {
    const size_t bytes = ((size_t)(round % 7) + 1) << (10 + round % 12);
    CUstream stream = streams[round % kStreams];
    CUstream other = streams[(round + 1) % kStreams];
    /* Without a stream: used on two, freed while both are busy; the next one may be used anywhere at once. */
    const CUdeviceptr first = allocate(bytes);
    use(stream, first, bytes);
    const CUdeviceptr second = allocate(bytes);
    use(other, second, bytes);
    CHECK(driver.cuMemFree_(first) == CUDA_SUCCESS);
    CHECK(driver.cuMemFree_(second) == CUDA_SUCCESS);
    const CUdeviceptr third = allocate(bytes);
    use(other, third, bytes);
    CHECK(driver.cuMemFree_(third) == CUDA_SUCCESS);
    /* In the order of a stream. */
    const CUdeviceptr ordered = allocate_on(bytes, stream);
    use(stream, ordered, bytes);
    CHECK(driver.cuMemFreeAsync_(ordered, stream) == CUDA_SUCCESS);
    if (round == kRounds / 2 && (strcmp(end, "exit") == 0 || strcmp(end, "abort") == 0)) {
      judge();
      if (strcmp(end, "exit") == 0) exit(0);
      abort();
    }
    /* A stream goes, and another comes. */
    if (round % 32 == 31) {
      CHECK(driver.cuStreamDestroy_(streams[1]) == CUDA_SUCCESS);
      CHECK(driver.cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    }
  }
  CHECK(driver.cuCtxSynchronize() == CUDA_SUCCESS);
  judge();
}

static void start(const char* way) {
  CUdevice device = 0;
  CUcontext context = NULL;
  find_driver(&driver, way);
  CHECK(driver.cuInit(0) == CUDA_SUCCESS);
  CHECK(driver.cuDeviceGet(&device, 0) == CUDA_SUCCESS);
  CHECK(driver.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
  CHECK(driver.cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

static void expect_child(pid_t child) {
  int status = 0;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int count, char** arguments) {
  CHECK(count >= 2);
  const char* end = count > 2 ? arguments[2] : "";
  if (strcmp(end, "first-child") == 0) {
    const pid_t child = fork();
    if (child != 0) {
      expect_child(child);
      return 0;
    }
  }
  start(arguments[1]);
  work(end);
  if (strcmp(end, "child") == 0) {
    const pid_t child = fork();
    if (child == 0) exit(0); /* with every handler of the parent's */
    expect_child(child);
    work("");
  }
  return 0;
}
