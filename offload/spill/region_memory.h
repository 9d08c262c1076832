// The copies of what regions have out of one device: by the addresses that the bytes come back to, which the
// allocator keeps (allocator/moved_pool.h).
//
// Nothing is lost: copy_out() answers when every byte is complete elsewhere, and copy_back() gives copies up
// when every byte is complete on the device.
//
// Thread-safe; of one region's ranges only one thread at a time copies or writes down. The context must be
// current.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/moved_pool.h"
#include "offload/spill/block_mover.h"
#include "stats/lock.h"

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

  RegionUsage& operator+=(const RegionUsage& other);
};

class RegionMemory {
 public:
  using Ranges = std::vector<PageRange>;
  // So much is copied as one: a large region is many, so that host memory that is nearly full takes a part.
  static constexpr uint64_t kMostSegmentBytes = CopyStreams::kPartBytes;

  RegionMemory(CopyStreams& copy_streams, PinnedArena& pinned, DiskTier& disk)
      : copies_(copy_streams), mover_(copy_streams, pinned, disk) {}
  ~RegionMemory();
  RegionMemory(const RegionMemory&) = delete;
  RegionMemory& operator=(const RegionMemory&) = delete;

  // For Arena::move_pool_out. What goes to the disk is packed by `packer`, if it is not null; what host
  // memory has no room for, after `make_room`, goes there too.
  Status copy_out(const Ranges& ranges, SpillTo to, Packer* packer = nullptr,
                  const BlockMover::MakeRoom& make_room = nullptr);
  // For Arena::bring_pool_back. What comes back goes before what is less urgent. Errors: data_lost, of which
  // lost() then tells the ranges, io, driver.
  Status copy_back(const Ranges& ranges, const Urgency& urgency, bool* is_settled);
  // For Arena::make_pool_movable.
  void give_up(const PageRange& range);
  void give_up_staging() { mover_.give_up_staging(); }
  // Writes what is in host memory from there to the disk. Errors: those of DiskTier; what was not written is
  // in host memory.
  Status write_down(const Ranges& ranges, Packer* packer = nullptr);

  // Copies bytes that are elsewhere to host memory; they stay there as well. Errors: invalid_argument (not
  // all of them are elsewhere), invalid_state (they were discarded), data_lost, io.
  Status read(uint64_t va, uint64_t bytes, std::byte* out, const Urgency& urgency);

  RegionUsage usage(const Ranges& ranges) const;
  Ranges lost(const Ranges& ranges) const;
  CopyStreams& copy_streams() { return copies_; }

 private:
  struct Segment {
    Segment(uint64_t address, SpillBlock bytes) : va(address), block(std::move(bytes)) {}
    const uint64_t va;
    SpillBlock block;
    uint64_t end_va() const { return va + block.bytes; }
  };
  using Segments = std::map<uint64_t, std::unique_ptr<Segment>>;  // by address

  static std::vector<DeviceBytes> device_bytes(const std::vector<Segment*>& segments);
  Status copy_all(const std::vector<DeviceBytes>& blocks, SpillTo to, Packer* packer,
                  const BlockMover::MakeRoom& make_room);
  // Makes one of the segments begin at `va`, if any lies on both sides of it.
  void cut(uint64_t va) SPW_REQUIRES(mutex_);
  // Does the same for both ends of the range; answers what lies in it.
  std::vector<Segment*> cut_out(const PageRange& range) SPW_REQUIRES(mutex_);
  // Poisons those of their pieces that were found lost; pages are pieces.
  void poison(const std::vector<Segment*>& segments);
  // Throws bad_alloc, and nothing is given up.
  void remove(const PageRange& range);
  std::vector<std::unique_ptr<Segment>> take_out(const PageRange& range) SPW_REQUIRES(writing_down_);
  Status write_down(Segment& segment, Packer* packer) SPW_REQUIRES(writing_down_);
  Status read_part(Segment& segment, uint64_t offset, uint64_t bytes, std::byte* out, const Urgency& urgency)
      SPW_REQUIRES(writing_down_);
  template <typename Visit>
  void for_each_in(const Ranges& ranges, Visit visit) const;

  CopyStreams& copies_;
  BlockMover mover_;
  mutable BlockingMutex mutex_;
  Segments segments_ SPW_GUARDED_BY(mutex_);
  BlockingMutex writing_down_;  // held for one segment, which is not given up meanwhile
};

}  // namespace spillway
