#include "offload/spill/device_tiers.h"

#include <utility>

#include "driver/context.h"

namespace spillway {

DeviceTiers::DeviceTiers(std::unique_ptr<CopyStreams> copy_streams, Arena& arena, PinnedArena& pinned,
                         const DiskTierOptions& disk, Codec codec)
    : context_(arena.context()),
      copies_(std::move(copy_streams)),
      disk_(disk),
      memory_(*copies_, pinned, disk_),
      regions_(arena, memory_, codec),
      stashes_(arena.context(), *copies_, pinned, disk_, codec) {}

Result<std::unique_ptr<DeviceTiers>> DeviceTiers::create(const Driver& driver, Arena& arena,
                                                         PinnedArena& pinned, const DiskTierOptions& disk,
                                                         Codec codec) {
  const ScopedContext context(driver, arena.context());
  if (!context.status().ok()) return context.status();
  Result<std::unique_ptr<CopyStreams>> copy_streams = CopyStreams::create(driver);
  if (!copy_streams.ok()) return copy_streams.take_status();
  return std::unique_ptr<DeviceTiers>(
      new DeviceTiers(std::move(copy_streams.value()), arena, pinned, disk, codec));
}

void DeviceTiers::give_up_host_memory() {
  stashes_.reclaim();
  const ScopedContext context(copies_->driver(), context_);
  if (!context.status().ok()) return;
  memory_.give_up_staging();
  stashes_.give_up_staging();
}

}  // namespace spillway
