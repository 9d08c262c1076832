// How the extension calls libspillway and the CUDA runtime: errors are PyTorch's exceptions, counters its
// statistics.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <spillway/pinned.h>
#include <spillway/spillway.h>

namespace spillway_torch {

inline spw_pool_id abi(c10::MempoolId_t id) {
  return {id.first, id.second};
}

// An error that is no lack of device memory, with the library's own text.
inline void check(spw_status status) {
  TORCH_CHECK(status == SPW_OK, "spillway: ", spw_last_error());
}

inline c10::CachingAllocator::Stat to_torch(const spw_stat& stat) {
  c10::CachingAllocator::Stat out;
  out.current = stat.current;
  out.peak = stat.peak;
  out.allocated = stat.allocated;
  out.freed = stat.freed;
  return out;
}

inline c10::CachingAllocator::StatArray to_torch(const spw_pool_stat& stat) {
  return {to_torch(stat.all), to_torch(stat.small_pool), to_torch(stat.large_pool)};
}

inline c10::CachingAllocator::DurationStat to_torch(const spw_duration& duration) {
  c10::CachingAllocator::DurationStat out;
  out.total = duration.total_us;
  out.max = duration.longest_us;
  out.min = duration.shortest_us;
  out.count = duration.count;
  return out;
}

inline spw_stats stats_of(c10::DeviceIndex device) {
  spw_stats stats{};
  stats.size = sizeof stats;
  check(spw_stats_get(device, &stats));
  return stats;
}

// Every block begins with this. PyTorch's check is a call even after a success, so it is made after failures
// alone.
inline c10::DeviceIndex current_device() {
  c10::DeviceIndex device = 0;
  const cudaError_t error = c10::cuda::GetDevice(&device);
  if (error != cudaSuccess) [[unlikely]]
    C10_CUDA_CHECK(error);
  return device;
}

// Calls visit(segment) for each segment of a device.
template <typename Visit>
void walk(c10::DeviceIndex device, Visit visit) {
  const spw_segment_visitor call = [](const spw_segment* segment, void* context) {
    (*static_cast<Visit*>(context))(*segment);
    return 0;
  };
  check(spw_walk(device, call, &visit));
}

// PyTorch makes a device's context with its first block; here something else may come before that.
inline void need_context(c10::DeviceIndex device) {
  if (c10::cuda::hasPrimaryContext(device)) return;  // no call of the runtime while a graph is being captured
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaFree(nullptr));
}

}  // namespace spillway_torch
