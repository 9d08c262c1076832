// The memory of regions on one device: segments whose bytes can leave the device while their addresses stay.
// It is what a pool's SegmentSource allocates from, and what moves the segments that the arena says may move.
//
// Nothing is lost: device memory is given up only when every segment of the move is complete elsewhere, and a
// copy only when every segment is complete on the device. A segment that the driver does not let go of stays
// mapped, is counted in `stuck_bytes`, and is used again when it is brought back.
//
// Thread-safe; what moves one pool's segments is not called twice at a time. The context must be current.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator/mapped_range.h"
#include "allocator/segment_source.h"
#include "offload/spill/block_mover.h"

namespace spillway {

enum class SpillTo : uint8_t {
  kHost,  // or where that has no room, the disk, if there is one
  kDisk,
  kNowhere,  // the bytes are not needed any more
};

struct RegionUsage {
  uint64_t device_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;
  uint64_t discarded_bytes = 0;
  uint64_t lost_bytes = 0;
  uint64_t stuck_bytes = 0;  // elsewhere, and still mapped on the device
};

class RegionMemory {
 public:
  // `devices` answers who is to have access: the device itself and its peers.
  RegionMemory(int device, CopyLanes& lanes, PinnedArena& pinned, DiskTier& disk,
               std::function<std::vector<int>()> devices)
      : device_(device), lanes_(lanes), mover_(lanes, pinned, disk), devices_(std::move(devices)) {}
  RegionMemory(const RegionMemory&) = delete;
  RegionMemory& operator=(const RegionMemory&) = delete;

  // For SegmentSource.
  void* allocate(uint64_t bytes);
  void free(const SegmentMemory& segment);

  // For Arena::move_pool_out and bring_pool_back. What goes to the disk is packed by `packer`, if it is not
  // null; what host memory has no room for, after `make_room`, goes there too. What comes back goes before
  // what is less urgent.
  Status move_out(const std::vector<SegmentMemory>& segments, SpillTo to, Packer* packer = nullptr,
                  const BlockMover::MakeRoom& make_room = nullptr);
  Status bring_back(const std::vector<SegmentMemory>& segments, const Urgency& urgency);
  // Of these segments, which nothing lies in any more, those whose bytes are lost: their copies are given up,
  // and they come back as memory. False where there are none.
  bool discard_lost(const std::vector<SegmentMemory>& segments);
  CopyLanes& lanes() { return lanes_; }
  // Segments in host memory, from there to the disk. Errors: those of DiskTier; what was not written is in
  // host memory.
  Status write_down(const std::vector<SegmentMemory>& segments, Packer* packer = nullptr);

  // Another device may use all of it, too.
  Status grant(int peer);
  RegionUsage usage(const std::vector<SegmentMemory>& segments) const;

 private:
  struct Segment {
    Segment(MappedRange mapped, uint64_t bytes) : range(std::move(mapped)), block(bytes) {}
    MappedRange range;
    SpillBlock block;
  };
  using Segments = std::vector<Segment*>;

  Segments find(const std::vector<SegmentMemory>& memory);
  Status map(Segment& segment);
  static std::vector<DeviceBytes> device_bytes(const Segments& segments);
  // All of them change, or none.
  static Status go(const Segments& segments, BlockPlace to);
  // `why` says more, if it is not empty.
  static Status lost(const Segment& segment, const std::string& why);
  Status copy_out(const Segments& segments, SpillTo to, Packer* packer,
                  const BlockMover::MakeRoom& make_room);

  const int device_;
  CopyLanes& lanes_;
  BlockMover mover_;
  const std::function<std::vector<int>()> devices_;
  mutable std::mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Segment>> segments_;  // by address
};

}  // namespace spillway
