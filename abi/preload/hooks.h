// Declares what the functions of libspillway behind the hooks share. Each has the identical ABI of the entry
// point that it stands for, throws nothing, and where Spillway does not serve is the driver's own call.
#pragma once

#include <utility>

#include "abi/preload/accounts.h"
#include "abi/preload/hook_table.h"
#include "abi/preload/served.h"

namespace spillway {

// The driver's own functions; of the preload library, for the process's life.
extern const DriverCalls* real_calls;

void fill_served_hooks(DriverCalls& calls);
void fill_answer_hooks(DriverCalls& calls);
void fill_lifetime_hooks(DriverCalls& calls);
void fill_accounted_hooks(DriverCalls& calls);

// Tells whether the stream is being captured. Costs nothing while no stream of the program is.
bool is_captured(CUstream stream);
// Around the program's captures.
void capture_begins();
void capture_ends();

// The current context's served one, or null; for where it must not throw.
inline ServedContext* served_here() noexcept {
  try {
    return ServedContexts::instance().current();
  } catch (...) {
    return nullptr;
  }
}

// Returns what serves the current context's device, in this context or in another; or null.
inline ServedContext* served_device() noexcept {
  if (ServedContext* served = served_here(); served != nullptr) return served;
  const Driver* driver = ServedContexts::instance().driver();
  CUdevice device = -1;
  if (driver == nullptr || driver->cuCtxGetDevice(&device) != CUDA_SUCCESS) return nullptr;
  return ServedContexts::instance().of_device(device);
}

// The driver's call for memory of its own, on `device` or where the current context is. What Spillway holds
// without a byte in use counts as free, so where the driver has none left, that goes back first and the call
// is made again.
constexpr int kCurrentDevice = -1;
template <typename Call>
CUresult take_from_driver(Call call, int device = kCurrentDevice) noexcept {
  const CUresult result = call();
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  ServedContext* served =
      device == kCurrentDevice ? served_device() : ServedContexts::instance().of_device(device);
  if (served == nullptr) return result;
  try {
    served->legacy_pool->flush();
    if (!served->arena->trim().ok()) return result;
  } catch (...) {
    return result;
  }
  return call();
}

// Counts what the driver gave in the current context, served or not.
inline void account(DriverMemory kind, uint64_t key, uint64_t bytes) noexcept {
  const ServedContext* served = served_here();
  const Driver* driver = ServedContexts::instance().driver();
  CUcontext context = nullptr;
  CUdevice device = -1;
  if (served != nullptr) {
    context = served->context;
    device = served->device;
  } else if (driver == nullptr || driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
             driver->cuCtxGetDevice(&device) != CUDA_SUCCESS) {
    return;
  }
  Accounts::instance().add(kind, device, context, key, bytes);
}

// In a function of the per-thread default stream, by its name (_ptsz), the null stream is the calling
// thread's own.
inline CUstream per_thread(CUstream stream) {
  return stream == nullptr ? CU_STREAM_PER_THREAD : stream;
}

}  // namespace spillway
