/* usage: runtime [without]: a program of the CUDA runtime, which finds the driver by itself: shared, or made
 * part of the program. "without": of a driver that does not have what the runtime needs. */
#define _GNU_SOURCE /* dladdr */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

typedef CUresult (*Allocate)(CUdeviceptr*, size_t, CUstream);
typedef CUresult (*Free)(CUdeviceptr, CUstream);

/* The driver's functions as the runtime hands them out, which is how NCCL finds them: for a version, or
 * without; and as programs that are built for per-thread default streams ask. Their declarations have other
 * names there. */
cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char*, void**, unsigned, unsigned long long,
                                                  enum cudaDriverEntryPointQueryResult*);
cudaError_t cudaGetDriverEntryPoint_ptsz(const char*, void**, unsigned long long,
                                         enum cudaDriverEntryPointQueryResult*);

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* older programs call it */
static cudaError_t find(int way, const char* name, void** out) {
  enum cudaDriverEntryPointQueryResult status;
  switch (way) {
    case 0:
      return cudaGetDriverEntryPointByVersion(name, out, 12000, cudaEnableDefault, &status);
    case 1:
      return cudaGetDriverEntryPointByVersion_ptsz(name, out, 12000, cudaEnableDefault, &status);
    case 2:
      return cudaGetDriverEntryPoint(name, out, cudaEnableDefault, &status);
    default:
      return cudaGetDriverEntryPoint_ptsz(name, out, cudaEnableDefault, &status);
  }
}

static int is_in(const void* address, const char* object) {
  Dl_info where;
  CHECK(dladdr(address, &where) != 0);
  const char* slash = strrchr(where.dli_fname, '/');
  return strncmp(slash == NULL ? where.dli_fname : slash + 1, object, strlen(object)) == 0;
}

static void use_entry_points(void) {
  void* allocates[4];
  for (int way = 0; way < 4; ++way) {
    Allocate allocate = NULL;
    Free release = NULL;
    CUdeviceptr block = 0;
    CHECK(find(way, "cuMemAllocAsync", (void**)&allocate) == cudaSuccess && allocate != NULL);
    CHECK(find(way, "cuMemFreeAsync", (void**)&release) == cudaSuccess && release != NULL);
    CHECK(allocate(&block, 1 << 20, NULL) == CUDA_SUCCESS && release(block, NULL) == CUDA_SUCCESS);
    allocates[way] = (void*)allocate;
    CHECK(is_in(allocates[way], "libspillway_preload"));
    /* A name that is no hook is the driver's; what the driver does not have, nobody has. */
    void* other = NULL;
    CHECK(find(way, "cuInit", &other) == cudaSuccess && is_in(other, "libcuda.so"));
    CHECK(find(way, "cuNotThere", &other) == cudaSuccess && other == NULL);
  }
  /* Of the driver's two kinds of default stream, the one that was asked for. */
  CHECK(allocates[0] == allocates[2] && allocates[1] == allocates[3] && allocates[0] != allocates[1]);
  CHECK(allocates[1] == dlsym(dlopen(getenv("SPILLWAY_LIBCUDA"), RTLD_NOW), "cuMemAllocAsync_ptsz"));
  /* Older than the function. */
  enum cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSuccess;
  void* older = NULL;
  CHECK(cudaGetDriverEntryPointByVersion("cuMemAllocAsync", &older, 11010, cudaEnableDefault, &status) ==
        cudaSuccess);
  CHECK(older == NULL && status == cudaDriverEntryPointVersionNotSufficent);
}

/* A driver without cuGetProcAddress, which no runtime of this age can use: it says so in each way. */
static int find_nothing(void) {
  for (int way = 0; way < 4; ++way) {
    void* found = NULL;
    CHECK(find(way, "cuMemAllocAsync", &found) == cudaErrorInsufficientDriver && found == NULL);
  }
  void* block = NULL;
  CHECK(cudaMalloc(&block, 1 << 20) == cudaErrorInsufficientDriver && block == NULL);
  return 0;
}

int main(int count, char** arguments) {
  if (count > 1 && strcmp(arguments[1], "without") == 0) return find_nothing();
  cudaStream_t streams[2];
  for (int i = 0; i < 2; ++i)
    CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking) == cudaSuccess);
  for (int round = 0; round < 100; ++round) {
    const size_t bytes = ((size_t)round + 1) << 14;
    void* first = NULL;
    void* second = NULL;
    CHECK(cudaMalloc(&first, bytes) == cudaSuccess);
    CHECK(cudaMemsetAsync(first, round, bytes, streams[round % 2]) == cudaSuccess);
    CHECK(cudaFree(first) == cudaSuccess);
    CHECK(cudaMalloc(&first, bytes) == cudaSuccess);
    CHECK(cudaMemsetAsync(first, round, bytes, streams[(round + 1) % 2]) == cudaSuccess);
    CHECK(cudaFree(first) == cudaSuccess);
    CHECK(cudaMallocAsync(&second, bytes, streams[0]) == cudaSuccess);
    CHECK(cudaMemsetAsync(second, round, bytes, streams[0]) == cudaSuccess);
    CHECK(cudaFreeAsync(second, streams[0]) == cudaSuccess);
  }
  use_entry_points();
  unsigned char last = 0;
  void* kept = NULL;
  CHECK(cudaMalloc(&kept, 1 << 20) == cudaSuccess);
  CHECK(cudaMemset(kept, 42, 1 << 20) == cudaSuccess);
  CHECK(cudaMemcpy(&last, (char*)kept + (1 << 20) - 1, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(last == 42 && cudaFree(kept) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  void* device = dlopen(getenv("SPILLWAY_LIBCUDA"), RTLD_NOW);
  size_t (*report_count)(void) = (size_t(*)(void))dlsym(device, "spwSimReportCount");
  CHECK(report_count != NULL && report_count() == 0);
  return 0;
}
