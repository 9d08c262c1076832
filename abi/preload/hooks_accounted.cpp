// Memory that the driver serves and Spillway only counts.
#include <algorithm>
#include <cstdint>

#include "abi/preload/created_memory.h"
#include "abi/preload/hooks.h"

namespace spillway {
namespace {

template <typename Handle>
uint64_t key_of(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}

void drop(DriverMemory kind, CUresult result, uint64_t key) noexcept {
  if (result == CUDA_SUCCESS) Accounts::instance().remove(kind, key);
}

CUresult mem_alloc_managed(CUdeviceptr* out, size_t bytes, unsigned flags) {
  const CUresult result = take_from_driver([&] { return real_calls->cuMemAllocManaged(out, bytes, flags); });
  if (result == CUDA_SUCCESS) account(DriverMemory::kManaged, *out, bytes);
  return result;
}

CUresult mem_alloc_host(void** out, size_t bytes) {
  const CUresult result = real_calls->cuMemAllocHost_v2(out, bytes);
  if (result == CUDA_SUCCESS) account(DriverMemory::kHost, key_of(*out), bytes);
  return result;
}

CUresult mem_host_alloc(void** out, size_t bytes, unsigned flags) {
  const CUresult result = real_calls->cuMemHostAlloc(out, bytes, flags);
  if (result == CUDA_SUCCESS) account(DriverMemory::kHost, key_of(*out), bytes);
  return result;
}

CUresult mem_free_host(void* pointer) {
  const CUresult result = real_calls->cuMemFreeHost(pointer);
  drop(DriverMemory::kHost, result, key_of(pointer));
  return result;
}

CUresult mem_host_register(void* pointer, size_t bytes, unsigned flags) {
  const CUresult result = real_calls->cuMemHostRegister_v2(pointer, bytes, flags);
  if (result == CUDA_SUCCESS) account(DriverMemory::kHost, key_of(pointer), bytes);
  return result;
}

CUresult mem_host_unregister(void* pointer) {
  const CUresult result = real_calls->cuMemHostUnregister(pointer);
  drop(DriverMemory::kHost, result, key_of(pointer));
  return result;
}

// ---- Arrays

size_t element_bytes(CUarray_format format, unsigned channels) {
  switch (static_cast<int>(format)) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return size_t{4} * channels;
    default:
      return size_t{2} * channels;
  }
}

// An extent of 0 is none.
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array) {
  return uint64_t{std::max<size_t>(array.Width, 1)} * std::max<size_t>(array.Height, 1) *
         std::max<size_t>(array.Depth, 1) * element_bytes(array.Format, array.NumChannels);
}

CUresult array_create(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* description) {
  const CUresult result = take_from_driver([&] { return real_calls->cuArrayCreate_v2(out, description); });
  if (result != CUDA_SUCCESS) return result;
  CUDA_ARRAY3D_DESCRIPTOR array{};
  array.Width = description->Width;
  array.Height = description->Height;
  array.Format = description->Format;
  array.NumChannels = description->NumChannels;
  account(DriverMemory::kArray, key_of(*out), array_bytes(array));
  return result;
}

CUresult array_3d_create(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* description) {
  const CUresult result = take_from_driver([&] { return real_calls->cuArray3DCreate_v2(out, description); });
  if (result == CUDA_SUCCESS) account(DriverMemory::kArray, key_of(*out), array_bytes(*description));
  return result;
}

CUresult array_destroy(CUarray array) {
  const CUresult result = real_calls->cuArrayDestroy(array);
  drop(DriverMemory::kArray, result, key_of(array));
  return result;
}

// Each level has half the extents of the one before.
CUresult mipmapped_array_create(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* description,
                                unsigned levels) {
  const CUresult result =
      take_from_driver([&] { return real_calls->cuMipmappedArrayCreate(out, description, levels); });
  if (result != CUDA_SUCCESS) return result;
  uint64_t bytes = 0;
  CUDA_ARRAY3D_DESCRIPTOR level = *description;
  for (unsigned i = 0; i < levels; ++i) {
    bytes += array_bytes(level);
    level.Width /= 2;
    level.Height /= 2;
    level.Depth /= 2;
  }
  account(DriverMemory::kArray, key_of(*out), bytes);
  return result;
}

CUresult mipmapped_array_destroy(CUmipmappedArray array) {
  const CUresult result = real_calls->cuMipmappedArrayDestroy(array);
  drop(DriverMemory::kArray, result, key_of(array));
  return result;
}

// ---- The program's own mappings

CUresult mem_create(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* properties,
                    unsigned long long flags) {
  const auto call = [&] { return real_calls->cuMemCreate(out, bytes, properties, flags); };
  const bool is_on_device = properties != nullptr && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const CUresult result = is_on_device ? take_from_driver(call, properties->location.id) : call();
  if (result != CUDA_SUCCESS || !is_on_device) return result;
  (void)served_here();  // dumps list the devices that are served
  CreatedMemory::instance().created(*out, properties->location.id, bytes);
  return result;
}

CUresult mem_release(CUmemGenericAllocationHandle handle) {
  const CUresult result = real_calls->cuMemRelease(handle);
  if (result == CUDA_SUCCESS) CreatedMemory::instance().released(handle);
  return result;
}

