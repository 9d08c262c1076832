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
// it, and afterwards as long as its counters were not reset or something of it is out of the device. Needs
// the arena's lock.
struct Pool {
  explicit Pool(PoolId pool) : id(pool) {}

  bool is_claimed() const { return claims > 0; }
  // Nothing is left to be remembered.
  bool is_forgotten() const {
    return !is_claimed() && source == nullptr && movable == nullptr && bytes.peak == 0 &&
           bytes.allocated == 0 && bytes.freed == 0;
  }

  const PoolId id;
  uint32_t claims = 0;
  // Tells it from earlier pools by its id, and its saved states from those that cannot be put back any more;
  // 0 where nobody has a claim.
  uint64_t birth = 0;
  spw_stat bytes{};                       // of device memory that it holds
  std::unique_ptr<SourcedPool> source;    // instead of the device; null: the device
  std::unique_ptr<MovablePool> movable;   // null: its memory stays where it is
  std::optional<LastRungs::Id> lends_as;  // what is free in it serves others; 0: by take_lent() alone
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
