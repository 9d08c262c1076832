#include "abi/preload/ipc_requests.h"

#include <cinttypes>
#include <cstdio>

namespace spillway {

IpcRequests& IpcRequests::instance() {
  static IpcRequests& requests = *new IpcRequests;
  return requests;
}

bool IpcRequests::wants_plain(uint64_t bytes, const void* caller) const {
  if (policy_.load(std::memory_order_relaxed) == IpcPolicy::kPlain) return true;
  if (!learned_any_.load(std::memory_order_acquire)) return false;
  const Lock lock(mutex_);
  return learned_.count({bytes, caller}) != 0 || learned_.count({bytes, nullptr}) != 0;
}

void IpcRequests::refused(const char* call, uint64_t pointer, uint64_t bytes) {
  const Site& site = sites_[slot_of(pointer)];
  const void* caller = site.pointer.load(std::memory_order_relaxed) == pointer
                           ? site.caller.load(std::memory_order_relaxed)
                           : nullptr;
  const bool learns = policy_.load(std::memory_order_relaxed) == IpcPolicy::kAuto;
  {
    const Lock lock(mutex_);
    if (!learned_.insert({bytes, caller}).second) return;
    if (learns) learned_any_.store(true, std::memory_order_release);
  }
  if (was_said_.exchange(true)) return;
  std::fprintf(
      stderr,
      "spillway: preload: %s: a block of %" PRIu64
      " bytes that Spillway serves cannot be shown to others; %s\n",
      call, bytes,
      learns ? "from now on such requests, and others once they are refused, get the driver's own memory "
               "(preload_ipc:plain does so at once)"
             : "preload_ipc:plain would serve it");
}

}  // namespace spillway
