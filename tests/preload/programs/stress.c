/* usage: stress CALLS [SEED]: eight threads, random calls through the hooked entry points, late work on
 * shared streams, streams that come and go, frees by other threads than asked. At the end everything is back
 * and the race detector is silent. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { kThreads = 8, kStreams = 4, kSlots = 256 };

typedef struct Slot {
  pthread_mutex_t mutex;
  CUdeviceptr pointer;
  size_t bytes;
  int stream; /* that the block was asked for on; -1: none */
} Slot;

static Slot slots[kSlots];
static CUstream streams[kStreams];
static long calls_of_each;
static CUcontext context;
static int (*touch)(struct CUstream_st*, const SpwSimRange*, size_t, unsigned);
static size_t (*report_count)(void);
static const char* (*report)(size_t);

void check(int condition, const char* text, const char* file, int line) {
  if (condition) return;
  fprintf(stderr, "%s:%d: %s\n", file, line, text);
  exit(1);
}

static unsigned draw(unsigned long long* state) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(*state >> 33);
}

static void use(CUstream stream, const Slot* slot) {
  const SpwSimRange range = {slot->pointer, slot->bytes, 0, 0};
  CHECK(touch(stream, &range, 1, SPW_SIM_READ_WRITE) == 0);
}

static void fill(Slot* slot, unsigned long long* random) {
  slot->bytes = ((size_t)1 + draw(random) % 8) << (8 + draw(random) % 13);
  slot->stream = draw(random) % 2 == 0 ? -1 : (int)(draw(random) % kStreams);
  if (slot->stream < 0) {
    CHECK(cuMemAlloc(&slot->pointer, slot->bytes) == CUDA_SUCCESS);
    if (draw(random) % 4 == 0) {
      CUstream brief = NULL;
      CHECK(cuStreamCreate(&brief, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
      use(brief, slot);
      CHECK(cuStreamDestroy(brief) == CUDA_SUCCESS);
    } else {
      use(streams[draw(random) % kStreams], slot);
    }
  } else {
    CHECK(cuMemAllocAsync(&slot->pointer, slot->bytes, streams[slot->stream]) == CUDA_SUCCESS);
    use(streams[slot->stream], slot);
  }
}

/* A block of a stream may be used by others behind an event; here only its own stream uses it, and the free
 * of another stream is ordered behind it. */
static void clear(Slot* slot, unsigned long long* random) {
  if (slot->stream < 0 || draw(random) % 4 == 0) {
    CHECK(cuMemFree(slot->pointer) == CUDA_SUCCESS);
  } else if (draw(random) % 4 != 0) {
    CHECK(cuMemFreeAsync(slot->pointer, streams[slot->stream]) == CUDA_SUCCESS);
  } else {
    CUstream other = streams[draw(random) % kStreams];
    CUevent event = NULL;
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    CHECK(cuEventRecord(event, streams[slot->stream]) == CUDA_SUCCESS);
    CHECK(cuStreamWaitEvent(other, event, 0) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(slot->pointer, other) == CUDA_SUCCESS);
    CHECK(cuEventDestroy(event) == CUDA_SUCCESS);
  }
  slot->pointer = 0;
}

static void ask(const Slot* slot, unsigned long long* random) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CHECK(cuMemGetAddressRange(&base, &bytes, slot->pointer + draw(random) % slot->bytes) == CUDA_SUCCESS);
  CHECK(base == slot->pointer && bytes == slot->bytes);
  size_t total = 0;
  CHECK(cuMemGetInfo(&bytes, &total) == CUDA_SUCCESS && bytes <= total);
}

static void* run(void* seed) {
  unsigned long long random = (unsigned long long)(size_t)seed;
  CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  for (long call = 0; call < calls_of_each; ++call) {
    Slot* slot = &slots[draw(&random) % kSlots];
    pthread_mutex_lock(&slot->mutex);
    if (slot->pointer == 0) {
      fill(slot, &random);
    } else if (draw(&random) % 64 == 0) {
      ask(slot, &random);
    } else {
      clear(slot, &random);
    }
    pthread_mutex_unlock(&slot->mutex);
  }
  return NULL;
}

int main(int count, char** arguments) {
  CHECK(count >= 2);
  calls_of_each = atol(arguments[1]) / kThreads;
  const size_t seed = count > 2 ? (size_t)atol(arguments[2]) : 1;
  void* device = dlopen(getenv("SPILLWAY_LIBCUDA"), RTLD_NOW);
  *(void**)&touch = dlsym(device, "spwSimTouch");
  *(void**)&report_count = dlsym(device, "spwSimReportCount");
  *(void**)&report = dlsym(device, "spwSimReport");
  CHECK(touch != NULL && cuInit(0) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS);
  for (int i = 1; i < kStreams; ++i)
    CHECK(cuStreamCreate(&streams[i], i % 2 == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING) ==
          CUDA_SUCCESS);
  for (int i = 0; i < kSlots; ++i) pthread_mutex_init(&slots[i].mutex, NULL);
  pthread_t threads[kThreads];
  for (size_t i = 0; i < kThreads; ++i)
    CHECK(pthread_create(&threads[i], NULL, run, (void*)(seed * kThreads + i)) == 0);
  for (int i = 0; i < kThreads; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < kSlots; ++i) {
    if (slots[i].pointer != 0) CHECK(cuMemFree(slots[i].pointer) == CUDA_SUCCESS);
  }
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  for (size_t i = 0; i < report_count() && i < 5; ++i) fprintf(stderr, "race: %s\n", report(i));
  CHECK(report_count() == 0);
  uint64_t (*dead_streams)(void) = (uint64_t(*)(void))dlsym(device, "spwSimDeadStreams");
  CHECK(dead_streams() == 0);
  /* Served, or none of this was a test. */
  uint64_t (*driver_calls)(const char*) = (uint64_t(*)(const char*))dlsym(device, "spwSimCalls");
  CHECK(driver_calls("cuMemAlloc") == 0 && driver_calls("cuMemAllocAsync") == 0);
  return 0;
}
