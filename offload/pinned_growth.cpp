#include "offload/pinned_growth.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "driver/capture.h"
#include "driver/context.h"
#include "stats/own_thread.h"

namespace spillway {

Status PinnedGrowth::reach(uint64_t bytes) {
  const Lock calls(calls_);
  {
    const Lock lock(mutex_);
    wanted_bytes_ = bytes;
    if (is_working_) return {};
    status_ = {};
    if (arena_.reserved_bytes() >= bytes) return {};
    is_working_ = true;
  }
  if (thread_.joinable()) thread_.join();  // of the last time: it has ended
  try {
    thread_ = start_own_thread([this] { work(); });
  } catch (const std::exception& error) {
    give_up();
    return Status::io(fmt::format("no thread to pin host memory ahead: {}", error.what()));
  }
  return {};
}

void PinnedGrowth::give_up() {
  const Lock lock(mutex_);
  is_working_ = false;
}

Status PinnedGrowth::wait() {
  const Lock calls(calls_);
  if (thread_.joinable()) thread_.join();
  const Lock lock(mutex_);
  return status_;
}

void PinnedGrowth::stop() {
  const Lock calls(calls_);
  {
    const Lock lock(mutex_);
    wanted_bytes_ = 0;
  }
  if (thread_.joinable()) thread_.join();
}

void PinnedGrowth::work() {
  const ScopedContext context(driver_, context_);
  // Pinning would end another thread's capture.
  const RelaxedCapture relaxed(driver_);
  Status status = caught([&]() -> Status {
    if (context.status().ok()) return {};
    return context.status();
  });
  for (;;) {
    uint64_t missing = 0;
    {
      const Lock lock(mutex_);
      const uint64_t held = arena_.reserved_bytes();
      missing = wanted_bytes_ > held ? wanted_bytes_ - held : 0;
      if (missing == 0 || !status.ok()) {
        is_working_ = false;
        status_ = std::move(status);
        return;
      }
    }
    status = caught([&] { return arena_.grow_ahead(std::min(missing, kStepBytes)); });
  }
}

}  // namespace spillway
