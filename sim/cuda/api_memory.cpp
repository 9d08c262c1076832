// Device memory of cuMemAlloc, and what pointers are.
#include <algorithm>

#include "sim/cuda/call.h"

using namespace spillway::sim;

uint64_t spillway::sim::whole_pages(const State& state, uint64_t bytes) {
  const uint64_t page = state.config.granularity_bytes;
  return (bytes + page - 1) / page * page;
}

CUresult spillway::sim::reserve_block(Call& call, CUdeviceptr* dptr, uint64_t bytes, int device) {
  State& state = call.state();
  if (dptr == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > state.config.capacity_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t rounded = whole_pages(state, bytes);
  const uint64_t start = state.memory.reserve(rounded, state.config.granularity_bytes, 0);
  if (start == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Physical* physical = state.memory.create_empty(Physical::Kind::kAllocation, device, rounded);
  Mapping* mapping = state.memory.map(start, bytes, physical);
  state.memory.release(physical);  // the mapping keeps it
  mapping->access[static_cast<size_t>(device)] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  mapping->context = handle_of(owner_of(call.context()));
  *dptr = start;
  return CUDA_SUCCESS;
}

CUresult spillway::sim::allocate_block(Call& call, CUdeviceptr* dptr, uint64_t bytes, int device) {
  State& state = call.state();
  CUdeviceptr start = 0;
  const CUresult result =
      dptr == nullptr
          ? CUDA_ERROR_INVALID_VALUE
          : reserve_block(call, &start, bytes, device == kContextDevice ? call.context()->device : device);
  if (result != CUDA_SUCCESS) return result;
  Mapping* mapping = state.memory.find(start);
  if (!state.memory.commit(*mapping->physical) ||
      !state.memory.make_tables(*mapping, mapping->physical->device)) {
    free_allocation(state, mapping);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *dptr = start;
  return CUDA_SUCCESS;
}

namespace {

CUresult write_int(void* data, int value) {
  *static_cast<int*>(data) = value;
  return CUDA_SUCCESS;
}
CUresult write_word(void* data, uint64_t value) {
  *static_cast<uint64_t*>(data) = value;
  return CUDA_SUCCESS;
}
CUcontext owner_context(State& state, const Mapping& mapping) {
  if (mapping.context != nullptr || mapping.physical->device < 0) return mapping.context;
  return handle_of(state.primary[static_cast<size_t>(mapping.physical->device)]);
}

uint64_t pool_of(const State& state, const Mapping& mapping) {
  const auto block = state.pools.blocks.find(mapping.start);
  return block == state.pools.blocks.end() ? 0 : reinterpret_cast<uint64_t>(block->second.pool);
}

CUresult attribute_of(State& state, const Mapping& mapping, CUpointer_attribute attribute, CUdeviceptr ptr,
                      void* data) {
  const Physical& physical = *mapping.physical;
  const bool handle = physical.kind == Physical::Kind::kHandle;
  const bool host = physical.device == kHostDevice;
  const uint64_t base = handle ? state.memory.reservation_of(ptr).first : mapping.start;
  const uint64_t size = handle ? state.memory.reservation_of(ptr).second : mapping.bytes;
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = owner_context(state, mapping);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return write_int(data, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return write_word(data, ptr);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host) return CUDA_ERROR_INVALID_VALUE;
      return write_word(data, ptr);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return write_int(data, mapping.sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return write_word(data, mapping.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return write_int(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return write_int(data, host ? 0 : physical.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return write_int(data, handle || host ? 0 : 1);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return write_word(data, base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return write_word(data, size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return write_int(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return write_int(data, static_cast<int>(physical.properties.requestedHandleTypes));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return write_int(data, !handle || physical.properties.allocFlags.gpuDirectRDMACapable != 0 ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
      const Context* context = current_context(state);
      return write_int(data, mapping.access[static_cast<size_t>(context->device)]);
    }
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return write_word(data, pool_of(state, mapping));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return write_word(data, mapping.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return write_word(data, mapping.start);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return write_word(data, physical.id);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// cuPointerGetAttributes answers zero for pointers that CUDA does not know.
void zero_attribute(CUpointer_attribute attribute, void* data) {
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      write_int(data, 0);
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      write_int(data, -2);  // CU_DEVICE_INVALID
      break;
    default:
      write_word(data, 0);
      break;
  }
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  Call call(EntryPoint::k_cuMemGetInfo, kNeedsContext);
  if (call.refused()) return call.result();
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const State& state = call.state();
  *total = state.config.capacity_bytes;
  *free = state.memory.free_bytes(call.context()->device);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* dptr, size_t bytes) {
  Call call(EntryPoint::k_cuMemAlloc, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  return allocate_block(call, dptr, bytes);
}

CUresult cuMemAllocPitch(CUdeviceptr* dptr, size_t* pitch, size_t width, size_t height, unsigned element) {
  Call call(EntryPoint::k_cuMemAllocPitch, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  if (pitch == nullptr || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
  *pitch = (width + 511) / 512 * 512;
  if (*pitch != 0 && height > UINT64_MAX / *pitch) return CUDA_ERROR_OUT_OF_MEMORY;
  return allocate_block(call, dptr, *pitch * height);
}

CUresult cuMemFree(CUdeviceptr dptr) {
  Call call(EntryPoint::k_cuMemFree, kNeedsContext | kUnsafeInCapture);
  State& state = call.state();
  if (state.initialized) ++state.host_waits;
  if (call.refused()) return call.result();
  if (dptr == 0) return CUDA_SUCCESS;
  Mapping* mapping = state.memory.find(dptr);
  if (mapping == nullptr || mapping->start != dptr || mapping->physical->foreign ||
      mapping->physical->kind != Physical::Kind::kAllocation) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  wait_context(state, call.context(), call.lock());
  // A host function may have run meanwhile.
  mapping = state.memory.find(dptr);
  if (mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (state.pools.blocks.contains(dptr)) return free_into_pool(state, mapping, nullptr, call.lock());
  if (state.graph_memory.find(dptr) != nullptr) return free_graph_block(state, dptr, nullptr, call.lock());
  state.detector.before_unmap(*mapping);
  free_allocation(state, mapping);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr dptr) {
  Call call(EntryPoint::k_cuMemGetAddressRange);
  if (call.refused()) return call.result();
  // Of memory of cuMemMap that is the one mapping, as libraries found (openucx/ucx, pull request 11461;
  // ofiwg/libfabric, pull request 12473); CU_POINTER_ATTRIBUTE_RANGE_SIZE is the whole reservation's.
  const Mapping* mapping = call.state().memory.find(dptr);
  if (mapping == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = mapping->start;
  if (size != nullptr) *size = mapping->bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  Call call(EntryPoint::k_cuPointerGetAttribute, kNeedsContext);
  if (call.refused()) return call.result();
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Mapping* mapping = call.state().memory.find(ptr);
  if (mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return attribute_of(call.state(), *mapping, attribute, ptr, data);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr ptr) {
  Call call(EntryPoint::k_cuPointerGetAttributes, kNeedsContext);
  if (call.refused()) return call.result();
  if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Mapping* mapping = call.state().memory.find(ptr);
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (mapping == nullptr ||
        attribute_of(call.state(), *mapping, attributes[i], ptr, data[i]) != CUDA_SUCCESS) {
      zero_attribute(attributes[i], data[i]);
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
