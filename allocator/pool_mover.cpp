#include "allocator/pool_mover.h"

#include <algorithm>
#include <set>
#include <utility>

#include "driver/capture.h"

namespace spillway {

// ---- Which pools, and how their memory is used

Status PoolMover::make_movable(PoolId id, GiveUpCopies give_up) {
  if (!parts_.store->uses_vmm()) {
    return Status::unsupported(
        "memory can leave its addresses only with virtual memory management (backend:vmm)");
  }
  const ArenaLock lock(parts_.mutex);
  Pool* pool = parts_.pools.claimed(id);
  if (pool == nullptr) return pool_refused(id, "does not exist");
  if (Status status = pool->check_movable(); !status.ok()) return status;
  const std::vector<Heap*> owners = heaps_.of(id);
  const auto has_pages = [](Heap* heap) {
    const Lock heap_lock(heap->mutex);
    return heap->pages().owned() > 0;
  };
  if (std::any_of(owners.begin(), owners.end(), has_pages)) return pool_refused(id, "has memory already");
  pool->make_movable(std::move(give_up));
  set_use_of(owners);
  return {};
}

void PoolMover::set_use_of(const std::vector<Heap*>& owners) {
  for (Heap* heap : owners) {
    const Lock heap_lock(heap->mutex);
    parts_.pools.set_use_of(*heap);
  }
}

// The graphs that another captured into the pool are gone when its claim is, and nothing is replayed now.
void PoolMover::forget_captures(Pool& pool) {
  MovablePool::Captured& captured = pool.movable()->captured;
  if (captured == MovablePool::Captured::kByAnother && pool.claims() <= 1)
    captured = MovablePool::Captured::kNever;
}

// ---- What a pool holds

std::vector<PageId> PoolMover::pages_of(const std::vector<Heap*>& owners) const {
  std::vector<PageId> pages;
  for (PageId id = 0; id < parts_.store->home_end(); ++id) {
    const Heap* owner = parts_.store->page(id).owner.load(std::memory_order_relaxed);
    if (owner != nullptr && std::find(owners.begin(), owners.end(), owner) != owners.end())
      pages.push_back(id);
  }
  return pages;
}

std::vector<PageRange> PoolMover::ranges_of(const std::vector<PageId>& pages) const {
  std::vector<PageRange> ranges;
  for (const PageId id : pages) {
    const uint64_t va = parts_.store->page(id).va;
    if (ranges.empty() || ranges.back().end_va() != va) ranges.push_back({va, 0});
    ranges.back().bytes += kPageBytes;
  }
  return ranges;
}

std::vector<PageRange> PoolMover::ranges(PoolId id) const {
  const ArenaLock lock(parts_.mutex);
  return ranges_of(pages_of(heaps_.of(id)));
}

bool PoolMover::is_away(PoolId id) const {
  const ArenaLock lock(parts_.mutex);
  return parts_.pools.is_away(id);
}

uint64_t PoolMover::stuck_bytes(PoolId id) const {
  const ArenaLock lock(parts_.mutex);
  return parts_.pools.is_away(id) ? parts_.store->stuck_bytes(pages_of(heaps_.of(id))) : 0;
}

bool PoolMover::lies_in(const CachedRange& cached, const PageRange& range) const {
  bool lies_there = false;
  for_each_piece(cached, [&](PageId page, uint32_t, uint32_t) {
    lies_there = lies_there || range.contains(parts_.store->page(page).va);
  });
  return lies_there;
}

std::vector<BlockRow> PoolMover::blocks_in(PoolId id, const PageRange& range) const {
  std::vector<BlockRow> blocks;
  const ArenaLock lock(parts_.mutex);
  for (Heap* heap : heaps_.of(id)) {
    const Lock heap_lock(heap->mutex);
    std::vector<const CachedRange*> used;
    heap->for_each_range([&](const CachedRange& cached) {
      if (cached.state != BlockState::kFree) used.push_back(&cached);
    });
    for (const CachedRange* cached : used) {
      if (lies_in(*cached, range))
        blocks.push_back({cached->va, cached->bytes(), cached->requested_bytes, {}});
    }
  }
  return blocks;
}

// ---- Out

Result<PoolMover::Move> PoolMover::begin(PoolId id, bool out) {
  const ArenaLock lock(parts_.mutex);
  Pool* pool = parts_.pools.find(id);
  if (pool == nullptr || pool->movable() == nullptr)
    return pool_refused(id, "is no region's: its memory cannot be moved");
  MovablePool& movable = *pool->movable();
  if (movable.is_moving()) return pool_refused(id, "is being moved");
  if (out && movable.is_away()) return pool_refused(id, "is not on the device already");
  if (!out && !movable.is_away()) return pool_refused(id, "is on the device already");
  if (open_pools_.contains(id)) return pool_refused(id, "is open: close it before it is moved");
  // It cannot be opened while it is moving.
  Move move{pool, heaps_.of(id), {}, {}};
  if (Status status = movable.go(out ? PoolStay::kLeaving : PoolStay::kReturning); !status.ok())
    return status;
  set_use_of(move.owners);
  return move;
}

void PoolMover::end(const Move& move) {
  MovablePool& movable = *move.pool->movable();
  const bool is_away = movable.is_away();
  (void)movable.go(is_away ? PoolStay::kAway : PoolStay::kHere);
  set_use_of(move.owners);
  // Nobody moves it any more.
  if (movable.is_released && !is_away) move.pool->settle();
  parts_.update_most_pages();
}

Status PoolMover::wait_before_move() {
  const std::vector<Heap*> all = heaps_.all();
  // mutant: move-captures
  if (heaps_.any_capturing(all))
    return Status::invalid_state("a stream is being captured: nothing can be moved now");
  if (!waits_.may_wait_for_context()) {  // mutant: move-open-pool
    return Status::invalid_state(
        "a pool is open, whose stream may be captured: nothing can be moved before it is closed");
  }
  parts_.counters.on_host_wait();
  parts_.counters.on_sync_all_streams();
  return waits_.synchronize_context(all);  // mutant: move-waits
}

Status PoolMover::list_what_moves(Move& move) {
  forget_captures(*move.pool);
  for (Heap* heap : move.owners) {
    const Lock heap_lock(heap->mutex);
    heap->complete_finished_frees();
    heap->release_empty_slabs();
  }
  if (move.pool->movable()->captured == MovablePool::Captured::kNever) {  // mutant: move-frees
    if (Status released = release_free_pages(move.owners); !released.ok()) return released;
  }
  move.pages = pages_of(move.owners);
  move.ranges = ranges_of(move.pages);
  return {};
}

Status PoolMover::release_free_pages(const std::vector<Heap*>& owners) {
  for (Heap* heap : owners) {
    const Lock heap_lock(heap->mutex);
    std::vector<PageId> pages;
    heap->pages().choose_free(heap->pages().free_count(), pages);
    // What was freed since the wait moves with the others.
    if (Status status = heap->release_free(pages); !status.ok()) return status;
  }
  return {};
}

void PoolMover::count_out(const Move& move, bool out) {
  Pool& pool = *move.pool;
  const bool returns = pool.movable()->stay() == PoolStay::kArriving;
  (void)pool.movable()->go(!out ? PoolStay::kArriving : returns ? PoolStay::kReturning : PoolStay::kLeft);
  // First what goes, then what comes: no sum is ever above what is true.
  if (!out) parts_.store->count_out(move.pages, false);
  for (Heap* heap : move.owners) {
    const Lock heap_lock(heap->mutex);
    parts_.pools.set_use_of(*heap);
    heap->count_for(out || pool.movable()->is_released ? nullptr : &pool.bytes);
    if (out) {
      heap->counters.leave();
    } else {
      heap->counters.rejoin();
    }
  }
  if (out) parts_.store->count_out(move.pages, true);
}

void PoolMover::take_out(const Move& move) {
  std::set<std::pair<const View*, uint32_t>> slots;
  for (Heap* heap : move.owners) {
    const Lock heap_lock(heap->mutex);
    heap->for_each_range([&](const CachedRange& range) {
      if (range.state == BlockState::kFree || range.view == nullptr) return;
      const auto first = static_cast<uint32_t>((range.va - range.view->va) / kPageBytes);
      const auto last = static_cast<uint32_t>((range.va + range.bytes() - 1 - range.view->va) / kPageBytes);
      for (uint32_t slot = first; slot <= last; ++slot) slots.emplace(range.view, slot);
    });
  }
  // Graphs know addresses that no block has now.
  const bool keeps_all = move.pool->movable()->captured != MovablePool::Captured::kNever;
  parts_.store->take_out(move.pages, [&](const View* view, uint32_t slot) {
    return keeps_all || slots.count({view, slot}) != 0;  // mutant: views-return
  });
}

Status PoolMover::move_out(PoolId id, const CopyOut& copy) {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  // Copies take a while, and unmapping would end a capture that begins meanwhile.
  const RelaxedCapture relaxed(*parts_.driver);
  Result<Move> begun = begin(id, true);
  if (!begun.ok()) return begun.take_status();
  Move& move = begun.value();
  MovablePool& movable = *move.pool->movable();
  bool is_copied = false;
  Status status = caught([&] {
    if (Status waited = wait_before_move(); !waited.ok()) return waited;
    {
      const ArenaLock lock(parts_.mutex);
      if (Status listed = list_what_moves(move); !listed.ok()) return listed;
    }
    Status copied = copy(move.ranges);
    is_copied = copied.ok();
    if (!is_copied) return copied;
    const ArenaLock lock(parts_.mutex);
    take_out(move);
    count_out(move, true);
    for (const PageRange& range : move.ranges)
      parts_.counters.trace(TraceKind::kEvict, range.va, range.bytes, 0);
    return Status();
  });
  if (is_copied && !movable.is_away()) {
    for (const PageRange& range : move.ranges) movable.give_up(range);
  }
  const ArenaLock lock(parts_.mutex);
  end(move);
  return status;
}

// ---- Back

Status PoolMover::bring_back(PoolId id, const CopyBack& copy) {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  Result<Move> begun = begin(id, false);
  if (!begun.ok()) return begun.take_status();
  Move& move = begun.value();
  bool is_settled = true;
  Status status = caught([&] {
    (void)give_up_freed_of(id, true);
    {
      const ArenaLock lock(parts_.mutex);
      move.pages = pages_of(move.owners);
      move.ranges = ranges_of(move.pages);
    }
    if (Status room = room_.make(move.pages.size() * kPageBytes); !room.ok()) return room;
    // Mapping would end a capture that begins meanwhile. What makes room may be the program's own.
    const RelaxedCapture relaxed(*parts_.driver);
    {
      // Counted before it comes, so that nobody else takes the room.
      const ArenaLock lock(parts_.mutex);
      count_out(move, false);
    }
    Status back = put_back(move.pages);
    if (back.code() == SPW_ERROR_OUT_OF_MEMORY && room_.trim().ok()) back = put_back(move.pages);
    return back.ok() ? copy(move.ranges, &is_settled) : std::move(back);
  });
  const ArenaLock lock(parts_.mutex);
  if (!status.ok() && !move.pool->is_away()) {
    send_away_again(move, is_settled);
  } else if (status.ok()) {
    for (const PageRange& range : move.ranges)
      parts_.counters.trace(TraceKind::kRestore, range.va, range.bytes, 0);
  }
  end(move);
  return status;
}

void PoolMover::send_away_again(const Move& move, bool is_settled) {
  const RelaxedCapture relaxed(*parts_.driver);
  // Copies that may still be under way write to what is mapped.
  if (is_settled) {
    (void)caught([&] {
      kArenaLock.assert_held();  // by this function
      take_out(move);
      return Status();
    });
  }
  count_out(move, true);
}

Status PoolMover::put_back(const std::vector<PageId>& pages) {
  const ArenaLock lock(parts_.mutex);
  return parts_.store->put_back(pages);
}

// ---- What is freed meanwhile

uint64_t PoolMover::give_up_freed() {
  std::vector<PoolId> all;
  {
    const ArenaLock lock(parts_.mutex);
    parts_.pools.for_each([&](const Pool& pool) {
      if (pool.movable() != nullptr) all.push_back(pool.id);
    });
  }
  uint64_t bytes = 0;
  for (const PoolId& id : all) bytes += give_up_freed_of(id, false);
  return bytes;
}

std::vector<PageId> PoolMover::disown_free(const std::vector<Heap*>& owners) {
  std::vector<PageId> pages;
  for (Heap* heap : owners) {
    const Lock heap_lock(heap->mutex);
    heap->complete_finished_frees();
    heap->release_empty_slabs();
    std::vector<PageId> free;
    heap->pages().choose_free(heap->pages().free_count(), free);
    pages.insert(pages.end(), free.begin(), free.end());
    for (const PageId page : free) {
      heap->drop_free(page, 1);
      parts_.store->page(page).owner.store(nullptr, std::memory_order_relaxed);
    }
  }
  std::sort(pages.begin(), pages.end());
  return pages;
}

uint64_t PoolMover::give_up_freed_of(PoolId id, bool by_mover) {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return 0;
  const RelaxedCapture relaxed(*parts_.driver);
  GiveUpCopies give_up;
  std::vector<PageId> pages;
  std::vector<PageRange> ranges;
  {
    const ArenaLock lock(parts_.mutex);
    Pool* pool = parts_.pools.find(id);
    MovablePool* movable = pool == nullptr ? nullptr : pool->movable();
    if (movable == nullptr || !movable->is_away() || movable->is_moving() != by_mover) return 0;
    forget_captures(*pool);
    if (movable->captured != MovablePool::Captured::kNever) return 0;
    give_up = movable->give_up;
    const Move move{pool, heaps_.of(id), {}, {}};
    pages = disown_free(move.owners);
    ranges = ranges_of(pages);
    if (!by_mover && movable->is_released && pages_of(move.owners).empty()) {
      // Nothing has to come back.
      (void)movable->go(PoolStay::kReturning);
      count_out(move, false);
      end(move);
    }
  }
  for (const PageRange& range : ranges) give_up(range);  // mutant: freed-copies
  const ArenaLock lock(parts_.mutex);
  parts_.store->forget_out(pages);
  return pages.size() * kPageBytes;
}

}  // namespace spillway
