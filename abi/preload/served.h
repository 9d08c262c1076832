// Holds what the preload library serves of a program's contexts: for each, the arena of its device and the
// memory without a stream over it. A device is served in the first of its contexts that asks; what another
// context of the same device asks for is left to the driver.
//
// Thread-safe. The way to the context that a thread used last takes no lock and, for a stream that the
// program made, no driver call.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "abi/process.h"
#include "allocator/known_streams.h"
#include "allocator/legacy_pool.h"
#include "stats/lock.h"

namespace spillway {

struct ServedContext {
  CUcontext context = nullptr;
  int device = 0;
  uint64_t total_bytes = 0;  // of the device
  Arena* arena = nullptr;
  std::unique_ptr<LegacyPool> legacy_pool;
};

class ServedContexts {
 public:
  static ServedContexts& instance();

  // Returns what serves the context current in this thread, made if need be; null where the driver is to
  // serve.
  ServedContext* current();
  // Returns what serves the stream's context; null as above. Default streams are those of the current
  // context.
  ServedContext* of_stream(CUstream stream);
  // Returns how far a block may reach: the most memory of a device that was served so far, 0 before any.
  uint64_t most_bytes() const { return most_bytes_.load(std::memory_order_acquire); }
  // Returns what serves the device, in whichever context; null where there is none (yet).
  ServedContext* of_device(int device) const {
    return device < 0 || device >= Allocator::kMostDevices
               ? nullptr
               : by_device_[static_cast<size_t>(device)].load(std::memory_order_acquire);
  }

  void stream_created(CUstream stream, unsigned flags);
  // To be called before the stream is destroyed.
  void stream_destroyed(CUstream stream);
  // Tells whether the context is one that is served and primary, which cuCtxDestroy refuses.
  bool is_primary(CUcontext context);
  // To be called before the context is destroyed or reset: its memory goes, with whatever blocks are in it.
  void context_ends(CUcontext context);
  // `context` is the device's primary one, null where that is not known.
  void primary_context_ends(int device, CUcontext context);
  // The current context's device may use the memory of the peer's.
  void peer_enabled(CUcontext peer);
  // Device `user` may use memory of device `owner`, whichever of its contexts is served.
  void device_opened(int owner, int user);

  KnownStreams& streams() { return streams_; }
  const Driver* driver() const { return driver_.load(std::memory_order_acquire); }

 private:
  ServedContext* find(CUcontext context);
  ServedContext* make(CUcontext context) SPW_REQUIRES(mutex_);
  using Entry = std::map<CUcontext, std::unique_ptr<ServedContext>>::iterator;
  // Ends the context of which is_it(entry) is true, if there is one.
  template <typename IsIt>
  void end_where(IsIt is_it);
  void end(Entry entry) SPW_REQUIRES(mutex_);
  static void enable_peer(const ServedContext& owner, int user);
  int device_of(CUcontext context) SPW_REQUIRES(mutex_);
  bool is_left(int device) const SPW_REQUIRES(mutex_) {
    return device < Allocator::kMostDevices && is_left_[static_cast<size_t>(device)];
  }

  std::atomic<const Driver*> driver_{nullptr};
  KnownStreams streams_;
  // What threads remember of streams and contexts is true while this stays as it is.
  std::atomic<uint64_t> generation_{1};
  std::array<std::atomic<ServedContext*>, Allocator::kMostDevices> by_device_{};
  std::atomic<uint64_t> most_bytes_{0};

  BlockingMutex mutex_;
  std::shared_ptr<const Driver> kept_driver_ SPW_GUARDED_BY(mutex_);
  // Null: left to the driver.
  std::map<CUcontext, std::unique_ptr<ServedContext>> contexts_ SPW_GUARDED_BY(mutex_);
  // Devices that keep the arena of a context that is gone.
  std::array<bool, Allocator::kMostDevices> is_left_ SPW_GUARDED_BY(mutex_){};
  std::vector<std::pair<CUcontext, int>> peers_ SPW_GUARDED_BY(mutex_);  // whose memory, for which device
  std::set<std::pair<int, int>> opened_ SPW_GUARDED_BY(mutex_);          // the same, of whole devices
};

}  // namespace spillway
