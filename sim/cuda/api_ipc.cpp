// Events and memory of cuMemAlloc for other processes.
#include <algorithm>
#include <cstring>

#include "sim/cuda/call.h"
#include "sim/cuda/foreign_memory.h"
#include "sim/cuda/shared_events.h"

using namespace spillway::sim;

namespace {

static_assert(sizeof(ForeignMemory) <= sizeof(CUipcMemHandle));

// Maps memory of another process where the context can use it.
Mapping* map_foreign(State& state, const ForeignMemory& memory, Context* context) {
  Physical* physical = open_foreign(state, memory, Physical::Kind::kAllocation);
  if (physical == nullptr) return nullptr;
  const uint64_t start = state.memory.reserve(memory.bytes, state.config.granularity_bytes, 0);
  Mapping* mapping = start == 0 ? nullptr : state.memory.map(start, memory.bytes, physical);
  state.memory.release(physical);  // the mapping keeps it
  if (mapping == nullptr) return nullptr;
  mapping->access[static_cast<size_t>(context->device)] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  mapping->context = handle_of(context);
  return mapping;
}

}  // namespace

extern "C" {

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event_handle) {
  Call call(EntryPoint::k_cuIpcGetEventHandle);
  if (call.refused()) return call.result();
  Event* event = find_event(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (handle == nullptr || (event->flags & CU_EVENT_INTERPROCESS) == 0) return CUDA_ERROR_INVALID_VALUE;
  return export_event(call.state(), event, handle);
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  Call call(EntryPoint::k_cuIpcOpenEventHandle, kNeedsContext);
  if (call.refused()) return call.result();
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Event* opened = nullptr;
  const CUresult result = import_event(call.state(), call.context(), handle, &opened);
  if (result == CUDA_SUCCESS) *event = handle_of(opened);
  return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr dptr) {
  Call call(EntryPoint::k_cuIpcGetMemHandle);
  if (call.refused()) return call.result();
  State& state = call.state();
  const Mapping* mapping = state.memory.find(dptr);
  if (handle == nullptr || mapping == nullptr || mapping->physical->foreign ||
      mapping->physical->kind != Physical::Kind::kAllocation) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const ForeignMemory memory = describe(state, *mapping->physical);
  *handle = {};
  std::memcpy(handle, &memory, sizeof memory);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* dptr, CUipcMemHandle handle, unsigned flags) {
  Call call(EntryPoint::k_cuIpcOpenMemHandle, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  if (dptr == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  State& state = call.state();
  ForeignMemory memory{};
  std::memcpy(&memory, &handle, sizeof memory);
  if (memory.magic != ForeignMemory::kMagic) return CUDA_ERROR_INVALID_HANDLE;
  if (is_own(memory)) return CUDA_ERROR_INVALID_CONTEXT;
  OpenedMemory& opened = state.opened_memory[{memory.pid, memory.generation, memory.id}];
  if (opened.uses == 0) {
    const Mapping* mapping = map_foreign(state, memory, call.context());
    if (mapping == nullptr) {
      state.opened_memory.erase({memory.pid, memory.generation, memory.id});
      return CUDA_ERROR_MAP_FAILED;
    }
    opened.start = mapping->start;
  }
  ++opened.uses;
  *dptr = opened.start;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  Call call(EntryPoint::k_cuIpcCloseMemHandle, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  State& state = call.state();
  const auto found = std::find_if(state.opened_memory.begin(), state.opened_memory.end(),
                                  [&](const auto& entry) { return entry.second.start == dptr; });
  if (found == state.opened_memory.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.uses > 0) return CUDA_SUCCESS;
  state.opened_memory.erase(found);
  Mapping* mapping = state.memory.find(dptr);
  state.detector.before_unmap(*mapping);
  free_allocation(state, mapping);
  return CUDA_SUCCESS;
}

}  // extern "C"
