// Memory in the order of a stream, managed memory and arrays, as far as programs that use them must run: all
// of it is device memory like cuMemAlloc's. A free in the order of a stream waits for that stream. Under
// capture both are nodes of the graph.
#include <algorithm>

#include "sim/cuda/call.h"
#include "sim/cuda/capture.h"

using namespace spillway::sim;

namespace {

// A pool is a name: every device has one, and others are told apart by their number. Which one is the
// device's current pool, and who has access, makes no difference to the driver's own memory here.
constexpr uint64_t kPoolTag = uint64_t{0x5b00} << 32;
constexpr uint64_t kPoolsOfDevice = uint64_t{1} << 24;

CUmemoryPool pool_named(int device, uint64_t number) {
  return reinterpret_cast<CUmemoryPool>(kPoolTag + static_cast<uint64_t>(device) * kPoolsOfDevice + number);
}

int device_of(CUmemoryPool pool) {
  return static_cast<int>((reinterpret_cast<uint64_t>(pool) - kPoolTag) / kPoolsOfDevice);
}

bool is_pool(const State& state, CUmemoryPool pool) {
  return reinterpret_cast<uint64_t>(pool) >= kPoolTag && device_of(pool) < state.config.devices;
}

CUresult allocate_on(EntryPoint entry, CUdeviceptr* out, size_t bytes, CUstream handle,
                     int device = kContextDevice) {
  Call call(entry, kNeedsContext);
  if (call.refused()) return call.result();
  Stream* stream = find_stream(call.state(), handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture == nullptr) return allocate_block(call, out, bytes, device);
  CUresult result = capture_node(stream, nullptr, {}, "allocation node");
  if (result == CUDA_SUCCESS) result = allocate_block(call, out, bytes, device);
  if (result == CUDA_SUCCESS) add_memory(*stream->capture->graph, *out);
  return result;
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
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) {
    const CUresult result = remove_memory(*stream->capture->graph, pointer);
    return result == CUDA_SUCCESS ? capture_node(stream, nullptr, {}, "free node") : result;
  }
  if (find_block(state, pointer) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wait_stream(state, stream, call.lock());
  // A host function may have run meanwhile.
  Mapping* mapping = find_block(state, pointer);
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

}  // namespace

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return allocate_on(EntryPoint::k_cuMemAllocAsync, out, bytes, stream);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return cuMemAllocAsync(out, bytes, per_thread(stream));
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_on(EntryPoint::k_cuMemAllocFromPoolAsync, out, bytes, stream, device_of(pool));
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
  if (device < 0 || device >= call.state().config.devices) return CUDA_ERROR_INVALID_DEVICE;
  *out = pool_named(device, 0);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  Call call(EntryPoint::k_cuMemPoolCreate);
  if (call.refused()) return call.result();
  if (out == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = pool_named(properties->location.id, call.state().next_id++);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  Call call(EntryPoint::k_cuMemPoolDestroy);
  if (call.refused()) return call.result();
  return reinterpret_cast<uint64_t>(pool) < kPoolTag ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* rows, size_t count) {
  Call call(EntryPoint::k_cuMemPoolSetAccess);
  if (call.refused()) return call.result();
  if (rows == nullptr || !is_pool(call.state(), pool)) return CUDA_ERROR_INVALID_VALUE;
  const auto is_there = [&](const CUmemAccessDesc& row) {
    return row.location.type != CU_MEM_LOCATION_TYPE_DEVICE || row.location.id < call.state().config.devices;
  };
  return std::all_of(rows, rows + count, is_there) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  Call call(EntryPoint::k_cuDeviceSetMemPool);
  if (call.refused()) return call.result();
  return is_pool(call.state(), pool) && device_of(pool) == device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
