// Pools whose memory leaves the device and comes back to the same addresses. The arena knows when that may be
// done, which of their pages hold something, and what it means for its counters; how bytes are copied is for
// whoever asks for the move.

#include <algorithm>
#include <mutex>
#include <set>

#include "allocator/arena.h"
#include "driver/capture.h"

namespace spillway {
// ---- Which pools, and how their memory is used

Status Arena::make_pool_movable(PoolId id, GiveUpCopies give_up) {
  if (!store_->uses_vmm()) {
    return Status::unsupported(
        "memory can leave its addresses only with virtual memory management (backend:vmm)");
  }
  const ArenaLock lock(mutex_);
  Pool* pool = claimed(id);
  if (pool == nullptr) return pool_refused(id, "does not exist");
  if (pool->movable != nullptr) return pool_refused(id, "can be moved already");
  if (pool->source != nullptr) return pool_refused(id, "has a source of its own");
  const std::vector<Heap*> owners = heaps_of(id);
  const auto has_pages = [](Heap* heap) {
    const Lock heap_lock(heap->mutex);
    return heap->owned_pages() > 0;
  };
  if (std::any_of(owners.begin(), owners.end(), has_pages)) return pool_refused(id, "has memory already");
  pool->movable = std::make_unique<MovablePool>();
  pool->movable->give_up = std::move(give_up);
  for (Heap* heap : owners) {
    const Lock heap_lock(heap->mutex);
    set_use_of(*heap);
  }
  return {};
}

MovablePool* Arena::movable(PoolId id) const {
  const Pool* pool = find_pool(id);
  return pool == nullptr ? nullptr : pool->movable.get();
}

void Arena::set_use_of(Heap& heap) const {
  const bool is_claimed = claimed(heap.key.pool) != nullptr;
  const MovablePool* pool = movable(heap.key.pool);
  const bool follows_streams = pool != nullptr && pool->captured == MovablePool::Captured::kNever;
  const bool is_moved = pool != nullptr && (pool->is_moving() || pool->is_away());
  heap.may_move = pool != nullptr && !pool->is_released;
  heap.is_replayed = heap.key.pool != PoolId{} && !follows_streams;
  heap.keeps_pages = is_moved || (is_claimed && !follows_streams);
}

void Arena::note_capture(PoolId id, CUstream stream, bool by_owner) {
  using Captured = MovablePool::Captured;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver_->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
      status == CU_STREAM_CAPTURE_STATUS_NONE) {
    return;
  }
  const Captured captured = by_owner ? Captured::kForGood : Captured::kByAnother;
  const ArenaLock lock(mutex_);
  MovablePool* pool = movable(id);
  if (pool == nullptr || pool->captured >= captured) return;
  pool->captured = captured;
  for (Heap* heap : heaps_of(id)) {
    const Lock heap_lock(heap->mutex);
    set_use_of(*heap);
  }
}

// The graphs that another captured into the pool are gone when its claim is, and nothing is replayed now.
void Arena::forget_captures(Pool& pool) {
  MovablePool::Captured& captured = pool.movable->captured;
  if (captured == MovablePool::Captured::kByAnother && pool.claims <= 1)
    captured = MovablePool::Captured::kNever;
}

Status Arena::check_present(PoolId id) const {
  const MovablePool* pool = movable(id);
  if (pool == nullptr) return {};
  if (pool->is_moving()) return pool_refused(id, "is being moved");
  if (pool->is_away()) return pool_refused(id, "is not on the device: bring it back first");
  return {};
}

// ---- What a pool holds

std::vector<PageId> Arena::pages_of(const std::vector<Heap*>& owners) const {
  std::vector<PageId> pages;
  for (PageId id = 0; id < store_->home_end(); ++id) {
    const Heap* owner = store_->page(id).owner.load(std::memory_order_relaxed);
    if (owner != nullptr && std::find(owners.begin(), owners.end(), owner) != owners.end())
      pages.push_back(id);
  }
  return pages;
}

