// Holds what every function of the stand-in runtime shares: the thread's last error, its current device, and
// the primary context that the runtime makes current on first use.
//
// Per-thread state only, besides one retained primary context per device (kept until the process ends, as
// NVIDIA's runtime does).
#pragma once

#include <cuda_runtime_api.h>

#include "sim/cudart/driver_table.h"

namespace spillway::cudart {

// The version that the runtime says it has.
#ifdef SPILLWAY_CUDART_VERSION
inline constexpr int kVersion = SPILLWAY_CUDART_VERSION;
#else
inline constexpr int kVersion = CUDART_VERSION;
#endif

// Notes a failure as the thread's last error and returns it. Driver and runtime codes have the same numbers.
cudaError_t note(cudaError_t error);

// The driver, initialised, or null with the reason in *error. The runtime ends in an exit handler, as
// NVIDIA's does: destructors and threads that are still there are told cudaErrorCudartUnloading from then on.
// PyTorch's threads know that answer, and end.
const DriverTable* initialised_driver(cudaError_t* error);

// As above, with a context current on the calling thread: the one it has, else the primary context of its
// device.
const DriverTable* driver_with_context(cudaError_t* error);

int current_device();
cudaError_t set_current_device(int device);
cudaError_t primary_context(const DriverTable& driver, int device, CUcontext* out);

namespace detail {
template <typename Pointer, typename... Args>
cudaError_t call(const DriverTable* driver, cudaError_t error, Pointer pointer, Args... args) {
  if (driver == nullptr) return note(error);
  if (driver->*pointer == nullptr) return note(cudaErrorNotSupported);
  return note(static_cast<cudaError_t>((driver->*pointer)(args...)));
}
}  // namespace detail

// One driver call as one runtime call; the second form needs no context.
template <typename Pointer, typename... Args>
cudaError_t call(Pointer pointer, Args... args) {
  cudaError_t error = cudaSuccess;
  const DriverTable* driver = driver_with_context(&error);
  return detail::call(driver, error, pointer, args...);
}

template <typename Pointer, typename... Args>
cudaError_t call_without_context(Pointer pointer, Args... args) {
  cudaError_t error = cudaSuccess;
  const DriverTable* driver = initialised_driver(&error);
  return detail::call(driver, error, pointer, args...);
}

}  // namespace spillway::cudart
