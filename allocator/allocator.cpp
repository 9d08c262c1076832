#include "allocator/allocator.h"

#include <fmt/format.h>

#include <algorithm>

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
  if (existing(device) == nullptr) return;
  const auto index = static_cast<size_t>(device);
  delete arenas_[index].exchange(nullptr);
  const Lock lock(create_mutex_);
  counters_[index]->on_memory_gone();
}

std::optional<DeviceStats> Allocator::counted(int device) const {
  if (const Arena* arena = existing(device); arena != nullptr) return arena->stats();
  if (device < 0 || device >= kMostDevices) return std::nullopt;
  const Lock lock(create_mutex_);
  const auto& counters = counters_[static_cast<size_t>(device)];
  if (counters == nullptr) return std::nullopt;
  return counters->snapshot();
}

bool Allocator::was_used() const {
  const Lock lock(create_mutex_);
  return std::any_of(counters_.begin(), counters_.end(), [](const auto& one) { return one != nullptr; });
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
  std::shared_ptr<DeviceCounters>& counters = counters_[static_cast<size_t>(device)];
  options.value().counters =
      counters != nullptr ? counters : std::make_shared<DeviceCounters>(options.value().tracer, device);
  Result<std::unique_ptr<Arena>> arena = Arena::create(driver_, device, options.value());
  if (!arena.ok()) return arena.take_status();
  counters = options.value().counters;
  slot.store(arena.value().release(), std::memory_order_release);
  return slot.load(std::memory_order_relaxed);
}

}  // namespace spillway
