/* A program of the CUDA runtime, which finds the driver by itself: shared, or made part of the program. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

int main(void) {
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
  unsigned char last = 0;
  void* kept = NULL;
  CHECK(cudaMalloc(&kept, 1 << 20) == cudaSuccess);
  CHECK(cudaMemset(kept, 42, 1 << 20) == cudaSuccess);
  CHECK(cudaMemcpy(&last, (char*)kept + (1 << 20) - 1, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(last == 42 && cudaFree(kept) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  return 0;
}
