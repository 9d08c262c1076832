// Answers about memory that must agree with what Spillway serves, and calls that show memory to others.
#include <unistd.h>

#include <algorithm>

#include "abi/arena_calls.h"
#include "abi/preload/block_ids.h"
#include "abi/preload/created_memory.h"
#include "abi/preload/hooks.h"
#include "abi/preload/ipc_requests.h"

namespace spillway {
namespace {

CUresult mem_get_info(size_t* free_bytes, size_t* total_bytes) {
  const CUresult result = real_calls->cuMemGetInfo_v2(free_bytes, total_bytes);
  if (result != CUDA_SUCCESS || free_bytes == nullptr) return result;
  const ServedContext* served = served_device();
  if (served == nullptr) return result;
  try {
    *free_bytes = available_bytes(*served->arena, *free_bytes, served->legacy_pool->pending_bytes());
  } catch (...) {
    // What the driver calls free is free.
  }
  return result;
}

// The served block around the address, whichever context is current; false where there is none.
bool find_served(CUdeviceptr pointer, FoundBlock* found) noexcept {
  try {
    const uint64_t most_bytes = ServedContexts::instance().most_bytes();
    if (most_bytes == 0) return false;
    Result<FoundBlock> block = Arena::find_block_around(reinterpret_cast<const void*>(pointer), most_bytes);
    if (!block.ok()) return false;
    *found = block.value();
    return true;
  } catch (...) {
    return false;
  }
}

CUresult mem_get_address_range(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  const CUresult result = real_calls->cuMemGetAddressRange_v2(base, bytes, pointer);
  FoundBlock block;
  if (result != CUDA_SUCCESS || !find_served(pointer, &block)) return result;
  if (base != nullptr) *base = block.row.address;
  if (bytes != nullptr) *bytes = block.row.requested_bytes;
  return result;
}

// A program shows a block to others, by `call`, as it would memory of cuMemAlloc, and is refused: the
// driver's handles are for all that it gave, of which a block is a part. What was asked for on a stream
// cannot be shown so without Spillway either; there is nothing to learn then.
void refuse_to_show(const FoundBlock& block, const char* call) noexcept {
  try {
    const ServedContext* owner = ServedContexts::instance().of_device(block.device);
    if (owner == nullptr || !owner->legacy_pool->has_heap(block.stream)) return;
    IpcRequests::instance().refused(call, block.row.address, block.row.requested_bytes);
  } catch (...) {
    // Host memory has run out; nothing is learned.
  }
}

bool is_of_block(CUpointer_attribute attribute) {
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return true;
    default:
      return false;
  }
}

// Writes what cuMemAlloc's own memory would answer; but that cuIpcGetMemHandle does not show it is the truth.
// Whoever asks that wants to show it, and goes a slower way without a word: what they ask for next can be
// shown. Everything else is answered as mapped memory, which it is.
void write_attribute(const FoundBlock& block, CUpointer_attribute attribute, void* out) {
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (const ServedContext* owner = ServedContexts::instance().of_device(block.device); owner != nullptr)
        *static_cast<CUcontext*>(out) = owner->context;
      return;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      *static_cast<CUdeviceptr*>(out) = block.row.address;
      return;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      if (const uint64_t id = BlockIds::instance().of(block.row.address, block.device); id != 0)
        *static_cast<unsigned long long*>(out) = id;
      return;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<unsigned char*>(out) =
          0;  // the driver's answer is 0 or 1, in a type that it does not name
      return refuse_to_show(block, "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE");
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<int*>(out) = CU_MEM_HANDLE_TYPE_NONE;
      return;
    default:
      *static_cast<size_t*>(out) = block.row.requested_bytes;
  }
}

CUresult pointer_get_attribute(void* out, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const CUresult result = real_calls->cuPointerGetAttribute(out, attribute, pointer);
  if (result != CUDA_SUCCESS || !is_of_block(attribute)) return result;
  if (FoundBlock block; find_served(pointer, &block)) write_attribute(block, attribute, out);
  return result;
}

