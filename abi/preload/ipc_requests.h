// Tells which requests get plain memory of the driver, because a program shows it to other processes, or asks
// whether it can be shown: by cuIpcGetMemHandle, the pointer attribute of that, and as those dma-bufs that
// the driver refuses. The first such call for a served block is refused; from then on requests of that size
// from that place in the program are plain. Thread-safe; a request costs one load until something was
// learned.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <set>
#include <utility>

#include "abi/config.h"
#include "stats/lock.h"

namespace spillway {

class IpcRequests {
 public:
  static IpcRequests& instance();

  // The policy of the configuration; before the first request.
  void set_policy(IpcPolicy policy) { policy_ = policy; }
  bool wants_plain(uint64_t bytes, const void* caller) const;
  // The block at `pointer` was asked for there.
  void note(uint64_t pointer, const void* caller) {
    Site& site = sites_[slot_of(pointer)];
    site.pointer.store(pointer, std::memory_order_relaxed);
    site.caller.store(caller, std::memory_order_relaxed);
  }
  // `call` wanted plain memory of the served block at `pointer`. Said on stderr the first time.
  void refused(const char* call, uint64_t pointer, uint64_t bytes);

 private:
  // The last block to have the slot: others are learned by their size alone.
  struct Site {
    std::atomic<uint64_t> pointer{0};
    std::atomic<const void*> caller{nullptr};
  };
  static constexpr size_t kSites = 4096;
  static size_t slot_of(uint64_t pointer) { return (pointer >> 9 ^ pointer >> 21) % kSites; }

  std::atomic<IpcPolicy> policy_{IpcPolicy::kAuto};
  std::array<Site, kSites> sites_;
  std::atomic<bool> learned_any_{false};
  std::atomic<bool> was_said_{false};
  mutable BlockingMutex mutex_;
  // Size, and place; a null place is any.
  std::set<std::pair<uint64_t, const void*>> learned_ SPW_GUARDED_BY(mutex_);
};

}  // namespace spillway
