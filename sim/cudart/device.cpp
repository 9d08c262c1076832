// Devices, versions, and the look-up of driver functions.
#include "sim/cudart/runtime.h"

using spillway::cudart::call;
using spillway::cudart::call_without_context;
using spillway::cudart::DriverTable;
using spillway::cudart::note;

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return note(cudaErrorInvalidValue);
  *version = spillway::cudart::kVersion;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (version == nullptr) return note(cudaErrorInvalidValue);
  const DriverTable* table = spillway::cudart::driver();
  *version = 0;  // what the real runtime answers where no driver is installed
  if (table == nullptr || table->driver_get_version == nullptr) return cudaSuccess;
  return note(static_cast<cudaError_t>(table->driver_get_version(version)));
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return note(cudaErrorInvalidValue);
  *count = 0;
  const cudaError_t error = call_without_context(&DriverTable::device_get_count, count);
  if (error != cudaSuccess) return error;
  return *count > 0 ? cudaSuccess : note(cudaErrorNoDevice);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  // The runtime's attributes have the driver's numbers.
  return call_without_context(&DriverTable::device_get_attribute, value,
                              static_cast<CUdevice_attribute>(attribute), device);
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return call_without_context(&DriverTable::device_get_pci_bus_id, text, bytes, device);
}

cudaError_t cudaProfilerStart() {
  return call(&DriverTable::profiler_start);
}

cudaError_t cudaProfilerStop() {
  return call(&DriverTable::profiler_stop);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call(&DriverTable::ctx_priority_range, least, greatest);
}

cudaError_t cudaDeviceSynchronize() {
  return call(&DriverTable::ctx_synchronize);
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  return call_without_context(&DriverTable::device_can_access_peer, can_access, device, peer);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  cudaError_t error = cudaSuccess;
  const DriverTable* table = spillway::cudart::driver_with_context(&error);
  CUcontext context = nullptr;
  if (table != nullptr) error = spillway::cudart::primary_context(*table, peer, &context);
  if (error != cudaSuccess) return note(error);
  return call(&DriverTable::ctx_enable_peer_access, context, flags);
}

// The ways of asking for a driver's function: for one of a version, or of the runtime's own; and, with _ptsz,
// as programs built for per-thread default streams ask. A name that the driver lacks is an answer (*status),
// not a failure.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return note(cudaErrorInvalidValue);
  *function = nullptr;
  cudaError_t error = cudaSuccess;
  const DriverTable* table = spillway::cudart::initialised_driver(&error);
  if (table == nullptr) return note(error);
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result = table->get_proc_address(symbol, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  if (result == CUDA_ERROR_NOT_FOUND && status != nullptr) return cudaSuccess;
  return note(static_cast<cudaError_t>(result));
}

cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** function, unsigned int version,
                                                  unsigned long long flags,
                                                  cudaDriverEntryPointQueryResult* status) {
  if (flags == cudaEnableDefault) flags = cudaEnablePerThreadDefaultStream;
  return cudaGetDriverEntryPointByVersion(symbol, function, version, flags, status);
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, spillway::cudart::kVersion, flags, status);
}

cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function, unsigned long long flags,
                                         cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion_ptsz(symbol, function, spillway::cudart::kVersion, flags, status);
}

}  // extern "C"
