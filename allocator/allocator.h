// The arenas of a process by device ordinal, each created when its device is first asked for memory.
// Thread-safe; finding an existing arena takes no lock.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>

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

  // Ends the arena of a device; the next arena() makes another. No other call may be using it.
  void drop(int device);

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
  BlockingMutex create_mutex_;
  std::array<std::atomic<Arena*>, kMostDevices> arenas_{};
};

}  // namespace spillway
