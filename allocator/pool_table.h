// The private pools of an arena: which there are, and where the memory of each comes from.
//
// Needs the arena's lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "allocator/heap.h"
#include "allocator/pool.h"
#include "driver/status.h"

namespace spillway {

class PoolTable {
 public:
  // The pool by that id, on which nobody may have a claim any more; null if there is none.
  Pool* find(PoolId id) const;
  // The same, but null for one that nobody has a claim on.
  Pool* claimed(PoolId id) const;
  // The part of a pool that makes it movable; null where its memory stays where it is.
  MovablePool* movable(PoolId id) const;
  // The source of a pool's memory; null where that is the device.
  SourcedPool* source(PoolId id) const;
  // Returns the store's source, which may have been its pool's before the release; null for the device's
  // store.
  SourcedPool* source_of(const PageStore& store) const;
  Pool& find_or_make(PoolId id);

  // Tells whether the pool's memory is off the device.
  bool is_away(PoolId id) const;
  // Errors: invalid_state (the pool is out of the device, or on its way).
  Status check_present(PoolId id) const;
  // Sets how the heap's memory is used: by its pool, whether somebody has a claim on that or not. With the
  // heap's lock.
  void set_use_of(Heap& heap) const SPW_REQUIRES(heap.mutex);

  // Nothing is served from the pool's source any more, which stays known to the end: heaps refer to its
  // store. False where the pool has none.
  bool retire_source(Pool& pool);
  bool has_released_sources() const { return !released_sources_.empty(); }
  // Returns what the stores of all sources hold.
  uint64_t sourced_bytes() const;
  // Drops pools of which nothing is left to be remembered.
  void forget_unneeded();

  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& [id, pool] : pools_) visit(*pool);
  }
  template <typename Visit>
  void for_each_source(Visit visit) const {
    for (const auto& [id, pool] : pools_) {
      if (pool->source() != nullptr) visit(*pool->source());
    }
    for_each_released_source(visit);
  }
  template <typename Visit>
  void for_each_released_source(Visit visit) const {
    for (const std::unique_ptr<SourcedPool>& source : released_sources_) visit(*source);
  }

 private:
  std::map<PoolId, std::unique_ptr<Pool>> pools_;
  std::vector<std::unique_ptr<SourcedPool>> released_sources_;
};

}  // namespace spillway
