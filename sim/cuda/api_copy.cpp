// Copies and fills, with and without a stream. The _ptds and _ptsz forms mean the per-thread default stream
// by "none".
#include "sim/cuda/copies.h"

using namespace spillway::sim;

namespace {

uint64_t address(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

// The name of the legacy default stream.
constexpr CUstream kLegacy = nullptr;

CUresult any(EntryPoint entry, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream,
             bool synchronous) {
  return copy_on({entry, to, from, bytes, CopySide::kAny, CopySide::kAny}, stream, synchronous);
}
CUresult to_device(EntryPoint entry, CUdeviceptr to, const void* from, size_t bytes, CUstream stream,
                   bool synchronous) {
  return copy_on({entry, to, address(from), bytes, CopySide::kDevice, CopySide::kHost}, stream, synchronous);
}
CUresult to_host(EntryPoint entry, void* to, CUdeviceptr from, size_t bytes, CUstream stream,
                 bool synchronous) {
  return copy_on({entry, address(to), from, bytes, CopySide::kHost, CopySide::kDevice}, stream, synchronous);
}
CUresult on_device(EntryPoint entry, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream,
                   bool synchronous) {
  return copy_on({entry, to, from, bytes, CopySide::kDevice, CopySide::kDevice}, stream, synchronous);
}

CUresult between(EntryPoint entry, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                 CUcontext from_context, size_t bytes, CUstream stream) {
  if (to_context == nullptr || from_context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return copy_on({entry, to, from, bytes, CopySide::kDevice, CopySide::kDevice, to_context, from_context},
                 stream, false);
}

}  // namespace

#define SPWSIM_EXPORT extern "C" CUresult

SPWSIM_EXPORT cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return any(EntryPoint::k_cuMemcpy, to, from, bytes, kLegacy, true);
}
SPWSIM_EXPORT cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return any(EntryPoint::k_cuMemcpy, to, from, bytes, CU_STREAM_PER_THREAD, true);
}
SPWSIM_EXPORT cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  return to_device(EntryPoint::k_cuMemcpyHtoD, to, from, bytes, kLegacy, true);
}
SPWSIM_EXPORT cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return to_device(EntryPoint::k_cuMemcpyHtoD, to, from, bytes, CU_STREAM_PER_THREAD, true);
}
SPWSIM_EXPORT cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  return to_host(EntryPoint::k_cuMemcpyDtoH, to, from, bytes, kLegacy, true);
}
SPWSIM_EXPORT cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) {
  return to_host(EntryPoint::k_cuMemcpyDtoH, to, from, bytes, CU_STREAM_PER_THREAD, true);
}
// A copy within device memory does not make the host wait.
SPWSIM_EXPORT cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return on_device(EntryPoint::k_cuMemcpyDtoD, to, from, bytes, kLegacy, false);
}
SPWSIM_EXPORT cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return on_device(EntryPoint::k_cuMemcpyDtoD, to, from, bytes, CU_STREAM_PER_THREAD, false);
}
SPWSIM_EXPORT cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           size_t bytes) {
  return between(EntryPoint::k_cuMemcpyPeer, to, to_context, from, from_context, bytes, kLegacy);
}
SPWSIM_EXPORT cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                CUcontext from_context, size_t bytes) {
  return between(EntryPoint::k_cuMemcpyPeer, to, to_context, from, from_context, bytes, CU_STREAM_PER_THREAD);
}

