// Device memory in the order of streams: two streams hand blocks to each other, and no step waits for the
// device.
//
//   stream_ordered [STEPS]
//
// Each step fills a block on one stream, lets the other stream copy it into a result, and gives the block
// back there, while both still use it. Ends with the bytes checked, and what the allocator had to ask of the
// driver.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <vector>

#include "spillway/memory_resource.hpp"

namespace {

constexpr std::size_t kBytes = std::size_t{4} << 20;
constexpr std::size_t kAlignment = 256;
constexpr int kResults = 4;

void check(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// What is enqueued on `later` from now on comes after all that is on `earlier`.
void order(cudaStream_t earlier, cudaStream_t later) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  check(cudaEventRecord(event, earlier));
  check(cudaStreamWaitEvent(later, event, 0));
  check(cudaEventDestroy(event));
}

long long driver_calls_for_memory() {
  spw_stats stats{};
  stats.size = sizeof stats;
  spillway::check(spw_stats_get(0, &stats));
  return stats.driver_calls.create + stats.driver_calls.map + stats.driver_calls.mem_alloc;
}

void run(int steps) {
  check(cudaSetDevice(0));
  const spillway::MemoryResource memory;
  cudaStream_t producer = make_stream();
  cudaStream_t consumer = make_stream();
  auto* results = static_cast<unsigned char*>(memory.allocate(consumer, kResults * kBytes, kAlignment));

  long long warm = 0;
  for (int step = 0; step < steps; ++step) {
    if (step == steps / 2) warm = driver_calls_for_memory();
    void* block = memory.allocate(producer, kBytes, kAlignment);
    check(cudaMemsetAsync(block, step % 251, kBytes, producer));
    order(producer, consumer);
    check(cudaMemcpyAsync(results + static_cast<std::size_t>(step % kResults) * kBytes, block, kBytes,
                          cudaMemcpyDeviceToDevice, consumer));
    memory.deallocate(consumer, block, kBytes, kAlignment);
    order(consumer, producer);
  }
  const long long late = driver_calls_for_memory() - warm;

  std::vector<unsigned char> host(kBytes);
  for (int step = steps < kResults ? 0 : steps - kResults; step < steps; ++step) {
    check(cudaMemcpyAsync(host.data(), results + static_cast<std::size_t>(step % kResults) * kBytes, kBytes,
                          cudaMemcpyDeviceToHost, consumer));
    check(cudaStreamSynchronize(consumer));
    for (const unsigned char byte : host) {
      if (byte != step % 251) throw std::runtime_error("a block was overwritten while it was in use");
    }
  }
  memory.deallocate(consumer, results, kResults * kBytes, kAlignment);
  std::printf("%d steps; driver calls for memory in the second half: %lld\n", steps, late);

  for (cudaStream_t stream : {producer, consumer}) {
    spillway::check(spw_stream_destroyed(0, stream));
    check(cudaStreamDestroy(stream));
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    const int steps = count > 1 ? std::atoi(words[1]) : 100;
    if (count > 2 || steps < 2) throw std::runtime_error("usage: stream_ordered [STEPS]; STEPS is 2 or more");
    run(steps);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stream_ordered: %s\n", error.what());
    return 1;
  }
}
