// Memory in the order of a stream and the pools it comes from; managed memory and arrays, as far as programs
// that use them must run: these are device memory like cuMemAlloc's.
#include <algorithm>

#include "sim/cuda/call.h"
#include "sim/cuda/capture.h"

using namespace spillway::sim;

namespace {

bool is_device(const State& state, int device) {
  return device >= 0 && device < state.config.devices;
}

// Null: the pool that is the stream's device's current one.
CUresult allocate_on(EntryPoint entry, CUdeviceptr* out, size_t bytes, CUstream handle,
                     CUmemoryPool from = nullptr) {
  Call call(entry, kNeedsContext);
  if (call.refused()) return call.result();
  State& state = call.state();
  Stream* stream = find_stream(state, handle);
  if (stream == nullptr) return refuse_stream(handle);
  MemoryPool* pool = from != nullptr ? find_pool(from) : current_pool(state, stream->context->device);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return stream->capture != nullptr ? capture_allocation(call, stream, out, bytes, pool->device)
                                    : allocate_from_pool(call, *pool, stream, out, bytes);
}

Mapping* find_block(State& state, CUdeviceptr start) {
  Mapping* mapping = state.memory.find(start);
  const bool is_block = mapping != nullptr && mapping->start == start && !mapping->physical->foreign &&
                        mapping->physical->kind == Physical::Kind::kAllocation;
  return is_block ? mapping : nullptr;
}

CUresult free_on(CUdeviceptr pointer, CUstream handle) {
  Call call(EntryPoint::k_cuMemFreeAsync, kNeedsContext);
  if (call.refused()) return call.result();
  State& state = call.state();
  Stream* stream = find_stream(state, handle);
  if (stream == nullptr) return refuse_stream(handle);
  if (stream->capture != nullptr) return capture_free(state, stream, pointer);
  Mapping* mapping = find_block(state, pointer);
  if (mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (state.pools.blocks.contains(pointer)) return free_into_pool(state, mapping, stream, call.lock());
  if (state.graph_memory.find(pointer) != nullptr)
    return free_graph_block(state, pointer, stream, call.lock());
  wait_stream(state, stream, call.lock());
  // A host function may have run meanwhile.
  mapping = find_block(state, pointer);
  if (mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  state.detector.before_unmap(*mapping);
  free_allocation(state, mapping);
  return CUDA_SUCCESS;
}

CUresult create_array(EntryPoint entry, CUarray* out, uint64_t elements, unsigned channels) {
  Call call(entry, kNeedsContext);
  if (call.refused()) return call.result();
  if (out == nullptr || channels == 0) return CUDA_ERROR_INVALID_VALUE;
  constexpr uint64_t kLargestElement = 4;
  CUdeviceptr start = 0;
  const CUresult result = allocate_block(call, &start, elements * channels * kLargestElement);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<CUarray>(start);
  return result;
}

// The attribute's switch; null where it is none.
bool* reuse_of(MemoryPool& pool, CUmemPool_attribute attribute) {
  switch (static_cast<int>(attribute)) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return &pool.follows_events;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return &pool.is_opportunistic;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return &pool.adds_dependencies;
    default:
      return nullptr;
  }
}

const uint64_t* bytes_of(const MemoryPool& pool, CUmemPool_attribute attribute) {
  switch (static_cast<int>(attribute)) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return &pool.release_threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return &pool.reserved.current;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return &pool.reserved.high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return &pool.used.current;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return &pool.used.high;
    default:
      return nullptr;
  }
}

}  // namespace

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return allocate_on(EntryPoint::k_cuMemAllocAsync, out, bytes, stream);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return cuMemAllocAsync(out, bytes, per_thread(stream));
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE
                         : allocate_on(EntryPoint::k_cuMemAllocFromPoolAsync, out, bytes, stream, pool);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return cuMemAllocFromPoolAsync(out, bytes, pool, per_thread(stream));
}
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  return free_on(pointer, stream);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  return free_on(pointer, per_thread(stream));
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  Call call(EntryPoint::k_cuDeviceGetDefaultMemPool);
  if (call.refused()) return call.result();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(call.state(), device)) return CUDA_ERROR_INVALID_DEVICE;
  *out = handle_of(usual_pool(call.state(), device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  Call call(EntryPoint::k_cuDeviceGetMemPool);
  if (call.refused()) return call.result();
  if (out == nullptr || !is_device(call.state(), device)) return CUDA_ERROR_INVALID_VALUE;
  *out = handle_of(current_pool(call.state(), device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  Call call(EntryPoint::k_cuDeviceSetMemPool);
  if (call.refused()) return call.result();
  MemoryPool* pool = find_pool(handle);
  if (pool == nullptr || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
  call.state().pools.current[static_cast<size_t>(device)] = pool;
  return CUDA_SUCCESS;
}

// What a pool may be shared by makes no difference here.
CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  Call call(EntryPoint::k_cuMemPoolCreate);
  if (call.refused()) return call.result();
  if (out == nullptr || properties == nullptr || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return fail(CUDA_ERROR_NOT_SUPPORTED, "pools have memory of a device here");
  if (!is_device(call.state(), properties->location.id)) return CUDA_ERROR_INVALID_VALUE;
  *out = handle_of(make_pool(call.state(), properties->location.id));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  Call call(EntryPoint::k_cuMemPoolDestroy);
  if (call.refused()) return call.result();
  MemoryPool* pool = find_pool(handle);
  if (pool == nullptr || pool == usual_pool(call.state(), pool->device)) return CUDA_ERROR_INVALID_VALUE;
  destroy_pool(call.state(), pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t kept_bytes) {
  Call call(EntryPoint::k_cuMemPoolTrimTo);
  if (call.refused()) return call.result();
  MemoryPool* pool = find_pool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  trim_pool(call.state(), *pool, kept_bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Call call(EntryPoint::k_cuMemPoolGetAttribute);
  if (call.refused()) return call.result();
  MemoryPool* pool = find_pool(handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const bool* reuse = reuse_of(*pool, attribute); reuse != nullptr) {
    *static_cast<int*>(value) = *reuse ? 1 : 0;
    return CUDA_SUCCESS;
  }
  const uint64_t* bytes = bytes_of(*pool, attribute);
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<cuuint64_t*>(value) = *bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Call call(EntryPoint::k_cuMemPoolSetAttribute);
  if (call.refused()) return call.result();
  MemoryPool* pool = find_pool(handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (bool* reuse = reuse_of(*pool, attribute); reuse != nullptr) {
    *reuse = *static_cast<const int*>(value) != 0;
    return CUDA_SUCCESS;
  }
  const auto bytes = [&] { return *static_cast<const cuuint64_t*>(value); };
  switch (static_cast<int>(attribute)) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->release_threshold = bytes();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return pool->reserved.set_high(bytes());
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return pool->used.set_high(bytes());
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Who has access makes no difference to the driver's own memory here.
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* rows, size_t count) {
  Call call(EntryPoint::k_cuMemPoolSetAccess);
  if (call.refused()) return call.result();
  if (rows == nullptr || find_pool(pool) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto is_there = [&](const CUmemAccessDesc& row) {
    return row.location.type != CU_MEM_LOCATION_TYPE_DEVICE || row.location.id < call.state().config.devices;
  };
  return std::all_of(rows, rows + count, is_there) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  Call call(EntryPoint::k_cuMemAllocManaged, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  return allocate_block(call, out, bytes);
}

CUresult cuArrayCreate(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* array) {
  if (array == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t rows = array->Height == 0 ? 1 : array->Height;
  return create_array(EntryPoint::k_cuArrayCreate, out, array->Width * rows, array->NumChannels);
}

CUresult cuArray3DCreate(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* array) {
  if (array == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t rows = array->Height == 0 ? 1 : array->Height;
  const uint64_t layers = array->Depth == 0 ? 1 : array->Depth;
  return create_array(EntryPoint::k_cuArray3DCreate, out, array->Width * rows * layers, array->NumChannels);
}

CUresult cuArrayDestroy(CUarray array) {
  Call call(EntryPoint::k_cuArrayDestroy, kNeedsContext);
  if (call.refused()) return call.result();
  Mapping* mapping = find_block(call.state(), reinterpret_cast<CUdeviceptr>(array));
  if (mapping == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  free_allocation(call.state(), mapping);
  return CUDA_SUCCESS;
}

}  // extern "C"