CUresult pointer_get_attributes(unsigned count, CUpointer_attribute* attributes, void** out,
                                CUdeviceptr pointer) {
  const CUresult result = real_calls->cuPointerGetAttributes(count, attributes, out, pointer);
  if (result != CUDA_SUCCESS) return result;
  FoundBlock block;
  bool is_known = false;
  for (unsigned i = 0; i < count; ++i) {
    if (!is_of_block(attributes[i])) continue;
    if (!is_known && !find_served(pointer, &block)) return result;
    is_known = true;
    write_attribute(block, attributes[i], out[i]);
  }
  return result;
}

CUresult ipc_get_mem_handle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  FoundBlock block;
  if (!find_served(pointer, &block)) return real_calls->cuIpcGetMemHandle(handle, pointer);
  refuse_to_show(block, "cuIpcGetMemHandle");
  return CUDA_ERROR_INVALID_VALUE;
}

// A block's physical memory begins elsewhere, and others' blocks are in it. Memory of cuMemAlloc has none to
// be had.
CUresult mem_retain_allocation_handle(CUmemGenericAllocationHandle* handle, void* address) {
  FoundBlock block;
  if (find_served(reinterpret_cast<CUdeviceptr>(address), &block)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = real_calls->cuMemRetainAllocationHandle(handle, address);
  if (result == CUDA_SUCCESS) CreatedMemory::instance().retained(*handle);
  return result;
}

// Tells whether the driver would show the range in memory of its own, which begins with a page.
bool may_be_shown(const FoundBlock& block, CUdeviceptr pointer, size_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t offset = pointer - block.row.address;
  const uint64_t pages = (block.row.requested_bytes + page - 1) / page * page;
  return offset % page == 0 && bytes % page == 0 && bytes <= pages - std::min(pages, offset);
}

CUresult mem_get_handle_for_address_range(void* handle, CUdeviceptr pointer, size_t bytes,
                                          CUmemRangeHandleType type, unsigned long long flags) {
  const CUresult result = real_calls->cuMemGetHandleForAddressRange(handle, pointer, bytes, type, flags);
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED) return result;
  if (FoundBlock block; find_served(pointer, &block) && may_be_shown(block, pointer, bytes))
    refuse_to_show(block, "cuMemGetHandleForAddressRange");
  return result;
}

CUresult ctx_enable_peer_access(CUcontext peer, unsigned flags) {
  const CUresult result = real_calls->cuCtxEnablePeerAccess(peer, flags);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return result;
  try {
    ServedContexts::instance().peer_enabled(peer);
  } catch (...) {
    // Host memory has run out; the peer's first access will say so.
  }
  return result;
}

}  // namespace

void fill_answer_hooks(DriverCalls& calls) {
  calls.cuMemGetInfo_v2 = mem_get_info;
  if (calls.cuMemGetAddressRange_v2 != nullptr) calls.cuMemGetAddressRange_v2 = mem_get_address_range;
  if (calls.cuPointerGetAttribute != nullptr) calls.cuPointerGetAttribute = pointer_get_attribute;
  if (calls.cuPointerGetAttributes != nullptr) calls.cuPointerGetAttributes = pointer_get_attributes;
  if (calls.cuIpcGetMemHandle != nullptr) calls.cuIpcGetMemHandle = ipc_get_mem_handle;
  if (calls.cuMemRetainAllocationHandle != nullptr)
    calls.cuMemRetainAllocationHandle = mem_retain_allocation_handle;
  if (calls.cuMemGetHandleForAddressRange != nullptr)
    calls.cuMemGetHandleForAddressRange = mem_get_handle_for_address_range;
  if (calls.cuCtxEnablePeerAccess != nullptr) calls.cuCtxEnablePeerAccess = ctx_enable_peer_access;
}

}  // namespace spillway
