// A private pool: what the arena knows of it; and what it holds at one moment, to be put back later
// (Arena::checkpoint_pool and restore_pool; docs/decisions/pool-checkpoints.md).
//
// A saved block is named by its range, which its heap neither moves nor recycles before the pool is released.
// So a state is plain data: it may be dropped by any thread at any time, and outlive its pool and its arena.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "allocator/last_rungs.h"
#include "allocator/moved_pool.h"
#include "allocator/segment_source.h"
#include "allocator/slab.h"
#include "allocator/stream_identity.h"
#include "driver/status.h"
#include "include/spillway/stats.h"
#include "stats/segment_row.h"

namespace spillway {

struct PoolId {
  uint64_t first = 0;
  uint64_t second = 0;

  // {0, 0} is the default pool.
  bool is_private() const { return first != 0 || second != 0; }
  bool operator==(const PoolId&) const = default;
  bool operator<(const PoolId& other) const {
    return std::tie(first, second) < std::tie(other.first, other.second);
  }
};

// Whose memory a heap is: of one stream, in one pool.
struct HeapKey : StreamIdentity {
  PoolId pool;
};

// Says how a heap's memory is used, which follows from its pool: see PoolTable::set_use_of.
struct HeapUse {
  // Nothing leaves it: of a private pool that was not released, or of one whose memory moves or is away.
  bool keeps_pages = false;
  // Graphs that were captured over its memory are replayed on any stream, and stamp nothing.
  bool is_replayed = false;
  bool may_move = false;  // of a pool whose memory can leave the device
  bool is_away = false;   // the pool's memory is off the device (MovablePool): it counts for nothing there
};

// Returns the status of an operation that is refused: invalid_state, "pool {1, 2} " and why.
Status pool_refused(PoolId id, const char* why);

// The bytes of device memory that a pool holds, as a counter.
inline void add_bytes(spw_stat& held, int64_t bytes) {
  held.current += bytes;
  held.peak = std::max(held.peak, held.current);
  (bytes > 0 ? held.allocated : held.freed) += std::abs(bytes);
}

// What serves a pool's requests is kept apart from everything else. The pool is while somebody has a claim on
// it, and afterwards as long as its counters were not reset or something of it is out of the device. Its
// filter is with what is open (OpenPools), as it is called with no lock held; its heaps are found by their
// streams (StreamHeaps). Needs the arena's lock.
class Pool {
 public:
  explicit Pool(PoolId pool) : id(pool) {}

  const PoolId id;
  spw_stat bytes{};  // of device memory that it holds

  // ---- Claims
  uint64_t claims() const { return claims_; }
  bool is_claimed() const { return claims_ > 0; }
  // `stamp`: a number that none is given twice, for its birth where this is the first claim.
  void claim(uint64_t stamp);
  // Takes a claim away, of which there must be one; true where it was the last, and the pool is released.
  bool unclaim();
  // Tells it from earlier pools by its id, and its saved states from those that cannot be put back any more;
  // 0 where nobody has a claim.
  uint64_t birth() const { return birth_; }
  // Its states that were saved cannot be put back any more.
  void outdate_states(uint64_t stamp) { birth_ = stamp; }
  // Nothing is left to be remembered.
  bool is_forgotten() const;

  // ---- Where its memory comes from
  // Null: the device.
  SourcedPool* source() const { return source_.get(); }
  // Errors: invalid_state (it has a source, moves, or lends).
  Status check_source() const;
  void set_source(std::unique_ptr<SourcedPool> source) { source_ = std::move(source); }
  std::unique_ptr<SourcedPool> take_source() { return std::move(source_); }

  // ---- Where its memory is
  // Null: it stays on the device.
  MovablePool* movable() const { return movable_.get(); }
  // Errors: invalid_state (it moves already, or has a source).
  Status check_movable() const;
  void make_movable(GiveUpCopies give_up);
  // Its memory stays where it is from now on, which must be the device.
  void settle() { movable_.reset(); }
  bool is_away() const { return movable_ != nullptr && movable_->is_away(); }
  // Errors: invalid_state (its memory is out of the device, or on its way).
  Status check_present() const;

  // ---- What is free in it serves others
  bool lends() const { return lends_as_.has_value(); }
  // 0: by the ladder's take_lent() alone.
  void lend_as(LastRungs::Id rung) { lends_as_ = rung; }
  std::optional<LastRungs::Id> stop_lending() { return std::exchange(lends_as_, std::nullopt); }

 private:
  uint32_t claims_ = 0;
  uint64_t birth_ = 0;
  std::unique_ptr<SourcedPool> source_;
  std::unique_ptr<MovablePool> movable_;
  std::optional<LastRungs::Id> lends_as_;
};

// Holds what was live at a range: a large block, or those of a slab, which is kept as it was.
struct SavedRange {
  uint64_t requested_bytes = 0;
  std::unique_ptr<const Slab> slab;  // null for a large block
};
using HeapState = std::map<CachedRange*, SavedRange>;

struct PoolState {
  PoolId pool;
  uint64_t birth = 0;  // tells the pool from later ones by its id, and from those of other arenas
  std::map<const Heap*, HeapState> heaps;
};

// A block that a restoration freed (kInactive) or allocated.
struct RestoredBlock {
  BlockRow row;
  CUstream stream = nullptr;
};

}  // namespace spillway
