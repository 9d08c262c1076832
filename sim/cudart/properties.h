// Says what a device is, in the structure of either version of the runtime, by the driver's attributes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "sim/cudart/runtime.h"

namespace spillway::cudart {

template <typename Properties>
struct PropertyRow {
  int Properties::*member;
  CUdevice_attribute attribute;
};

template <typename Properties>
constexpr PropertyRow<Properties> kIntProperties[] = {
    {&Properties::regsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK},
    {&Properties::warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
    {&Properties::maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
    {&Properties::major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {&Properties::minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {&Properties::multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    {&Properties::integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED},
    {&Properties::canMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY},
    {&Properties::concurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS},
    {&Properties::ECCEnabled, CU_DEVICE_ATTRIBUTE_ECC_ENABLED},
    {&Properties::pciBusID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID},
    {&Properties::pciDeviceID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID},
    {&Properties::pciDomainID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID},
    {&Properties::asyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
    {&Properties::unifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
    {&Properties::memoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
    {&Properties::l2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
    {&Properties::maxThreadsPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
    {&Properties::streamPrioritiesSupported, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED},
    {&Properties::regsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
    {&Properties::maxBlocksPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
    {&Properties::managedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
    {&Properties::pageableMemoryAccess, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
    {&Properties::concurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
    {&Properties::cooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
    {&Properties::memoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
    {&Properties::gpuDirectRDMASupported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED},
    {&Properties::hostNumaId, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID},
};

template <typename Properties>
struct SizeRow {
  size_t Properties::*member;
  CUdevice_attribute attribute;
};

template <typename Properties>
constexpr SizeRow<Properties> kSizeProperties[] = {
    {&Properties::sharedMemPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
    {&Properties::sharedMemPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
    {&Properties::sharedMemPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
    {&Properties::totalConstMem, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY},
    {&Properties::textureAlignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT},
};

// 0 for what the driver below does not know: a property is a description, not a promise.
inline int attribute(const DriverTable& driver, CUdevice_attribute which, CUdevice device) {
  int value = 0;
  return driver.device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

template <typename Properties>
cudaError_t fill_properties(const DriverTable& driver, int ordinal, Properties* out) {
  CUdevice device = 0;
  CUresult result = driver.device_get(&device, ordinal);
  if (result != CUDA_SUCCESS) return cudaErrorInvalidDevice;
  *out = Properties{};
  result = driver.device_get_name(out->name, static_cast<int>(sizeof out->name), device);
  if (result == CUDA_SUCCESS) result = driver.device_total_mem(&out->totalGlobalMem, device);
  if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
  if (driver.device_get_uuid != nullptr) {
    CUuuid uuid{};
    if (driver.device_get_uuid(&uuid, device) == CUDA_SUCCESS) {
      std::memcpy(&out->uuid, &uuid, sizeof out->uuid);
    }
  }
  for (const PropertyRow<Properties>& row : kIntProperties<Properties>) {
    out->*row.member = attribute(driver, row.attribute, device);
  }
  for (const SizeRow<Properties>& row : kSizeProperties<Properties>) {
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

// As the runtime's function of the same name, into the structure that its version has.
template <typename Properties>
cudaError_t properties_of(Properties* out, int device) {
  if (out == nullptr) return note(cudaErrorInvalidValue);
  cudaError_t error = cudaSuccess;
  const DriverTable* table = initialised_driver(&error);
  if (table == nullptr) return note(error);
  return note(fill_properties(*table, device, out));
}

}  // namespace spillway::cudart
