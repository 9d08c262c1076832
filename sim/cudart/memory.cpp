// Memory: allocation, stream-ordered pools, copies, sharing between processes.
#include <cstring>

#include "sim/cudart/runtime.h"

using spillway::cudart::call;
using spillway::cudart::call_without_context;
using spillway::cudart::DriverTable;
using spillway::cudart::note;

namespace {

CUdeviceptr device_pointer(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// Returns where the driver stores an address for the caller: both are one 64-bit word.
CUdeviceptr* address_of(void** pointer) {
  static_assert(sizeof(CUdeviceptr) == sizeof(void*));
  return reinterpret_cast<CUdeviceptr*>(pointer);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (pointer == nullptr) return note(cudaErrorInvalidValue);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  return call(&DriverTable::mem_alloc, address_of(pointer), bytes);
}

cudaError_t cudaFree(void* pointer) {
  cudaError_t error = cudaSuccess;
  if (spillway::cudart::driver_with_context(&error) == nullptr) return note(error);
  return pointer == nullptr ? cudaSuccess : call(&DriverTable::mem_free, device_pointer(pointer));
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  if (pointer == nullptr) return note(cudaErrorInvalidValue);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  return call(&DriverTable::mem_alloc_async, address_of(pointer), bytes, stream);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  if (pointer == nullptr) return cudaSuccess;
  return call(&DriverTable::mem_free_async, device_pointer(pointer), stream);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  if (pointer == nullptr) return note(cudaErrorInvalidValue);
  *pointer = nullptr;
  return bytes == 0 ? cudaSuccess : call(&DriverTable::host_alloc, pointer, bytes, flags);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) {
  return pointer == nullptr ? cudaSuccess : call(&DriverTable::host_free, pointer);
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int flags) {
  return call(&DriverTable::host_register, pointer, bytes, flags);
}

cudaError_t cudaHostUnregister(void* pointer) {
  return call(&DriverTable::host_unregister, pointer);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return call(&DriverTable::mem_get_info, free_bytes, total_bytes);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return call_without_context(&DriverTable::device_get_default_mem_pool, pool, device);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call(&DriverTable::mem_pool_get_attribute, pool, static_cast<CUmemPool_attribute>(attribute), value);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call(&DriverTable::mem_pool_set_attribute, pool, static_cast<CUmemPool_attribute>(attribute), value);
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* rows, size_t count) {
  static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc));
  return call(&DriverTable::mem_pool_set_access, pool, reinterpret_cast<const CUmemAccessDesc*>(rows), count);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes) {
  return call(&DriverTable::mem_pool_trim_to, pool, keep_bytes);
}

// Addresses are unified, so the direction adds nothing; only its range is checked.
cudaError_t cudaMemcpy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return note(cudaErrorInvalidMemcpyDirection);
  if (bytes == 0) return cudaSuccess;
  return call(&DriverTable::copy, device_pointer(destination), device_pointer(source), bytes);
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return note(cudaErrorInvalidMemcpyDirection);
  if (bytes == 0) return cudaSuccess;
  return call(&DriverTable::copy_async, device_pointer(destination), device_pointer(source), bytes, stream);
}

cudaError_t cudaMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (width > destination_pitch || width > source_pitch) return note(cudaErrorInvalidPitchValue);
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        cudaMemcpyAsync(static_cast<char*>(destination) + row * destination_pitch,
                        static_cast<const char*>(source) + row * source_pitch, width, kind, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return call(&DriverTable::set_bytes, device_pointer(pointer), static_cast<unsigned char>(value), bytes);
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  return call(&DriverTable::set_bytes_async, device_pointer(pointer), static_cast<unsigned char>(value),
              bytes, stream);
}

cudaError_t cudaMemcpyPeerAsync(void* destination, int destination_device, const void* source,
                                int source_device, size_t bytes, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  const DriverTable* table = spillway::cudart::driver_with_context(&error);
  if (table == nullptr) return note(error);
  CUcontext to = nullptr;
  CUcontext from = nullptr;
  error = spillway::cudart::primary_context(*table, destination_device, &to);
  if (error == cudaSuccess) error = spillway::cudart::primary_context(*table, source_device, &from);
  if (error != cudaSuccess) return note(error);
  return call(&DriverTable::copy_peer_async, device_pointer(destination), to, device_pointer(source), from,
              bytes, stream);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle));
  return call(&DriverTable::ipc_get_mem_handle, reinterpret_cast<CUipcMemHandle*>(handle),
              device_pointer(pointer));
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
  if (pointer == nullptr) return note(cudaErrorInvalidValue);
  CUipcMemHandle driver_handle{};
  std::memcpy(&driver_handle, &handle, sizeof handle);
  return call(&DriverTable::ipc_open_mem_handle, address_of(pointer), driver_handle, flags);
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle));
  return call(&DriverTable::ipc_get_event_handle, reinterpret_cast<CUipcEventHandle*>(handle), event);
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  CUipcEventHandle driver_handle{};
  std::memcpy(&driver_handle, &handle, sizeof handle);
  return call(&DriverTable::ipc_open_event_handle, event, driver_handle);
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return call(&DriverTable::ipc_close_mem_handle, device_pointer(pointer));
}

}  // extern "C"
