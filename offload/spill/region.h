// One region of a device: whether it is open, pinned or elsewhere, and how it moves. Which regions there are,
// and which of them go when room is needed, is said in regions.h.
//
// Thread-safe. Whoever moves or looks at it has its mutex, and one thread moves it at a time; others wait for
// it. Inside a last rung nobody waits: the move that it makes room for, or another's that waits for this
// thread, would never end. What somebody has in hand is refused there.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "allocator/arena.h"
#include "offload/spill/region_memory.h"
#include "stats/lock.h"

namespace spillway {

// Holds what is said of one region.
struct RegionReport {
  RegionUsage usage;
  uint64_t pins = 0;
  int priority = 0;
  uint64_t evictions = 0;
  uint64_t restores = 0;
  uint64_t evict_ns = 0;
  uint64_t restore_ns = 0;
};

// Owned by shared pointers: a prefetch keeps its region until it has said how it went.
class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(std::string tag, PoolId id, Arena& arena, RegionMemory& memory, Codec codec)
      : tag_(std::move(tag)),
        id_(id),
        arena_(arena),
        memory_(memory),
        packer_(std::make_unique<Packer>(codec)) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const std::string& tag() const { return tag_; }
  PoolId id() const { return id_; }

  // Counts a use by the program, of any region of any device, or its word that one may go.
  static uint64_t count_use();
  static uint64_t uses();
  // Makes this region the last that was used.
  void note_use() { last_use_.store(count_use(), std::memory_order_relaxed); }
  uint64_t last_use() const { return last_use_.load(std::memory_order_relaxed); }
  // The higher, the sooner it may go to make room; 0: never. Asked without the mutex, too.
  void set_priority(int priority) { priority_ = priority; }
  int priority() const { return priority_; }

  // Takes the mutex; after settle() no prefetch is under way either. False inside a last rung where somebody
  // else has it, and then *refused says so (invalid_state). Nothing that they call while they have it throws.
  bool hold(Status* refused) SPW_TRY_ACQUIRE(true, mutex);
  bool settle(Status* refused) SPW_TRY_ACQUIRE(true, mutex);
  // Waits for the prefetch that is under way, if one is, and keeps how it went.
  void finish_prefetch() SPW_REQUIRES(mutex);
  // Tells whether a prefetch is under way.
  bool is_coming() const SPW_REQUIRES(mutex);
  // Tells whether this thread is bringing it back: making room for that must not ask it.
  bool is_moved_here() const;

  // Tells whether its memory is off the device: the allocator knows (moved_pool.h).
  bool is_away() const SPW_REQUIRES(mutex) { return arena_.pool_is_away(id_); }
  // Tells whether it may be evicted; not while it comes back.
  bool may_go() SPW_REQUIRES(mutex);
  // Says why a region that is elsewhere cannot be used: what its prefetch met, if it had one.
  Status not_here() SPW_REQUIRES(mutex);

  // Errors: invalid_state (it is elsewhere, pinned, or open), io, driver.
  Status evict(SpillTo to, const BlockMover::MakeRoom& make_room) SPW_REQUIRES(mutex);
  // As evict(), for a region that may go.
  Status move_out(SpillTo to, const BlockMover::MakeRoom& make_room) SPW_REQUIRES(mutex);
  // Errors: invalid_state (it is here), out_of_memory, data_lost, io, driver.
  Status restore() SPW_REQUIRES(mutex);
  // Begins to bring it back, on a thread of its own. Errors: invalid_state (it is here), io.
  Status prefetch() SPW_REQUIRES(mutex);
  // Writes what it has in host memory to the disk; returns the bytes that did not stay there.
  uint64_t write_down() SPW_REQUIRES(mutex);
  void set_codec(Codec codec) SPW_REQUIRES(mutex) { packer_ = std::make_unique<Packer>(codec); }

  // See spw_region_read.
  Status read(uint64_t va, uint64_t bytes, std::byte* out) SPW_REQUIRES(mutex);
  RegionUsage usage() const SPW_REQUIRES(mutex);
  RegionReport report() const SPW_REQUIRES(mutex);

  mutable BlockingMutex mutex;
  uint32_t opened SPW_GUARDED_BY(mutex) = 0;
  uint64_t pins SPW_GUARDED_BY(mutex) = 0;
  bool is_released SPW_GUARDED_BY(mutex) = false;  // its blocks are the program's alone

 private:
  Status in_other_hands() const;
  Status bring_back() SPW_REQUIRES(mutex);
  Status note_failure(Status failed) const;
  // Says what lies in the bytes that cannot be read any more.
  Status lost(const std::string& why) const SPW_REQUIRES(mutex);

  const std::string tag_;
  const PoolId id_;
  Arena& arena_;
  RegionMemory& memory_;
  std::atomic<uint64_t> last_use_{0};
  std::atomic<int> priority_{0};
  Urgency urgency_;  // of bringing it back
  std::unique_ptr<Packer> packer_ SPW_GUARDED_BY(mutex);
  // Valid while nobody has looked how it went.
  std::future<Status> prefetching_ SPW_GUARDED_BY(mutex);
  // Says how it went, until that is said or the region leaves again.
  std::optional<Status> prefetched_ SPW_GUARDED_BY(mutex);
  RegionReport counts_ SPW_GUARDED_BY(mutex);  // evictions, restores, and their times
};

}  // namespace spillway
