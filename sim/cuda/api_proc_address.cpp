// Finding entry points by base name, version and stream convention, and the old names of the library.
#include <cstring>

#include "sim/cuda/call.h"

using namespace spillway::sim;

// Declares what cuda.h may declare under another name, or not at all.
#define SPWSIM_DECLARE(symbol) extern "C" CUresult spwsim_proc_##symbol() __asm__(#symbol);
#define SPWSIM_ENTRY(name, version, symbol) SPWSIM_DECLARE(symbol)
#define SPWSIM_ALSO(name, version, symbol) SPWSIM_DECLARE(symbol)
#define SPWSIM_PTSZ(name, version, symbol) SPWSIM_DECLARE(symbol)
#include "sim/cuda/entry_points.inc"

namespace {

struct Symbol {
  const char* name;
  int version;
  bool per_thread;
  CUresult (*address)();
};

constexpr Symbol kSymbols[] = {
#define SPWSIM_ENTRY(name, version, symbol) {#name, version, false, spwsim_proc_##symbol},
#define SPWSIM_ALSO(name, version, symbol) {#name, version, false, spwsim_proc_##symbol},
#define SPWSIM_PTSZ(name, version, symbol) {#name, version, true, spwsim_proc_##symbol},
#include "sim/cuda/entry_points.inc"
};

// CUdriverProcAddressQueryResult, which older headers lack.
constexpr int kFound = 0;
constexpr int kNotFound = 1;
constexpr int kVersionTooLow = 2;

// The newest ABI that the asking version and the driver have; a per-thread form goes first where it is asked
// for.
const Symbol* find(const char* name, int version, int driver_version, bool per_thread, int* status) {
  const Symbol* best = nullptr;
  *status = kNotFound;
  for (const Symbol& symbol : kSymbols) {
    if (std::strcmp(symbol.name, name) != 0 || symbol.version > driver_version) continue;
    if (symbol.per_thread && !per_thread) continue;
    if (symbol.version > version) {
      if (best == nullptr) *status = kVersionTooLow;
      continue;
    }
    const bool better = best == nullptr || (symbol.per_thread && !best->per_thread) ||
                        (symbol.per_thread == best->per_thread && symbol.version >= best->version);
    if (better) best = &symbol;
    *status = kFound;
  }
  return best;
}

CUresult get(const char* name, void** pfn, int version, cuuint64_t flags, int* status) {
  Call call(EntryPoint::k_cuGetProcAddress, kBeforeInit);
  if (call.refused()) return call.result();
  int found = kNotFound;
  if (status != nullptr) *status = found;
  if (name == nullptr || pfn == nullptr || flags > 2) return CUDA_ERROR_INVALID_VALUE;
  *pfn = nullptr;
  const int driver_version = call.state().config.version;
  if (version > driver_version) return CUDA_ERROR_INVALID_VALUE;
  const Symbol* symbol = find(name, version, driver_version, flags == 2, &found);
  if (status != nullptr) *status = found;
  if (symbol == nullptr) return CUDA_ERROR_NOT_FOUND;
  *pfn = reinterpret_cast<void*>(symbol->address);
  return CUDA_SUCCESS;
}

// The entry points of CUDA 3.1 and before have 32-bit pointers and sizes. A program that finds them by dlsym
// without "_v2" would pass 64-bit arguments, so they refuse, and say why.
CUresult refuse_old(const char* name) {
  return fail(CUDA_ERROR_NOT_SUPPORTED,
              std::string(name) + " is the 32-bit entry point of CUDA 3.1; use " + name + "_v2");
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress(const char* name, void** pfn, int version, cuuint64_t flags);
CUresult cuGetProcAddress(const char* name, void** pfn, int version, cuuint64_t flags) {
  return get(name, pfn, version, flags, nullptr);
}

CUresult cuGetProcAddress_v2(const char* name, void** pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  int found = 0;
  const CUresult result = get(name, pfn, version, flags, &found);
  if (status != nullptr) *status = static_cast<CUdriverProcAddressQueryResult>(found);
  return result;
}

// Older names whose ABI is that of the newer function.
#define SPWSIM_OLD_NAME(old_name, parameters, call) \
  CUresult old_name parameters;                     \
  CUresult old_name parameters {                    \
    return call;                                    \
  }
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxPushCurrent_v2(CUcontext);
CUresult cuCtxPopCurrent_v2(CUcontext*);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned);
CUresult cuDeviceGetUuid_v2(CUuuid*, CUdevice);
CUresult cuMemHostRegister_v2(void*, size_t, unsigned);
CUresult cuEventElapsedTime_v2(float*, CUevent, CUevent);
SPWSIM_OLD_NAME(cuStreamDestroy, (CUstream stream), cuStreamDestroy_v2(stream))
SPWSIM_OLD_NAME(cuEventDestroy, (CUevent event), cuEventDestroy_v2(event))
SPWSIM_OLD_NAME(cuCtxDestroy, (CUcontext context), cuCtxDestroy_v2(context))
SPWSIM_OLD_NAME(cuCtxPushCurrent, (CUcontext context), cuCtxPushCurrent_v2(context))
SPWSIM_OLD_NAME(cuCtxPopCurrent, (CUcontext * context), cuCtxPopCurrent_v2(context))
SPWSIM_OLD_NAME(cuDevicePrimaryCtxRelease, (CUdevice device), cuDevicePrimaryCtxRelease_v2(device))
SPWSIM_OLD_NAME(cuDevicePrimaryCtxReset, (CUdevice device), cuDevicePrimaryCtxReset_v2(device))
SPWSIM_OLD_NAME(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags),
                cuDevicePrimaryCtxSetFlags_v2(device, flags))
SPWSIM_OLD_NAME(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), cuDeviceGetUuid_v2(uuid, device))
SPWSIM_OLD_NAME(cuMemHostRegister, (void* host, size_t bytes, unsigned flags),
                cuMemHostRegister_v2(host, bytes, flags))
SPWSIM_OLD_NAME(cuEventElapsedTime, (float* milliseconds, CUevent start, CUevent end),
                cuEventElapsedTime_v2(milliseconds, start, end))

#define SPWSIM_REFUSED(old_name)                       \
  CUresult spwsim_old_##old_name() __asm__(#old_name); \
  CUresult spwsim_old_##old_name() {                   \
    return refuse_old(#old_name);                      \
  }
SPWSIM_REFUSED(cuDeviceTotalMem)
SPWSIM_REFUSED(cuCtxCreate)
SPWSIM_REFUSED(cuMemGetInfo)
SPWSIM_REFUSED(cuMemAlloc)
SPWSIM_REFUSED(cuMemAllocPitch)
SPWSIM_REFUSED(cuMemFree)
SPWSIM_REFUSED(cuMemGetAddressRange)
SPWSIM_REFUSED(cuMemAllocHost)
SPWSIM_REFUSED(cuMemHostGetDevicePointer)
SPWSIM_REFUSED(cuMemcpyHtoD)
SPWSIM_REFUSED(cuMemcpyDtoH)
SPWSIM_REFUSED(cuMemcpyDtoD)
SPWSIM_REFUSED(cuMemcpyHtoDAsync)
SPWSIM_REFUSED(cuMemcpyDtoHAsync)
SPWSIM_REFUSED(cuMemcpyDtoDAsync)
SPWSIM_REFUSED(cuMemsetD8)
SPWSIM_REFUSED(cuMemsetD16)
SPWSIM_REFUSED(cuMemsetD32)

}  // extern "C"