std::vector<PageRange> Arena::ranges_of(const std::vector<PageId>& pages) const {
  std::vector<PageRange> ranges;
  for (const PageId id : pages) {
    const uint64_t va = store_->page(id).va;
    if (ranges.empty() || ranges.back().end_va() != va) ranges.push_back({va, 0});
    ranges.back().bytes += kPageBytes;
  }
  return ranges;
}

std::vector<PageRange> Arena::pool_ranges(PoolId id) const {
  const ArenaLock lock(mutex_);
  return ranges_of(pages_of(heaps_of(id)));
}

uint64_t Arena::pool_held_bytes(PoolId id) const {
  const ArenaLock lock(mutex_);
  const Pool* pool = find_pool(id);
  return pool == nullptr ? 0 : static_cast<uint64_t>(pool->bytes.current);
}

uint64_t Arena::pool_stuck_bytes(PoolId id) const {
  const ArenaLock lock(mutex_);
  const MovablePool* pool = movable(id);
  return pool == nullptr || !pool->is_away() ? 0 : store_->stuck_bytes(pages_of(heaps_of(id)));
}

std::vector<BlockRow> Arena::pool_blocks_in(PoolId id, const PageRange& range) const {
  std::vector<BlockRow> blocks;
  const ArenaLock lock(mutex_);
  for (Heap* heap : heaps_of(id)) {
    const Lock heap_lock(heap->mutex);
    heap->for_each_place([&](const Place& place) {
      if (place.state == BlockState::kFree) return;
      bool lies_there = false;
      for_each_piece(place, [&](PageId page, uint32_t, uint32_t) {
        lies_there = lies_there || range.contains(store_->page(page).va);
      });
      if (lies_there) blocks.push_back({place.va, place.bytes(), place.requested_bytes, {}});
    });
  }
  return blocks;
}

// ---- Out

Result<Pool*> Arena::begin_move(PoolId id, bool out, std::vector<Heap*>* owners) {
  const ArenaLock lock(mutex_);
  Pool* pool = find_pool(id);
  if (pool == nullptr || pool->movable == nullptr)
    return pool_refused(id, "is no region's: its memory cannot be moved");
  MovablePool& movable = *pool->movable;
  if (movable.is_moving()) return pool_refused(id, "is being moved");
  if (out && movable.is_away()) return pool_refused(id, "is not on the device already");
  if (!out && !movable.is_away()) return pool_refused(id, "is on the device already");
  if (is_open(id)) return pool_refused(id, "is open: close it before it is moved");
  // No other comes while the pool is moving: it cannot be opened.
  *owners = heaps_of(id);
  if (Status status = movable.go(out ? PoolStay::kLeaving : PoolStay::kReturning); !status.ok())
    return status;
  for (Heap* heap : *owners) {
    const Lock heap_lock(heap->mutex);
    set_use_of(*heap);
  }
  return pool;
}

