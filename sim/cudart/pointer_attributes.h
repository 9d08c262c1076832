// Says what lies at an address, in the structure of either version of the runtime.
#pragma once

#include "sim/cudart/runtime.h"

namespace spillway::cudart {

// Memory that CUDA does not know is a type of its own, no error.
template <typename Attributes>
cudaError_t attributes_of(Attributes* attributes, const void* pointer) {
  if (attributes == nullptr) return note(cudaErrorInvalidValue);
  *attributes = {};
  attributes->device = -2;
  CUmemorytype type{};
  CUdeviceptr device_address = 0;
  void* host_address = nullptr;
  int ordinal = 0;
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                  CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* answers[] = {&type, &device_address, &host_address, &ordinal};
  const cudaError_t error =
      call(&DriverTable::pointer_get_attributes, 4u, wanted, answers, reinterpret_cast<CUdeviceptr>(pointer));
  if (error != cudaSuccess) return error;
  if (type == CU_MEMORYTYPE_DEVICE) attributes->type = cudaMemoryTypeDevice;
  if (type == CU_MEMORYTYPE_HOST) attributes->type = cudaMemoryTypeHost;
  attributes->hostPointer = const_cast<void*>(pointer);
  if (attributes->type == cudaMemoryTypeUnregistered) return cudaSuccess;
  attributes->device = ordinal;
  attributes->devicePointer = reinterpret_cast<void*>(device_address);
  attributes->hostPointer = host_address;
  return cudaSuccess;
}

}  // namespace spillway::cudart
