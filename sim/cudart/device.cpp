// Devices, versions, and the look-up of driver functions.
#include <algorithm>
#include <cstring>

#include "sim/cudart/runtime.h"

namespace spillway::cudart {
namespace {

struct PropertyRow {
  int cudaDeviceProp::*member;
  CUdevice_attribute attribute;
};

constexpr PropertyRow kIntProperties[] = {
    {&cudaDeviceProp::regsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK},
    {&cudaDeviceProp::warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
    {&cudaDeviceProp::maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
    {&cudaDeviceProp::major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {&cudaDeviceProp::minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {&cudaDeviceProp::multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    {&cudaDeviceProp::integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED},
    {&cudaDeviceProp::canMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY},
    {&cudaDeviceProp::concurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS},
    {&cudaDeviceProp::ECCEnabled, CU_DEVICE_ATTRIBUTE_ECC_ENABLED},
    {&cudaDeviceProp::pciBusID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID},
    {&cudaDeviceProp::pciDeviceID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID},
    {&cudaDeviceProp::pciDomainID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID},
    {&cudaDeviceProp::asyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
    {&cudaDeviceProp::unifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
    {&cudaDeviceProp::memoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
    {&cudaDeviceProp::l2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
    {&cudaDeviceProp::maxThreadsPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::streamPrioritiesSupported, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED},
    {&cudaDeviceProp::regsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::managedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
    {&cudaDeviceProp::pageableMemoryAccess, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
    {&cudaDeviceProp::concurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
    {&cudaDeviceProp::cooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
    {&cudaDeviceProp::memoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
    {&cudaDeviceProp::gpuDirectRDMASupported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED},
    {&cudaDeviceProp::hostNumaId, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID},
};

struct SizeRow {
  size_t cudaDeviceProp::*member;
  CUdevice_attribute attribute;
};

constexpr SizeRow kSizeProperties[] = {
    {&cudaDeviceProp::sharedMemPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
    {&cudaDeviceProp::sharedMemPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
    {&cudaDeviceProp::sharedMemPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::totalConstMem, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY},
    {&cudaDeviceProp::textureAlignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT},
};

// 0 for what the driver below does not know: a property is a description, not a promise.
int attribute(const DriverTable& driver, CUdevice_attribute which, CUdevice device) {
  int value = 0;
  return driver.device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

cudaError_t fill_properties(const DriverTable& driver, int ordinal, cudaDeviceProp* out) {
  CUdevice device = 0;
  CUresult result = driver.device_get(&device, ordinal);
  if (result != CUDA_SUCCESS) return cudaErrorInvalidDevice;
  *out = cudaDeviceProp{};
  result = driver.device_get_name(out->name, static_cast<int>(sizeof out->name), device);
  if (result == CUDA_SUCCESS) result = driver.device_total_mem(&out->totalGlobalMem, device);
  if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
  if (driver.device_get_uuid != nullptr) {
    CUuuid uuid{};
    if (driver.device_get_uuid(&uuid, device) == CUDA_SUCCESS) {
      std::memcpy(&out->uuid, &uuid, sizeof out->uuid);
    }
  }
  for (const PropertyRow& row : kIntProperties) {
    out->*row.member = attribute(driver, row.attribute, device);
  }
  for (const SizeRow& row : kSizeProperties) {
    out->*row.member = static_cast<size_t>(std::max(0, attribute(driver, row.attribute, device)));
  }
  for (int axis = 0; axis < 3; ++axis) {
    out->maxThreadsDim[axis] = attribute(
        driver, static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + axis), device);
    out->maxGridSize[axis] =
        attribute(driver, static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + axis), device);
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace spillway::cudart

using spillway::cudart::call;
using spillway::cudart::call_without_context;
using spillway::cudart::DriverTable;
using spillway::cudart::note;

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return note(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
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

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (properties == nullptr) return note(cudaErrorInvalidValue);
  cudaError_t error = cudaSuccess;
  const DriverTable* table = spillway::cudart::initialised_driver(&error);
  if (table == nullptr) return note(error);
  return note(spillway::cudart::fill_properties(*table, device, properties));
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
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}

cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function, unsigned long long flags,
                                         cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion_ptsz(symbol, function, CUDART_VERSION, flags, status);
}

}  // extern "C"
