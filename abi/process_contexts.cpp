// Ends what ends before the process does: the arena of a context.
#include <algorithm>
#include <tuple>

#include "abi/live.h"
#include "abi/process.h"

namespace spillway {

bool Process::drop_arena(int device) {
  const Lock nobody_looks(looks_);
  const Lock lock(mutex_);
  const bool has_callbacks =
      std::any_of(oom_callbacks_.begin(), oom_callbacks_.end(),
                  [&](const auto& entry) { return std::get<0>(entry.first) == device; });
  if (owned_allocator_ == nullptr || has_callbacks || tiers_.count(device) != 0 ||
      existing_guard(device) != nullptr) {
    return false;
  }
  end_arena(device);
  return true;
}

void Process::end_arena(int device) {
  LiveWriter& live = LiveWriter::instance();
  live.release_device(device);
  owned_allocator_->drop(device);
  if (const std::optional<DeviceStats> counted = owned_allocator_->counted(device)) {
    live.keep_counters(device, *counted);
  }
}

}  // namespace spillway
