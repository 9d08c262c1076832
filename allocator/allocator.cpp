#include "allocator/allocator.h"

#include <fmt/format.h>

namespace spillway {

Allocator::Allocator(std::shared_ptr<const Driver> driver, OptionsOf options_of)
    : driver_(std::move(driver)), options_of_(std::move(options_of)) {}

Allocator::~Allocator() {
  for (std::atomic<Arena*>& arena : arenas_) delete arena.load();
}

Result<std::unique_ptr<Allocator>> Allocator::create(std::shared_ptr<const Driver> driver,
                                                     const ArenaOptions& options) {
  return create(std::move(driver), [options](int) -> Result<ArenaOptions> { return options; });
}

Result<std::unique_ptr<Allocator>> Allocator::create(std::shared_ptr<const Driver> driver,
                                                     OptionsOf options_of) {
  return std::unique_ptr<Allocator>(new Allocator(std::move(driver), std::move(options_of)));
}

void Allocator::drop(int device) {
  if (existing(device) != nullptr) delete arenas_[static_cast<size_t>(device)].exchange(nullptr);
}

Result<Arena*> Allocator::create_arena(int device) {
  if (device < 0 || device >= kMostDevices) {
    return Status::invalid_argument(fmt::format("device {}: allowed are 0 to {}", device, kMostDevices - 1));
  }
  const Lock lock(create_mutex_);  // orders creations: a device has one arena
  std::atomic<Arena*>& slot = arenas_[static_cast<size_t>(device)];
  if (Arena* found = slot.load(std::memory_order_acquire); found != nullptr) return found;
  Result<ArenaOptions> options = options_of_(device);
  if (!options.ok()) return options.take_status();
  Result<std::unique_ptr<Arena>> arena = Arena::create(driver_, device, options.value());
  if (!arena.ok()) return arena.take_status();
  slot.store(arena.value().release(), std::memory_order_release);
  return slot.load(std::memory_order_relaxed);
}

}  // namespace spillway
