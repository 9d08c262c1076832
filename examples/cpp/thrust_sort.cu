// Thrust and CUB with Spillway's memory: a vector, what thrust::sort needs in between, and the scratch memory
// of a reduction, all in the order of one stream.
//
//   thrust_sort [COUNT]
//
// Sorts COUNT numbers some times and adds them up. Ends with both checked, and what the allocator had to ask
// of the driver once it had seen all sizes.
#include <cuda_runtime_api.h>
#include <thrust/copy.h>
#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/sort.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cub/device/device_reduce.cuh>
#include <exception>
#include <stdexcept>
#include <vector>

#include "spillway/memory_resource.hpp"

namespace {

template <class T>
using Vector = thrust::device_vector<T, spillway::Allocator<T, thrust::device_ptr<T>>>;

constexpr int kRounds = 10;
constexpr std::size_t kAlignment = 256;

void check(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}

spw_stats stats() {
  spw_stats stats{};
  stats.size = sizeof stats;
  spillway::check(spw_stats_get(0, &stats));
  return stats;
}
long long blocks() {
  return stats().allocation.all.allocated;
}
long long driver_calls() {
  const spw_stats now = stats();
  return now.driver_calls.create + now.driver_calls.map + now.driver_calls.mem_alloc;
}

// In descending order.
std::vector<int> make_numbers(int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) numbers[static_cast<std::size_t>(i)] = count - i;
  return numbers;
}

// Sums up `numbers` by CUB, which says first how much scratch memory it wants.
void add_up(const spillway::MemoryResource& memory, cudaStream_t stream, const Vector<int>& numbers,
            Vector<long long>& sum) {
  const int count = static_cast<int>(numbers.size());
  const int* in = thrust::raw_pointer_cast(numbers.data());
  long long* out = thrust::raw_pointer_cast(sum.data());
  std::size_t bytes = 0;
  check(cub::DeviceReduce::Sum(nullptr, bytes, in, out, count, stream));
  void* scratch = memory.allocate(stream, bytes, kAlignment);
  const cudaError_t result = cub::DeviceReduce::Sum(scratch, bytes, in, out, count, stream);
  memory.deallocate(stream, scratch, bytes, kAlignment);
  check(result);
}

void run(int count) {
  check(cudaSetDevice(0));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    const spillway::MemoryResource memory;
    const spillway::Allocator<char> temporary(memory, stream);
    const auto policy = thrust::cuda::par_nosync(temporary).on(stream);
    const std::vector<int> input = make_numbers(count);
    Vector<int> numbers(input.size(), spillway::Allocator<int, thrust::device_ptr<int>>(memory, stream));
    Vector<long long> sum(1, spillway::Allocator<long long, thrust::device_ptr<long long>>(memory, stream));
    check(cudaDeviceSynchronize());  // vectors fill themselves on the default stream

    const long long before = blocks();
    long long warm = 0;
    for (int round = 0; round < kRounds; ++round) {
      if (round == kRounds / 2) warm = driver_calls();
      check(cudaMemcpyAsync(thrust::raw_pointer_cast(numbers.data()), input.data(),
                            input.size() * sizeof(int), cudaMemcpyHostToDevice, stream));
      thrust::sort(policy, numbers.begin(), numbers.end());
      add_up(memory, stream, numbers, sum);
    }
    std::printf("%d rounds; temporary blocks: %lld; driver calls for memory in the second half: %lld\n",
                kRounds, blocks() - before, driver_calls() - warm);

    std::vector<int> sorted(input.size());
    long long total = 0;
    check(cudaMemcpyAsync(sorted.data(), thrust::raw_pointer_cast(numbers.data()),
                          sorted.size() * sizeof(int), cudaMemcpyDeviceToHost, stream));
    check(cudaMemcpyAsync(&total, thrust::raw_pointer_cast(sum.data()), sizeof total, cudaMemcpyDeviceToHost,
                          stream));
    check(cudaStreamSynchronize(stream));
    if (!std::is_sorted(sorted.begin(), sorted.end())) throw std::runtime_error("the numbers are not sorted");
    if (total != static_cast<long long>(count) * (count + 1LL) / 2)
      throw std::runtime_error("the sum is wrong");
  }
  spillway::check(spw_stream_destroyed(0, stream));
  check(cudaStreamDestroy(stream));
}

}  // namespace

int main(int count, char** words) {
  try {
    const int numbers = count > 1 ? std::atoi(words[1]) : 1 << 20;
    if (count > 2 || numbers < 1) throw std::runtime_error("usage: thrust_sort [COUNT]; COUNT is 1 or more");
    run(numbers);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "thrust_sort: %s\n", error.what());
    return 1;
  }
}