SPWSIM_EXPORT cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return any(EntryPoint::k_cuMemcpyAsync, to, from, bytes, stream, false);
}
SPWSIM_EXPORT cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return cuMemcpyAsync(to, from, bytes, per_thread(stream));
}
SPWSIM_EXPORT cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return to_device(EntryPoint::k_cuMemcpyHtoDAsync, to, from, bytes, stream, false);
}
SPWSIM_EXPORT cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return cuMemcpyHtoDAsync(to, from, bytes, per_thread(stream));
}
SPWSIM_EXPORT cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return to_host(EntryPoint::k_cuMemcpyDtoHAsync, to, from, bytes, stream, false);
}
SPWSIM_EXPORT cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return cuMemcpyDtoHAsync(to, from, bytes, per_thread(stream));
}
SPWSIM_EXPORT cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return on_device(EntryPoint::k_cuMemcpyDtoDAsync, to, from, bytes, stream, false);
}
SPWSIM_EXPORT cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return cuMemcpyDtoDAsync(to, from, bytes, per_thread(stream));
}
SPWSIM_EXPORT cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                CUcontext from_context, size_t bytes, CUstream stream) {
  return between(EntryPoint::k_cuMemcpyPeerAsync, to, to_context, from, from_context, bytes, stream);
}
SPWSIM_EXPORT cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                     CUcontext from_context, size_t bytes, CUstream stream) {
  return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, per_thread(stream));
}

// Managed memory has one place here, so its bytes move onto themselves: in their turn, and ordered as work
// that writes them.
SPWSIM_EXPORT cuMemPrefetchAsync(CUdeviceptr at, size_t bytes, CUmemLocation to, unsigned flags,
                                 CUstream stream) {
  if (flags != 0 || to.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  return on_device(EntryPoint::k_cuMemPrefetchAsync, at, at, bytes, stream, false);
}
SPWSIM_EXPORT cuMemPrefetchAsync_v2_ptsz(CUdeviceptr at, size_t bytes, CUmemLocation to, unsigned flags,
                                         CUstream stream) {
  return cuMemPrefetchAsync(at, bytes, to, flags, per_thread(stream));
}

SPWSIM_EXPORT cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  return fill_on(EntryPoint::k_cuMemsetD8, to, value, 1, count, kLegacy);
}
SPWSIM_EXPORT cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count) {
  return fill_on(EntryPoint::k_cuMemsetD8, to, value, 1, count, CU_STREAM_PER_THREAD);
}
SPWSIM_EXPORT cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  return fill_on(EntryPoint::k_cuMemsetD16, to, value, 2, count, kLegacy);
}
SPWSIM_EXPORT cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count) {
  return fill_on(EntryPoint::k_cuMemsetD16, to, value, 2, count, CU_STREAM_PER_THREAD);
}
SPWSIM_EXPORT cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) {
  return fill_on(EntryPoint::k_cuMemsetD32, to, value, 4, count, kLegacy);
}
SPWSIM_EXPORT cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned value, size_t count) {
  return fill_on(EntryPoint::k_cuMemsetD32, to, value, 4, count, CU_STREAM_PER_THREAD);
}
SPWSIM_EXPORT cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return fill_on(EntryPoint::k_cuMemsetD8Async, to, value, 1, count, stream);
}
SPWSIM_EXPORT cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return cuMemsetD8Async(to, value, count, per_thread(stream));
}
SPWSIM_EXPORT cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return fill_on(EntryPoint::k_cuMemsetD16Async, to, value, 2, count, stream);
}
SPWSIM_EXPORT cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return cuMemsetD16Async(to, value, count, per_thread(stream));
}
SPWSIM_EXPORT cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return fill_on(EntryPoint::k_cuMemsetD32Async, to, value, 4, count, stream);
}
SPWSIM_EXPORT cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return cuMemsetD32Async(to, value, count, per_thread(stream));
}
SPWSIM_EXPORT cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                   unsigned /*flags*/) {
  return fill_on(EntryPoint::k_cuStreamWriteValue32, address, value, 4, 1, stream);
}
SPWSIM_EXPORT cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                      unsigned flags) {
  return cuStreamWriteValue32(stream, address, value, flags);
}
SPWSIM_EXPORT cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                           unsigned flags) {
  return cuStreamWriteValue32(per_thread(stream), address, value, flags);
}
SPWSIM_EXPORT cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return wait_value_on(address, value, flags, stream);
}
SPWSIM_EXPORT cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return wait_value_on(address, value, flags, stream);
}
SPWSIM_EXPORT cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                          unsigned flags) {
  return wait_value_on(address, value, flags, per_thread(stream));
}