void Arena::end_move(Pool& pool, const std::vector<Heap*>& owners) {
  const bool is_away = pool.movable->is_away();
  (void)pool.movable->go(is_away ? PoolStay::kAway : PoolStay::kHere);
  for (Heap* heap : owners) {
    const Lock heap_lock(heap->mutex);
    set_use_of(*heap);
  }
  // Nobody moves it any more.
  if (pool.movable->is_released && !is_away) pool.movable.reset();
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

Status Arena::release_free_pages(const std::vector<Heap*>& owners) {
  for (Heap* heap : owners) {
    const Lock heap_lock(heap->mutex);
    std::vector<PageId> pages;
    heap->choose_vacant(heap->vacant_pages(), pages);
    for (const PageId id : pages) {
      // Freed since the wait: it moves with the others.
      if (!heap->timeline.is_complete(heap->last_use(id))) continue;
      heap->drop_vacant(id, 1);
      Status status = store_->release_page(id);
      if (status.ok()) continue;
      if (store_->backed(id)) heap->add_vacant(id, 1);
      return status;
    }
  }
  return {};
}

void Arena::count_out(Pool& pool, const std::vector<Heap*>& owners, const std::vector<PageId>& pages,
                      bool out) {
  // First what goes, then what comes: no sum is ever above what is true.
  if (!out) store_->count_out(pages, false);
  for (Heap* heap : owners) {
    const Lock heap_lock(heap->mutex);
    heap->count_for(out || pool.movable->is_released ? nullptr : &pool.bytes);
    if (out) {
      heap->counters.leave();
    } else {
      heap->counters.rejoin();
    }
  }
  if (out) store_->count_out(pages, true);
  const bool returns = pool.movable->stay() == PoolStay::kArriving;
  (void)pool.movable->go(!out ? PoolStay::kArriving : returns ? PoolStay::kReturning : PoolStay::kLeft);
}

void Arena::take_out(const MovablePool& pool, const std::vector<Heap*>& owners,
                     const std::vector<PageId>& pages) {
  std::set<std::pair<const View*, uint32_t>> slots;
  for (Heap* heap : owners) {
    const Lock heap_lock(heap->mutex);
    heap->for_each_place([&](const Place& place) {
      if (place.state == BlockState::kFree || place.view == nullptr) return;
      const auto first = static_cast<uint32_t>((place.va - place.view->va) / kPageBytes);
      const auto last = static_cast<uint32_t>((place.va + place.bytes() - 1 - place.view->va) / kPageBytes);
      for (uint32_t slot = first; slot <= last; ++slot) slots.emplace(place.view, slot);
    });
  }
  // Graphs know addresses that no block has now.
  const bool keeps_all = pool.captured != MovablePool::Captured::kNever;
  store_->take_out(pages, [&](const View* view, uint32_t slot) {
    return keeps_all || slots.count({view, slot}) != 0;
  });
}

Status Arena::move_pool_out(PoolId id, const CopyOut& copy) {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return context.status();
  // Copies take a while, and unmapping would end a capture that begins meanwhile.
  const RelaxedCapture relaxed(*driver_);
  std::vector<Heap*> owners;
  Result<Pool*> begun = begin_move(id, true, &owners);
  if (!begun.ok()) return begun.take_status();
  Pool& pool = *begun.value();
  MovablePool& movable = *pool.movable;
  std::vector<PageId> pages;
  std::vector<PageRange> ranges;
  bool is_copied = false;
  Status status = caught([&] {
    Status waited = wait_before_move();
    if (!waited.ok()) return waited;
    {
      const ArenaLock lock(mutex_);
      forget_captures(pool);
      for (Heap* heap : owners) {
        const Lock heap_lock(heap->mutex);
        heap->complete_finished_frees();
        heap->release_empty_slabs();
      }
      if (movable.captured == MovablePool::Captured::kNever) {
        if (Status released = release_free_pages(owners); !released.ok()) return released;
      }
      pages = pages_of(owners);
      ranges = ranges_of(pages);
    }
    Status copied = copy(ranges);
    is_copied = copied.ok();
    if (!is_copied) return copied;
    const ArenaLock lock(mutex_);
    take_out(movable, owners, pages);
    count_out(pool, owners, pages, true);
    for (const PageRange& range : ranges) counters_.trace(TraceKind::kEvict, range.va, range.bytes, 0);
    return Status();
  });
  if (is_copied && !movable.is_away()) {
    for (const PageRange& range : ranges) movable.give_up(range);
  }
  const ArenaLock lock(mutex_);
  end_move(pool, owners);
  update_most_pages();
  return status;
}

// ---- Back

// What the device has may be in the hands of heaps, of colder pools, or of the program.
Status Arena::make_room(uint64_t bytes) {
  const auto has_room = [&] {
    const ArenaLock lock(mutex_);
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

Status Arena::bring_pool_back(PoolId id, const CopyBack& copy) {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return context.status();
  std::vector<Heap*> owners;
  Result<Pool*> begun = begin_move(id, false, &owners);
  if (!begun.ok()) return begun.take_status();
  Pool& pool = *begun.value();
  MovablePool& movable = *pool.movable;
  std::vector<PageId> pages;
  std::vector<PageRange> ranges;
  bool is_settled = true;
  Status status = caught([&] {
    (void)give_up_freed_of(id, true);
    {
      const ArenaLock lock(mutex_);
      pages = pages_of(owners);
      ranges = ranges_of(pages);
    }
    Status room = make_room(pages.size() * kPageBytes);
    if (!room.ok()) return room;
    // Mapping would end a capture that begins meanwhile. What makes room may be the program's own.
    const RelaxedCapture relaxed(*driver_);
    {
      // Counted before it comes, so that nobody else takes the room.
      const ArenaLock lock(mutex_);
      count_out(pool, owners, pages, false);
    }
    Status back = put_back(pages);
    if (back.code() == SPW_ERROR_OUT_OF_MEMORY && trim().ok()) back = put_back(pages);
    return back.ok() ? copy(ranges, &is_settled) : std::move(back);
  });
  const ArenaLock lock(mutex_);
  if (!status.ok() && !movable.is_away()) {
    const RelaxedCapture relaxed(*driver_);
    Status gone = is_settled ? caught([&] {
      kArenaLock.assert_held();  // by `lock`
      take_out(movable, owners, pages);
      return Status();
    })
                             : Status::internal("copies are under way");
    if (!gone.ok()) store_->call_out(pages);
    count_out(pool, owners, pages, true);
  } else if (status.ok()) {
    for (const PageRange& range : ranges) counters_.trace(TraceKind::kRestore, range.va, range.bytes, 0);
  }
  end_move(pool, owners);
  update_most_pages();
  return status;
}

Status Arena::put_back(const std::vector<PageId>& pages) {
  const ArenaLock lock(mutex_);
  return store_->put_back(pages);
}

// ---- What is freed meanwhile

uint64_t Arena::give_up_freed() {
  std::vector<PoolId> all;
  {
    const ArenaLock lock(mutex_);
    for (const auto& [id, pool] : pools_) {
      if (pool->movable != nullptr) all.push_back(id);
    }
  }
  uint64_t bytes = 0;
  for (const PoolId& id : all) bytes += give_up_freed_of(id, false);
  return bytes;
}

uint64_t Arena::give_up_freed_of(PoolId id, bool by_mover) {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return 0;
  const RelaxedCapture relaxed(*driver_);
  GiveUpCopies give_up;
  std::vector<PageId> pages;
  std::vector<PageRange> ranges;
  {
    const ArenaLock lock(mutex_);
    Pool* pool = find_pool(id);
    MovablePool* movable = pool == nullptr ? nullptr : pool->movable.get();
    if (movable == nullptr || !movable->is_away() || movable->is_moving() != by_mover) return 0;
    forget_captures(*pool);
    if (movable->captured != MovablePool::Captured::kNever) return 0;
    give_up = movable->give_up;
    const std::vector<Heap*> owners = heaps_of(id);
    for (Heap* heap : owners) {
      const Lock heap_lock(heap->mutex);
      heap->complete_finished_frees();
      heap->release_empty_slabs();
      std::vector<PageId> vacant;
      heap->choose_vacant(heap->vacant_pages(), vacant);
      pages.insert(pages.end(), vacant.begin(), vacant.end());
      for (const PageId page : vacant) {
        heap->drop_vacant(page, 1);
        // Nobody's, and its number not yet another's.
        store_->page(page).owner.store(nullptr, std::memory_order_relaxed);
      }
    }
    std::sort(pages.begin(), pages.end());
    ranges = ranges_of(pages);
    if (!by_mover && movable->is_released && pages_of(owners).empty()) {
      // Nothing has to come back.
      (void)movable->go(PoolStay::kReturning);
      count_out(*pool, owners, {}, false);
      end_move(*pool, owners);
    }
  }
  for (const PageRange& range : ranges) give_up(range);
  const ArenaLock lock(mutex_);
  store_->forget_out(pages);
  return pages.size() * kPageBytes;
}

}  // namespace spillway
