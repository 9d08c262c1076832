// The arenas of a process by device ordinal, each created when its device is first asked for memory.
// Thread-safe; finding an existing arena takes no lock.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "allocator/arena.h"

namespace spillway {

class Allocator {
 public:
  static constexpr int kMostDevices = 64;

  // Tells, when the arena of a device is made, what it is made with; an error is arena()'s answer.
  using OptionsOf = std::function<Result<ArenaOptions>(int device)>;

  // Errors: none today; the driver was opened by the caller.
  static Result<std::unique_ptr<Allocator>> create(std::shared_ptr<const Driver> driver,
                                                   const ArenaOptions& options);
  static Result<std::unique_ptr<Allocator>> create(std::shared_ptr<const Driver> driver,
                                                   OptionsOf options_of);
  ~Allocator();

  // Errors: invalid_argument (no such device), and those of Arena::create.
  Result<Arena*> arena(int device) {
    if (device >= 0 && device < kMostDevices) {
      Arena* found = arenas_[static_cast<size_t>(device)].load(std::memory_order_acquire);
      if (found != nullptr) return found;
    }
    return create_arena(device);
  }
  // The arena of a device that was used already; null otherwise.
  Arena* existing(int device) const {
    if (device < 0 || device >= kMostDevices) return nullptr;
    return arenas_[static_cast<size_t>(device)].load(std::memory_order_acquire);
  }

  // Ends the arena of a device; the next arena() makes another, which counts on from there. No other call may
  // be using it.
  void drop(int device);
  // What the arenas of a device have counted, those that ended included; none where it had no arena.
  std::optional<DeviceStats> counted(int device) const;
  // Tells whether any device had an arena.
  bool was_used() const;

  // Both do what Arena::free and Arena::record_stream do; the address tells the device.
  Status free(void* pointer) { return Arena::free(pointer); }
  Status record_stream(void* pointer, CUstream stream) { return Arena::record_stream(pointer, stream); }

  template <typename Visit>
  void for_each(Visit visit) {
    for (std::atomic<Arena*>& arena : arenas_) {
      if (Arena* found = arena.load(std::memory_order_acquire); found != nullptr) visit(*found);
    }
  }

 private:
  Allocator(std::shared_ptr<const Driver> driver, OptionsOf options_of);
  Result<Arena*> create_arena(int device);

  std::shared_ptr<const Driver> driver_;
  const OptionsOf options_of_;
  mutable BlockingMutex create_mutex_;
  std::array<std::atomic<Arena*>, kMostDevices> arenas_{};
  // They outlive the arenas: who resets a device at the end wants to know what happened on it.
  std::array<std::shared_ptr<DeviceCounters>, kMostDevices> counters_ SPW_GUARDED_BY(create_mutex_);
};

}  // namespace spillway
