// Moves the bytes of blocks between a device, pinned host memory and the disk. Every call waits until all is
// done, and overlaps what it can meanwhile: copies of the device with checksums and the disk's work.
//
// A call either moves what it says or gives an error; then the copies that it was to make are gone, and those
// that were there are untouched. Which state a block is in is the caller's to say (SpillBlock::go).
// Thread-safe for different blocks. The context must be current.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offload/pinned_arena.h"
#include "offload/spill/block.h"
#include "offload/spill/copy_streams.h"
#include "offload/spill/disk_tier.h"
#include "offload/spill/staging.h"
#include "stats/lock.h"

namespace spillway {

// A block and where its bytes are, or are to be, on the device.
struct DeviceBytes {
  CUdeviceptr va = 0;
  SpillBlock* block = nullptr;
};

class BlockMover {
 public:
  BlockMover(CopyStreams& copy_streams, PinnedArena& pinned, DiskTier& disk)
      : copies_(copy_streams), pinned_(pinned), disk_(disk) {}

  // Frees host memory that others can do without; false where there is none. May be null.
  using MakeRoom = std::function<bool()>;
  // Copies from the first on as many as host memory has room for, or can be made room for, *copied of them;
  // each is being copied while room for the next is found. Errors: driver, and none are copied.
  Status copy_to_host(std::span<const DeviceBytes> blocks, const MakeRoom& make_room, size_t* copied);
  // `packer` may be null. Errors: those of DiskTier, driver.
  Status copy_to_disk(std::span<const DeviceBytes> blocks, Packer* packer);
  // Copies from host memory where a block has bytes there, else from the disk. Errors: data_lost (of pieces
  // that are marked as lost then), io, driver.
  Status copy_back(std::span<const DeviceBytes> blocks, const Urgency& urgency);
  // Writes from host memory to the disk; what is in host memory stays.
  Status write_down(SpillBlock& block, Packer* packer);
  // Reads from the disk to `host`, of slot_bytes(); what is on the disk stays. Errors: data_lost, io.
  Status read_up(SpillBlock& block, std::byte* host, const Urgency& urgency);

  // Gives up the copies of a block.
  void drop(SpillBlock& block);
  void drop_host(SpillBlock& block);
  // Gives back the buffers between the device and the disk that are kept for the next move.
  void give_up_staging();

  static uint64_t slot_bytes(const SpillBlock& block) {
    constexpr uint64_t kMask = DiskTier::kAlignment - 1;
    return (block.bytes + kMask) & ~kMask;
  }

 private:
  struct Chunk;

  // Buffers for so many bytes, those of an earlier call where nobody has them.
  Result<std::unique_ptr<Staging>> take_staging(uint64_t bytes);
  void give_back(std::unique_ptr<Staging> staging);
  static std::vector<Chunk> divide(std::span<const DeviceBytes> blocks);
  Status stream_to_disk(std::span<const Chunk> chunks, Packer* packer);
  Status stream_from_disk(std::span<const Chunk> chunks, const Urgency& urgency);
  Status reserve_all(std::span<const DeviceBytes> blocks);

  CopyStreams& copies_;
  PinnedArena& pinned_;
  DiskTier& disk_;
  BlockingMutex mutex_;
  // The ring that the disk's engine knows.
  const Staging* registered_ SPW_GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<Staging> spare_ SPW_GUARDED_BY(mutex_);  // that one, while nobody has it
};

}  // namespace spillway
