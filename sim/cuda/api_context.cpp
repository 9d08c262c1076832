// Contexts: primary ones, created ones, and which is current in a thread.
#include <algorithm>
#include <cstring>

#include "sim/cuda/call.h"
#include "sim/cuda/capture.h"

using namespace spillway::sim;

namespace {

bool valid_device(const State& state, CUdevice device) {
  return device >= 0 && device < state.config.devices;
}

void drop_primary(Call& call, CUdevice device) {
  State& state = call.state();
  Context*& primary = state.primary[static_cast<size_t>(device)];
  if (primary != nullptr) {
    state.contexts.for_each([&](Context& context) {
      if (context.green_of == primary) destroy_green_context(state, &context, call.lock());
    });
    destroy_context(state, primary, call.lock());
  }
  primary = nullptr;
}

CUresult create(CUcontext* context, unsigned flags, CUdevice device) {
  Call call(EntryPoint::k_cuCtxCreate);
  if (call.refused()) return call.result();
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = call.state();
  if (!valid_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  current_context(state);
  Context* made = make_context(state, device, false, flags);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  this_thread().current.push_back(made);
  *context = handle_of(made);
  return CUDA_SUCCESS;
}

CUresult set_peer(EntryPoint entry, CUcontext peer, bool enable) {
  Call call(entry, kNeedsContext);
  if (call.refused()) return call.result();
  Context* other = find_context(peer);
  Context* own = call.context();
  if (other == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (other->device == own->device) return CUDA_ERROR_INVALID_DEVICE;
  auto& peers = call.state().peers;
  const std::pair<int, int> pair{own->device, other->device};
  if (enable) return peers.insert(pair).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  return peers.erase(pair) == 1 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

// The one private table that is modelled: its function makes a context, current, as cuCtxCreate does. PhysX
// uses it.
constexpr char kContextTable[] = "\x0c\xa5\x0b\x8c\x10\x04\x92\x9a\x89\xa7\xd0\xdf\x10\xe7\x72\x86";
struct ContextTable {
  size_t size;
  CUresult (*create)(CUcontext*, unsigned, CUdevice);
};
const ContextTable kContextFunctions = {sizeof(ContextTable), create};

}  // namespace

extern "C" {

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  Call call(EntryPoint::k_cuGetExportTable, kBeforeInit);
  if (call.refused()) return call.result();
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool is_known = std::memcmp(id, kContextTable, sizeof *id) == 0;
  *table = is_known ? &kContextFunctions : nullptr;
  return is_known ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Call call(EntryPoint::k_cuDevicePrimaryCtxRetain);
  if (call.refused()) return call.result();
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = call.state();
  if (!valid_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  Context* primary = primary_context(state, device);
  if (primary == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  ++primary->retained;
  *context = handle_of(primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Call call(EntryPoint::k_cuDevicePrimaryCtxRelease);
  if (call.refused()) return call.result();
  if (!valid_device(call.state(), device)) return CUDA_ERROR_INVALID_DEVICE;
  Context* primary = call.state().primary[static_cast<size_t>(device)];
  if (primary == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary->retained == 0) drop_primary(call, device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  Call call(EntryPoint::k_cuDevicePrimaryCtxReset);
  if (call.refused()) return call.result();
  if (!valid_device(call.state(), device)) return CUDA_ERROR_INVALID_DEVICE;
  Context* primary = call.state().primary[static_cast<size_t>(device)];
  if (primary != nullptr) primary->reset = true;
  drop_primary(call, device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  Call call(EntryPoint::k_cuDevicePrimaryCtxSetFlags);
  if (call.refused()) return call.result();
  State& state = call.state();
  if (!valid_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) return CUDA_ERROR_INVALID_VALUE;
  state.primary_flags[static_cast<size_t>(device)] = flags;
  if (Context* primary = state.primary[static_cast<size_t>(device)]; primary != nullptr)
    primary->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  Call call(EntryPoint::k_cuDevicePrimaryCtxGetState);
  if (call.refused()) return call.result();
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = call.state();
  if (!valid_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = state.primary_flags[static_cast<size_t>(device)];
  *active = state.primary[static_cast<size_t>(device)] != nullptr ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return create(context, flags, device);
}
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int, unsigned flags, CUdevice device) {
  return create(context, flags, device);
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned flags, CUdevice device) {
  return create(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  Call call(EntryPoint::k_cuCtxDestroy);
  if (call.refused()) return call.result();
  Context* context = find_context(handle);
  if (context == nullptr || context->primary || context->green_of != nullptr)
    return CUDA_ERROR_INVALID_CONTEXT;
  auto& current = this_thread().current;
  if (!current.empty() && current.back() == context) current.pop_back();
  destroy_context(call.state(), context, call.lock());
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  Call call(EntryPoint::k_cuCtxPushCurrent);
  if (call.refused()) return call.result();
  Context* context = find_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  current_context(call.state());
  this_thread().current.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  Call call(EntryPoint::k_cuCtxPopCurrent);
  if (call.refused()) return call.result();
  current_context(call.state());
  auto& current = this_thread().current;
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle != nullptr) *handle = handle_of(current.back());
  current.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  Call call(EntryPoint::k_cuCtxSetCurrent);
  if (call.refused()) return call.result();
  current_context(call.state());
  auto& current = this_thread().current;
  Context* context = find_context(handle);
  if (handle != nullptr && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!current.empty()) current.pop_back();
  if (context != nullptr) current.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
  Call call(EntryPoint::k_cuCtxGetCurrent);
  if (call.refused()) return call.result();
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = call.context();
  *handle = handle_of(context != nullptr ? context : reset_context(call.state()));
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  Call call(EntryPoint::k_cuCtxGetDevice, kNeedsContext);
  if (call.refused()) return call.result();
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = call.context()->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  Call call(EntryPoint::k_cuCtxGetDevice);
  if (call.refused()) return call.result();
  const Context* context = handle == nullptr ? call.context() : find_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned* flags) {
  Call call(EntryPoint::k_cuCtxGetFlags, kNeedsContext);
  if (call.refused()) return call.result();
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = call.context()->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned flags) {
  Call call(EntryPoint::k_cuCtxSetFlags, kNeedsContext);
  if (call.refused()) return call.result();
  call.context()->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  Call call(EntryPoint::k_cuCtxGetId);
  if (call.refused()) return call.result();
  const Context* context = handle == nullptr ? call.context() : find_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  Call call(EntryPoint::k_cuCtxGetApiVersion);
  if (call.refused()) return call.result();
  const Context* context = handle == nullptr ? call.context() : find_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 3020;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  Call call(EntryPoint::k_cuCtxSynchronize, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  if (const CUresult result = check_context_not_capturing(call.state(), call.context());
      result != CUDA_SUCCESS) {
    return result;
  }
  ++call.state().host_waits;
  wait_context(call.state(), call.context(), call.lock());
  release_beyond_thresholds(call.state());
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  Call call(EntryPoint::k_cuCtxSynchronize, kUnsafeInCapture);
  if (call.refused()) return call.result();
  Context* context = handle == nullptr ? call.context() : find_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = check_context_not_capturing(call.state(), context); result != CUDA_SUCCESS) {
    return result;
  }
  ++call.state().host_waits;
  wait_context(call.state(), context, call.lock());
  release_beyond_thresholds(call.state());
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Call call(EntryPoint::k_cuCtxGetStreamPriorityRange, kNeedsContext);
  if (call.refused()) return call.result();
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t* value, CUlimit) {
  Call call(EntryPoint::k_cuCtxGetLimit, kNeedsContext);
  if (call.refused()) return call.result();
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value = 1024;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit, size_t) {
  Call call(EntryPoint::k_cuCtxSetLimit, kNeedsContext);
  return call.result();
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : set_peer(EntryPoint::k_cuCtxEnablePeerAccess, peer, true);
}
CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return set_peer(EntryPoint::k_cuCtxDisablePeerAccess, peer, false);
}

}  // extern "C"
