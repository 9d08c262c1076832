// Blocks in host memory that the device reads and writes over its bus, for allocations that the device has no
// room for: the last thing that is tried before an allocation fails, where the program allows it. A block
// stays where it is until it is freed; new ones go to the device again as soon as that has room.
//
// Memory is the host's part of the driver's virtual memory management, or pinned memory where that is not
// offered. A freed block goes back when the work that was enqueued on its streams is done, which is looked at
// when the next is placed or released; where there is no room for the next, it is waited for. One that is
// freed under capture belongs to a graph, and stays.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "allocator/arena.h"
#include "allocator/last_rungs.h"
#include "allocator/mapped_range.h"
#include "driver/event.h"
#include "offload/overflow_memory.h"
#include "offload/pinned_arena.h"
#include "stats/lock.h"

namespace spillway {

struct HostOverflowOptions {
  uint64_t most_bytes = uint64_t{32} << 30;
  uint64_t least_block_bytes = uint64_t{16} << 20;  // smaller requests are not placed
  OverflowMemory memory = OverflowMemory::kAuto;
};

class HostOverflow : public std::enable_shared_from_this<HostOverflow> {
 public:
  // The arena and the pinned memory must outlive it.
  static std::shared_ptr<HostOverflow> create(const Driver& driver, Arena& arena, PinnedArena& pinned,
                                              const HostOverflowOptions& options);
  // Waits for the work of the blocks that were freed. None is in use any more.
  ~HostOverflow();
  HostOverflow(const HostOverflow&) = delete;
  HostOverflow& operator=(const HostOverflow&) = delete;
  // Returns what the arena's last rung calls; it keeps this object alive.
  std::shared_ptr<const HostPlacement> placement();

  // Null where it is refused.
  void* place(uint64_t bytes);
  void release(void* block, const std::vector<CUstream>& streams);
  uint64_t held_bytes() const;

 private:
  struct Block {
    uint64_t bytes = 0;
    MappedRange range;       // of the driver's host memory
    void* pinned = nullptr;  // or of ours
  };
  struct Freed {
    Block block;
    std::vector<Event> marks;
  };

  HostOverflow(const Driver& driver, Arena& arena, PinnedArena& pinned, const HostOverflowOptions& options);
  Result<Block> make(uint64_t bytes, uint64_t* va);
  Result<PhysicalHandle> create_handle(uint64_t bytes) const;
  Result<Block> map_host_memory(uint64_t bytes, uint64_t* va);
  Result<Block> pin_host_memory(uint64_t bytes, uint64_t* va);
  void give_back(Block block);
  // Counts so many bytes as held, where they may be.
  bool claim(uint64_t bytes);
  // Waits for the work of the block that was freed first. False where there is none, or it failed.
  bool wait_for_oldest();
  // Blocks whose work is done.
  std::vector<Block> take_finished() SPW_REQUIRES(mutex_);

  const Driver& driver_;
  Arena& arena_;
  PinnedArena& pinned_;
  const HostOverflowOptions options_;
  bool has_host_ = false;  // the driver makes memory of the host
  int node_ = -1;          // or of this NUMA node, the nearest to the device; none below 0
  EventPool events_;
  mutable BlockingMutex mutex_;
  std::map<uint64_t, Block> blocks_ SPW_GUARDED_BY(mutex_);  // in use, by address on the device
  std::list<Freed> freed_ SPW_GUARDED_BY(mutex_);
  uint64_t held_bytes_ SPW_GUARDED_BY(mutex_) = 0;
};

}  // namespace spillway
