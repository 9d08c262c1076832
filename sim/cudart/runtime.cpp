#include "sim/cudart/runtime.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>

namespace spillway::cudart {
namespace {

constexpr int kMaxDevices = 64;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int thread_device = 0;

std::atomic<bool> is_unloaded = false;

struct PrimaryContexts {
  std::mutex mutex;
  std::array<CUcontext, kMaxDevices> contexts{};
};

PrimaryContexts& primary_contexts() {
  static PrimaryContexts contexts;
  return contexts;
}

}  // namespace

cudaError_t note(cudaError_t error) {
  // "Not ready" answers a query; it is no failure and stays out of the last error.
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

const DriverTable* initialised_driver(cudaError_t* error) {
  static const cudaError_t kInitialised = [] {
    const DriverTable* table = driver();
    if (table == nullptr || table->init == nullptr) return cudaErrorInsufficientDriver;
    std::atexit([] { is_unloaded = true; });
    return static_cast<cudaError_t>(table->init(0));
  }();
  *error = is_unloaded ? cudaErrorCudartUnloading : kInitialised;
  return *error == cudaSuccess ? driver() : nullptr;
}

cudaError_t primary_context(const DriverTable& driver, int device, CUcontext* out) {
  if (device < 0 || device >= kMaxDevices) return cudaErrorInvalidDevice;
  PrimaryContexts& all = primary_contexts();
  const std::lock_guard lock(all.mutex);
  CUcontext& context = all.contexts[static_cast<size_t>(device)];
  if (context == nullptr) {
    CUdevice handle = 0;
    CUresult result = driver.device_get(&handle, device);
    if (result == CUDA_SUCCESS) result = driver.primary_ctx_retain(&context, handle);
    if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
  }
  *out = context;
  return cudaSuccess;
}

const DriverTable* driver_with_context(cudaError_t* error) {
  const DriverTable* table = initialised_driver(error);
  if (table == nullptr) return nullptr;
  CUcontext context = nullptr;
  *error = static_cast<cudaError_t>(table->ctx_get_current(&context));
  if (*error == cudaSuccess && context == nullptr) *error = set_current_device(thread_device);
  return *error == cudaSuccess ? table : nullptr;
}

int current_device() {
  return thread_device;
}

cudaError_t set_current_device(int device) {
  cudaError_t error = cudaSuccess;
  const DriverTable* table = initialised_driver(&error);
  if (table == nullptr) return error;
  CUcontext context = nullptr;
  error = primary_context(*table, device, &context);
  if (error == cudaSuccess) error = static_cast<cudaError_t>(table->ctx_set_current(context));
  if (error == cudaSuccess) thread_device = device;
  return error;
}

}  // namespace spillway::cudart

using spillway::cudart::note;

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = spillway::cudart::last_error;
  spillway::cudart::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  return spillway::cudart::last_error;
}

cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return note(cudaErrorInvalidValue);
  cudaError_t error = cudaSuccess;
  if (spillway::cudart::initialised_driver(&error) == nullptr) return note(error);
  *device = spillway::cudart::current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return note(spillway::cudart::set_current_device(device));
}

}  // extern "C"
