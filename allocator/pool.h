// A private pool: its name, and what it holds at one moment, to be put back later (Arena::checkpoint_pool and
// restore_pool; docs/decisions/pool-checkpoints.md).
//
// A saved block is named by its place, which its heap neither moves nor recycles before the pool is released.
// So a state is plain data: it may be dropped by any thread at any time, and outlive its pool and its arena.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>

#include "allocator/slab.h"
#include "driver/status.h"
#include "include/spillway/stats.h"
#include "stats/segment_row.h"

namespace spillway {

struct PoolId {
  uint64_t first = 0;
  uint64_t second = 0;
  bool operator==(const PoolId&) const = default;
  bool operator<(const PoolId& other) const {
    return std::tie(first, second) < std::tie(other.first, other.second);
  }
};

// Of an operation: invalid_state, "pool {1, 2} " and why.
Status pool_refused(PoolId id, const char* why);

// The bytes of device memory that a pool holds, as a counter.
inline void add_bytes(spw_stat& held, int64_t bytes) {
  held.current += bytes;
  held.peak = std::max(held.peak, held.current);
  (bytes > 0 ? held.allocated : held.freed) += std::abs(bytes);
}

// What was live at a place: a large block, or those of a slab, which is kept as it was.
struct SavedPlace {
  uint64_t requested_bytes = 0;
  std::unique_ptr<const Slab> slab;  // null for a large block
};
using HeapState = std::map<Place*, SavedPlace>;

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
