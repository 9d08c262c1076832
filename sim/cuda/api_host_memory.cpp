// Pinned host memory. It has one address for host and device.
#include <sys/mman.h>

#include "sim/cuda/call.h"

using namespace spillway::sim;

namespace {

constexpr unsigned kRegistered = 1u << 31;  // in Mapping::host_flags: the program's own memory

void pin(State& state, void* host, uint64_t bytes, unsigned flags, CUcontext context) {
  Physical* physical = state.memory.create(Physical::Kind::kPinned, kHostDevice, bytes);
  Mapping* mapping = state.memory.map(reinterpret_cast<uint64_t>(host), bytes, physical);
  state.memory.release(physical);
  mapping->access.fill(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  mapping->host_flags = flags;
  mapping->context = context;
}

CUresult allocate(EntryPoint entry, void** host, size_t bytes, unsigned flags) {
  Call call(entry, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  if (host == nullptr || bytes == 0 || (flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  pin(call.state(), at, bytes, flags, handle_of(call.context()));
  *host = at;
  return CUDA_SUCCESS;
}

Mapping* find_pinned(State& state, const void* host) {
  Mapping* mapping = state.memory.find(reinterpret_cast<uint64_t>(host));
  return mapping != nullptr && mapping->physical->kind == Physical::Kind::kPinned ? mapping : nullptr;
}

}  // namespace

extern "C" {

CUresult cuMemHostAlloc(void** host, size_t bytes, unsigned flags) {
  return allocate(EntryPoint::k_cuMemHostAlloc, host, bytes, flags);
}
CUresult cuMemAllocHost(void** host, size_t bytes) {
  return allocate(EntryPoint::k_cuMemAllocHost, host, bytes, CU_MEMHOSTALLOC_DEVICEMAP);
}

CUresult cuMemFreeHost(void* host) {
  Call call(EntryPoint::k_cuMemFreeHost, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  if (host == nullptr) return CUDA_SUCCESS;
  State& state = call.state();
  Mapping* mapping = find_pinned(state, host);
  if (mapping == nullptr || mapping->start != reinterpret_cast<uint64_t>(host) ||
      (mapping->host_flags & kRegistered) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t bytes = mapping->bytes;
  wait_context(state, call.context(), call.lock());
  state.detector.before_unmap(*mapping);
  state.memory.unmap(mapping);
  munmap(host, bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* host, size_t bytes, unsigned flags) {
  Call call(EntryPoint::k_cuMemHostRegister, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  if (host == nullptr || bytes == 0 || (flags & ~15u) != 0) return CUDA_ERROR_INVALID_VALUE;
  State& state = call.state();
  if (state.memory.any_mapped(reinterpret_cast<uint64_t>(host), bytes)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  pin(state, host, bytes, flags | kRegistered, handle_of(call.context()));
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* host) {
  Call call(EntryPoint::k_cuMemHostUnregister, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  State& state = call.state();
  Mapping* mapping = find_pinned(state, host);
  if (mapping == nullptr || mapping->start != reinterpret_cast<uint64_t>(host) ||
      (mapping->host_flags & kRegistered) == 0) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  wait_context(state, call.context(), call.lock());
  state.detector.before_unmap(*mapping);
  state.memory.unmap(mapping);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* dptr, void* host, unsigned flags) {
  Call call(EntryPoint::k_cuMemHostGetDevicePointer, kNeedsContext);
  if (call.refused()) return call.result();
  const Mapping* mapping = find_pinned(call.state(), host);
  if (dptr == nullptr || flags != 0 || mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // What was registered without DEVICEMAP has none, as cuda.h has it; a driver with unified addresses may be
  // kinder.
  const bool is_registered = (mapping->host_flags & kRegistered) != 0;
  if (is_registered && (mapping->host_flags & CU_MEMHOSTREGISTER_DEVICEMAP) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  *dptr = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned* flags, void* host) {
  Call call(EntryPoint::k_cuMemHostGetFlags, kNeedsContext);
  if (call.refused()) return call.result();
  const Mapping* mapping = find_pinned(call.state(), host);
  if (flags == nullptr || mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = mapping->host_flags & ~kRegistered;
  return CUDA_SUCCESS;
}

}  // extern "C"
