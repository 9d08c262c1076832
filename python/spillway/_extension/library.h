// libspillway as the extension calls it: its errors are PyTorch's exceptions.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <spillway/spillway.h>

namespace spillway_torch {

// An error that is no lack of device memory, with the library's own text.
inline void check(spw_status status) {
  TORCH_CHECK(status == SPW_OK, "spillway: ", spw_last_error());
}

inline spw_stats stats_of(c10::DeviceIndex device) {
  spw_stats stats{};
  stats.size = sizeof stats;
  check(spw_stats_get(device, &stats));
  return stats;
}

inline c10::DeviceIndex current_device() {
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

// PyTorch makes a device's context with its first block; here something else may come before that.
inline void need_context(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaFree(nullptr));
}

}  // namespace spillway_torch