CUresult mem_import(CUmemGenericAllocationHandle* out, void* shown, CUmemAllocationHandleType type) {
  const CUresult result = real_calls->cuMemImportFromShareableHandle(out, shown, type);
  if (result == CUDA_SUCCESS) CreatedMemory::instance().retained(*out);
  return result;
}

CUresult mem_map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                 unsigned long long flags) {
  const CUresult result = real_calls->cuMemMap(address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) CreatedMemory::instance().mapped(address, handle);
  return result;
}

CUresult mem_unmap(CUdeviceptr address, size_t bytes) {
  const CUresult result = real_calls->cuMemUnmap(address, bytes);
  if (result == CUDA_SUCCESS) CreatedMemory::instance().unmapped(address, bytes);
  return result;
}

// ---- Graphs

CUresult graph_add_mem_alloc_node(CUgraphNode* out, CUgraph graph, const CUgraphNode* nodes, size_t count,
                                  CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  const CUresult result = real_calls->cuGraphAddMemAllocNode(out, graph, nodes, count, parameters);
  if (result == CUDA_SUCCESS) account(DriverMemory::kGraph, parameters->dptr, parameters->bytesize);
  return result;
}

CUresult graph_add_mem_free_node(CUgraphNode* out, CUgraph graph, const CUgraphNode* nodes, size_t count,
                                 CUdeviceptr pointer) {
  const CUresult result = real_calls->cuGraphAddMemFreeNode(out, graph, nodes, count, pointer);
  drop(DriverMemory::kGraph, result, pointer);
  return result;
}

#if CUDA_VERSION >= 12020
void count_node(CUresult result, const CUgraphNodeParams* node) noexcept {
  if (result != CUDA_SUCCESS) return;
  if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    account(DriverMemory::kGraph, node->alloc.dptr, node->alloc.bytesize);
  if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) drop(DriverMemory::kGraph, result, node->free.dptr);
}

CUresult graph_add_node(CUgraphNode* out, CUgraph graph, const CUgraphNode* nodes, size_t count,
                        CUgraphNodeParams* parameters) {
  const CUresult result = real_calls->cuGraphAddNode(out, graph, nodes, count, parameters);
  count_node(result, parameters);
  return result;
}
#endif
#if CUDA_VERSION >= 12030
CUresult graph_add_node_with_edges(CUgraphNode* out, CUgraph graph, const CUgraphNode* nodes,
                                   const CUgraphEdgeData* edges, size_t count,
                                   CUgraphNodeParams* parameters) {
  const CUresult result = real_calls->cuGraphAddNode_v2(out, graph, nodes, edges, count, parameters);
  count_node(result, parameters);
  return result;
}
#endif

// Memory comes to nodes with an upload or a launch. One that is out of memory has put nothing on its stream.
CUresult graph_upload(CUgraphExec graph, CUstream stream) {
  return take_from_driver([&] { return real_calls->cuGraphUpload(graph, stream); });
}
CUresult graph_upload_ptsz(CUgraphExec graph, CUstream stream) {
  return take_from_driver([&] { return real_calls->cuGraphUpload_ptsz(graph, stream); });
}
CUresult graph_launch(CUgraphExec graph, CUstream stream) {
  return take_from_driver([&] { return real_calls->cuGraphLaunch(graph, stream); });
}
CUresult graph_launch_ptsz(CUgraphExec graph, CUstream stream) {
  return take_from_driver([&] { return real_calls->cuGraphLaunch_ptsz(graph, stream); });
}

}  // namespace

void fill_accounted_hooks(DriverCalls& calls) {
  const auto hook = [](auto& call, auto with) {
    if (call != nullptr) call = with;
  };
  hook(calls.cuMemAllocManaged, mem_alloc_managed);
  hook(calls.cuMemAllocHost_v2, mem_alloc_host);
  hook(calls.cuMemHostAlloc, mem_host_alloc);
  hook(calls.cuMemFreeHost, mem_free_host);
  hook(calls.cuMemHostRegister_v2, mem_host_register);
  hook(calls.cuMemHostUnregister, mem_host_unregister);
  hook(calls.cuArrayCreate_v2, array_create);
  hook(calls.cuArray3DCreate_v2, array_3d_create);
  hook(calls.cuArrayDestroy, array_destroy);
  hook(calls.cuMipmappedArrayCreate, mipmapped_array_create);
  hook(calls.cuMipmappedArrayDestroy, mipmapped_array_destroy);
  hook(calls.cuMemCreate, mem_create);
  hook(calls.cuMemRelease, mem_release);
  hook(calls.cuMemImportFromShareableHandle, mem_import);
  hook(calls.cuMemMap, mem_map);
  hook(calls.cuMemUnmap, mem_unmap);
  hook(calls.cuGraphAddMemAllocNode, graph_add_mem_alloc_node);
  hook(calls.cuGraphAddMemFreeNode, graph_add_mem_free_node);
  hook(calls.cuGraphUpload, graph_upload);
  hook(calls.cuGraphUpload_ptsz, graph_upload_ptsz);
  hook(calls.cuGraphLaunch, graph_launch);
  hook(calls.cuGraphLaunch_ptsz, graph_launch_ptsz);
#if CUDA_VERSION >= 12020
  hook(calls.cuGraphAddNode, graph_add_node);
#endif
#if CUDA_VERSION >= 12030
  hook(calls.cuGraphAddNode_v2, graph_add_node_with_edges);
#endif
}

}  // namespace spillway
