// All that lies below one device: its copy streams, its file, its regions and stashes. Made when something is
// first spilled, and then for as long as the process lives.
#pragma once

#include <memory>

#include "allocator/arena.h"
#include "offload/pinned_arena.h"
#include "offload/spill/regions.h"
#include "offload/spill/stashes.h"

namespace spillway {

class DeviceTiers {
 public:
  // The arena and the pinned memory must outlive it. `codec` packs what goes to the disk. Errors: unsupported
  // (no virtual memory management), driver.
  static Result<std::unique_ptr<DeviceTiers>> create(const Driver& driver, Arena& arena, PinnedArena& pinned,
                                                     const DiskTierOptions& disk, Codec codec);

  CopyStreams& copy_streams() { return *copies_; }
  DiskTier& disk() { return disk_; }
  RegionMemory& memory() { return memory_; }
  Regions& regions() { return regions_; }
  Stashes& stashes() { return stashes_; }
  // Gives back the pinned memory that nothing is in any more: of stashes that are over, and of buffers
  // between the device and the disk.
  void give_up_host_memory();

 private:
  DeviceTiers(std::unique_ptr<CopyStreams> copy_streams, Arena& arena, PinnedArena& pinned,
              const DiskTierOptions& disk, Codec codec);

  const CUcontext context_;
  std::unique_ptr<CopyStreams> copies_;
  DiskTier disk_;
  RegionMemory memory_;
  Regions regions_;
  Stashes stashes_;
};

}  // namespace spillway
