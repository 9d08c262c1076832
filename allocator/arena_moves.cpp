// Pools whose memory leaves the device and comes back to the same addresses. The arena knows when that may be
// done and what it means for its counters; how it is done is the mover's. Only pools with a source of their
// own can move: no page of theirs is in a view, or another heap's.

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "allocator/arena.h"
#include "driver/capture.h"

namespace spillway {
namespace {

Status refused(PoolId id, const char* why) {
  return Status::invalid_state(fmt::format("pool {{{}, {}}} {}", id.first, id.second, why));
}

}  // namespace

bool Arena::is_moving(PoolId id) const {
  const auto sourced = sourced_.find(id);
  return sourced != sourced_.end() && sourced->second->is_moving;
}

Status Arena::check_present(PoolId id) const {
  const auto sourced = sourced_.find(id);
  if (sourced == sourced_.end()) return {};
  if (sourced->second->is_moving) return refused(id, "is being moved");
  if (sourced->second->store->is_away()) return refused(id, "is not on the device: bring it back first");
  return {};
}

std::vector<Heap*> Arena::heaps_in(const PageStore& store) const {
  std::vector<Heap*> all = heaps();
  std::erase_if(all, [&](const Heap* heap) { return &heap->store() != &store; });
  return all;
}

std::vector<SegmentMemory> Arena::pool_segments(PoolId id) const {
  const Lock lock(mutex_);
  const auto sourced = sourced_.find(id);
  return sourced == sourced_.end() ? std::vector<SegmentMemory>() : sourced->second->store->segments();
}

std::vector<SegmentMemory> Arena::vacant_pool_segments(PoolId id) {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return {};
  const RelaxedCapture relaxed(*driver_);
  const Lock lock(mutex_);
  const auto sourced = sourced_.find(id);
  if (sourced == sourced_.end()) return {};
  const PageStore& store = *sourced->second->store;
  const std::vector<Heap*> owners = heaps_in(store);
  const AllLocked locked(owners);
  for (Heap* heap : owners) {
    heap->complete_finished_frees();
    heap->release_empty_slabs();
  }
  return store.vacant_segments(
      [&](PageId page) { return store.page(page).owner.load(std::memory_order_relaxed)->is_vacant(page); });
}

std::vector<int> Arena::devices() const {
  const Lock lock(mutex_);
  return store_->devices();
}

Result<SourcedPool*> Arena::begin_move(PoolId id, bool out) {
  const Lock lock(mutex_);
  const auto found = sourced_.find(id);
  if (found == sourced_.end()) return refused(id, "has no source of its own: its memory cannot be moved");
  SourcedPool& pool = *found->second;
  if (pool.is_moving) return refused(id, "is being moved");
  if (out && pool.store->is_away()) return refused(id, "is not on the device already");
  if (!out && !pool.store->is_away()) return refused(id, "is on the device already");
  {
    const Lock registry(registry_mutex_);
    const bool is_open = std::any_of(open_pools_.begin(), open_pools_.end(),
                                     [&](const std::shared_ptr<Pool>& open) { return open->id == id; });
    if (is_open) return refused(id, "is open: close it before it is moved");
  }
  pool.is_moving = true;
  return &pool;
}

Status Arena::wait_before_move() {
  const std::vector<Heap*> all = heaps();
  if (any_capturing(all))
    return Status::invalid_state("a stream is being captured: nothing can be moved now");
  if (!may_wait_for_context()) {
    return Status::invalid_state(
        "a pool is open, whose stream may be captured: nothing can be moved before it is closed");
  }
  counters_.on_host_wait();
  counters_.on_sync_all_streams();
  return synchronize_context(all);
}

void Arena::set_away(SourcedPool& pool, const std::vector<Heap*>& heaps,
                     const std::vector<SegmentMemory>& segments, bool away) {
  // First what goes, then what comes: no sum is ever above what is true.
  if (!away) pool.store->set_away(false);
  for (Heap* heap : heaps) {
    const Lock heap_lock(heap->mutex);
    heap->count_for(away ? nullptr : &pool_bytes_[heap->key.pool]);
    if (away) {
      heap->counters.leave();
    } else {
      heap->counters.rejoin();
    }
  }
  if (away) pool.store->set_away(true);
  for (const SegmentMemory& memory : segments) {
    counters_.trace(away ? TraceKind::kEvict : TraceKind::kRestore, memory.va(), memory.bytes, 0);
  }
  update_most_pages();
}

Status Arena::move_pool_out(PoolId id, const MoveSegments& move) {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return Status(context.status().code(), context.status().text());
  // Copies take a while, and unmapping would end a capture that begins meanwhile.
  const RelaxedCapture relaxed(*driver_);
  Result<SourcedPool*> begun = begin_move(id, true);
  if (!begun.ok()) return begun.take_status();
  SourcedPool& pool = *begun.value();
  std::vector<Heap*> moved_heaps;
  std::vector<SegmentMemory> segments;
  Status status = caught([&] {
    Status waited = wait_before_move();
    if (!waited.ok()) return waited;
    {
      const Lock lock(mutex_);
      moved_heaps = heaps_in(*pool.store);
      for (Heap* heap : moved_heaps) {
        const Lock heap_lock(heap->mutex);
        heap->complete_finished_frees();
      }
      segments = pool.store->segments();
    }
    return move(segments);
  });
  const Lock lock(mutex_);
  pool.is_moving = false;
  if (status.ok()) set_away(pool, moved_heaps, segments, true);
  return status;
}

// What the device has may be in the hands of heaps, of colder pools, or of the program.
Status Arena::make_room(uint64_t bytes) {
  const auto has_room = [&] {
    const Lock lock(mutex_);
    return store_->room_pages() * kPageBytes >= bytes;
  };
  if (has_room()) return {};
  (void)trim();
  if (has_room()) return {};
  // What a rung brings back asks no rung again.
  if (LastRungs::is_inside()) return out_of_memory(bytes);
  for (const std::shared_ptr<LastRungs::Entry>& rung : last_rungs_.list()) {
    for (int round = 0; round < LastRungs::kMostRounds && !has_room(); ++round) {
      if (rung->call(bytes) == 0) break;
      (void)trim();
    }
  }
  if (has_room()) return {};
  return out_of_memory(bytes);
}

Status Arena::bring_pool_back(PoolId id, const MoveSegments& move) {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return Status(context.status().code(), context.status().text());
  Result<SourcedPool*> begun = begin_move(id, false);
  if (!begun.ok()) return begun.take_status();
  SourcedPool& pool = *begun.value();
  std::vector<Heap*> moved_heaps;
  std::vector<SegmentMemory> segments;
  Status status = caught([&] {
    uint64_t bytes = 0;
    {
      const Lock lock(mutex_);
      segments = pool.store->segments();
      bytes = pool.store->reserved_bytes();
    }
    Status room = make_room(bytes);
    if (!room.ok()) return room;
    {
      // Counted before it comes, so that nobody else takes the room.
      const Lock lock(mutex_);
      moved_heaps = heaps_in(*pool.store);
      set_away(pool, moved_heaps, segments, false);
    }
    // Mapping would end a capture that begins meanwhile. What makes room may be the program's own.
    const RelaxedCapture relaxed(*driver_);
    Status moved = move(segments);
    if (moved.code() == SPW_ERROR_OUT_OF_MEMORY && trim().ok()) moved = move(segments);
    return moved;
  });
  const Lock lock(mutex_);
  pool.is_moving = false;
  if (!status.ok() && !pool.store->is_away()) set_away(pool, moved_heaps, segments, true);
  return status;
}

}  // namespace spillway
