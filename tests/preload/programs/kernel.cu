// usage: kernel: what a program of nvcc does, with its runtime shared or static: memory with and without a stream,
// kernels on two streams, and the numbers at the end. Prints how many allocations it made.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

constexpr int kCount = 1 << 20;
constexpr int kRounds = 50;

__global__ void fill(int* out, int count, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = value + i;
}

// Adds to each number, slowly enough that memory which is given away too early is still in use.
__global__ void add_slowly(int* out, int count, int times) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int time = 0; i < count && time < times; ++time) atomicAdd(out + i, 1);
}

int main() {
  const dim3 blocks(kCount / 256);
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) {
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  }
  int allocations = 0;
  std::vector<int> found(kCount);
  for (int round = 0; round < kRounds; ++round) {
    cudaStream_t stream = streams[round % 2];
    int* ordered = nullptr;
    int* plain = nullptr;
    CHECK(cudaMallocAsync(&ordered, kCount * sizeof(int), stream) == cudaSuccess);
    CHECK(cudaMalloc(&plain, kCount * sizeof(int)) == cudaSuccess);
    allocations += 2;
    for (int* each : {ordered, plain}) {
      fill<<<blocks, 256, 0, stream>>>(each, kCount, round);
      add_slowly<<<blocks, 256, 0, stream>>>(each, kCount, 20);
    }
    CHECK(cudaGetLastError() == cudaSuccess);
    if (round % 7 == 0) {  // of both streams
      for (const int* each : {ordered, plain}) {
        CHECK(cudaMemcpyAsync(found.data(), each, kCount * sizeof(int), cudaMemcpyDeviceToHost, stream) ==
              cudaSuccess);
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        for (int i = 0; i < kCount; ++i) CHECK(found[i] == round + i + 20);
      }
    }
    CHECK(cudaFreeAsync(ordered, stream) == cudaSuccess);
    CHECK(cudaFree(plain) == cudaSuccess);  // while the other stream may be at work
  }
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  printf("%d\n", allocations);
}
