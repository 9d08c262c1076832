// Private pools: which of them serves a stream, and what becomes of their heaps when they end. Graphs that
// were captured over a pool's memory are replayed on any stream, and stamp nothing: only a wait for the
// context after the pool's release says that they are over.

#include <fmt/format.h>

#include <algorithm>

#include "allocator/arena.h"
#include "allocator/heap_lock.h"
#include "allocator/last_heap.h"
#include "driver/capture.h"

namespace spillway {
namespace {

// Pools whose heaps may lie idle, waiting for graphs that may still be replayed, before the host waits for
// them.
constexpr uint32_t kReleasesPerWait = 64;

}  // namespace

void Arena::claim(PoolId id) {
  Pool& pool = parts_.pools.find_or_make(id);
  pool.claim(next_stamp());
  // Heaps of an earlier pool by this id serve the new one; what they hold is the pool's again.
  for (Heap* heap : heaps_.of(id)) {
    if (!parts_.may_serve(*heap, id)) continue;
    const Lock heap_lock(heap->mutex);
    parts_.pools.set_use_of(*heap);  // mutant: use-opened
    if (!heap->use.is_away) heap->count_for(&pool.bytes);
  }
}

Status Arena::begin_pool(PoolId id, std::function<bool(CUstream)> filter, bool by_owner, bool is_last) {
  if (!id.is_private()) return Status::invalid_argument("pool {0, 0} is the default pool and is always open");
  auto opened = std::make_shared<OpenPool>(id, std::move(filter));
  const ArenaLock arena_lock(parts_.mutex);
  if (Status status = parts_.pools.check_present(id); !status.ok()) return status;
  if (open_pools_.contains(id)) return pool_refused(id, "is already open");
  claim(id);
  const Pool& pool = *parts_.pools.find(id);
  opened->is_sourced = pool.source() != nullptr;
  opened->is_movable = pool.movable() != nullptr;
  opened->by_owner = by_owner;
  opened->is_last = is_last;
  open_pools_.open(std::move(opened));
  return {};
}

Status Arena::retain_pool(PoolId id) {
  if (!id.is_private()) return Status::invalid_argument("pool {0, 0} is the default pool and always exists");
  const ArenaLock lock(parts_.mutex);
  claim(id);
  return {};
}

uint64_t Arena::pool_claims(PoolId id) const {
  const ArenaLock lock(parts_.mutex);
  const Pool* pool = parts_.pools.find(id);
  return pool == nullptr ? 0 : pool->claims();
}

Status Arena::end_pool(PoolId id) {
  return open_pools_.close(id) ? Status() : pool_refused(id, "is not open");
}

Status Arena::release_pool(PoolId id) {
  Result<std::optional<Released>> last = release_claim(id);
  if (!last.ok()) return last.take_status();
  if (!last.value().has_value()) return {};
  const Released& released = *last.value();
  // Without a lock: a call in progress, which is waited for, may need one.
  if (released.lent_as.has_value()) parts_.last_rungs.remove(*released.lent_as);
  if (released.was_sourced) {
    (void)waits_.wait_if_nothing_captures();  // mutant: source-waits
    sources_.return_segments();
    return {};
  }
  // Until a wait for the device its heaps serve no other pool.
  if (released_pools_.fetch_add(1, std::memory_order_relaxed) % kReleasesPerWait == kReleasesPerWait - 1) {
    (void)waits_.wait_if_nothing_captures();
  }
  return {};
}

Status Arena::set_pool_lends(PoolId id, bool lends) {
  std::optional<LastRungs::Id> ended;
  {
    const ArenaLock lock(parts_.mutex);
    Pool* pool = parts_.pools.claimed(id);
    if (lends && pool == nullptr) return pool_refused(id, "does not exist");
    if (lends && !pool->lends()) {
      // What a source gave stays its pool's: take_lent() looks there.
      pool->lend_as(pool->source() != nullptr ? 0
                                              : parts_.last_rungs.add(Rung::kCallback, [this, id](uint64_t) {
                                                  return lend_pool(id);
                                                }));
    }
    if (!lends && pool != nullptr) ended = pool->stop_lending();
  }
  // Without a lock: a call in progress, which is waited for, may need one.
  if (ended.has_value()) parts_.last_rungs.remove(*ended);
  return {};
}

uint64_t Arena::lend_pool(PoolId id) {
  const ArenaLock lock(parts_.mutex);
  uint64_t pages = 0;
  for (Heap* heap : heaps_.of(id)) {
    const Lock heap_lock(heap->mutex);
    if (!heap->use.keeps_pages) continue;
    heap->release_empty_slabs();
    if (heap->pages().free_count() == 0) continue;
    heap->pool_released();
    pages += heap->pages().free_count();
  }
  // States that were saved before name memory that the pool may no longer have.
  if (Pool* pool = parts_.pools.claimed(id); pages > 0 && pool != nullptr) pool->outdate_states(next_stamp());
  return pages * kPageBytes;
}

Result<std::optional<Arena::Released>> Arena::release_claim(PoolId id) {
  using Last = std::optional<Released>;
  const ArenaLock lock(parts_.mutex);
  Pool* pool = parts_.pools.find(id);
  if (pool != nullptr && pool->movable() != nullptr && pool->movable()->is_moving())
    return pool_refused(id, "is being moved: release it afterwards");
  if (pool == nullptr || !pool->is_claimed()) return pool_refused(id, "does not exist");
  if (pool->claims() == 1 && open_pools_.contains(id))
    return pool_refused(id, "is still open: end it before its release");
  if (!pool->unclaim()) return Last();
  views_.on_pool_released();
  for (Heap* heap : heaps_.of(id)) {
    const Lock heap_lock(heap->mutex);
    heap->pool_released();
    heap->count_for(nullptr);
    parts_.pools.set_use_of(*heap);
  }
  if (!pool->is_away()) pool->settle();
  return Last(Released{sources_.retire(*pool), pool->stop_lending()});
}

// ---- Room for a pool that comes back

// What the device has may be in the hands of heaps, of colder pools, or of the program.
Status Arena::make_room(uint64_t bytes) {
  const auto has_room = [&] { return parts_.store->room_pages() * kPageBytes >= bytes; };
  if (has_room()) return {};
  (void)trim();
  if (has_room()) return {};
  // What a rung brings back asks no rung again.
  if (LastRungs::is_inside()) return out_of_memory(bytes);
  for (const std::shared_ptr<LastRungs::Entry>& rung : parts_.last_rungs.list()) {
    for (int round = 0; round < LastRungs::kMostRounds && !has_room(); ++round) {
      if (rung->call(bytes) == 0) break;
      (void)trim();
    }
  }
  if (has_room()) return {};
  return out_of_memory(bytes);
}

// ---- What a pool holds, counted

uint64_t Arena::pool_held_bytes(PoolId id) const {
  const ArenaLock lock(parts_.mutex);
  const Pool* pool = parts_.pools.find(id);
  return pool == nullptr ? 0 : static_cast<uint64_t>(pool->bytes.current);
}

std::vector<std::pair<PoolId, spw_stat>> Arena::pool_bytes() const {
  std::vector<std::pair<PoolId, spw_stat>> all;
  const ArenaLock lock(parts_.mutex);
  parts_.pools.for_each([&](const Pool& pool) { all.emplace_back(pool.id, pool.bytes); });
  return all;
}

void Arena::reset_peaks() {
  parts_.counters.reset_peaks();
  const ArenaLock lock(parts_.mutex);
  parts_.pools.for_each([](Pool& pool) { pool.bytes.peak = pool.bytes.current; });
  parts_.pools.forget_unneeded();
}

void Arena::reset_accumulated() {
  parts_.counters.reset_accumulated();
  const ArenaLock lock(parts_.mutex);
  parts_.pools.for_each([](Pool& pool) { pool.bytes.allocated = pool.bytes.freed = 0; });
  parts_.pools.forget_unneeded();
}

// ---- What a pool holds, saved and put back

Result<PoolState> Arena::checkpoint_pool(PoolId id) {
  const ArenaLock lock(parts_.mutex);
  const Pool* pool = parts_.pools.claimed(id);
  if (pool == nullptr) return pool_refused(id, "does not exist");
  PoolState state{id, pool->birth(), {}};
  if (pool->source() != nullptr || pool->movable() != nullptr) {
    return Status::unsupported(
        "the state of a region, or of a pool with an allocator of its own, cannot be saved");
  }
  for (Heap* heap : heaps_.of(id)) {
    const Lock heap_lock(heap->mutex);
    state.heaps[heap] = heap->save();
  }
  return state;
}

Status Arena::restore_pool(const PoolState& state, std::vector<RestoredBlock>* changes) {
  const ArenaLock lock(parts_.mutex);
  if (const Pool* pool = parts_.pools.find(state.pool); pool == nullptr || pool->birth() != state.birth) {
    return Status::invalid_state(fmt::format(
        "pool {{{}, {}}} was released or lent memory since its state was saved, or is not of device {}",
        state.pool.first, state.pool.second, parts_.device));
  }
  const std::vector<Heap*> owned = heaps_.of(state.pool);
  const AllLocked locked(owned);
  const auto has_pending_frees = [](const Heap* heap) {
    heap->mutex.assert_held();  // by `locked`
    return !heap->pending().empty();
  };
  if (std::any_of(owned.begin(), owned.end(), has_pending_frees)) {
    const ScopedContext context(*parts_.driver, parts_.context.get());
    const RelaxedCapture relaxed(*parts_.driver);
    for (Heap* heap : owned) {
      heap->mutex.assert_held();  // by `locked`
      heap->complete_finished_frees();
    }
  }
  // A heap that came later held nothing then.
  const HeapState nothing;
  const auto saved_of = [&](const Heap* heap) -> const HeapState& {
    const auto saved = state.heaps.find(heap);
    return saved == state.heaps.end() ? nothing : saved->second;
  };
  std::vector<RestoredBlock> freed;
  std::vector<RestoredBlock> allocated;
  for (Heap* heap : owned) {
    heap->mutex.assert_held();  // by `locked`
    if (Status status = heap->prepare_restore(saved_of(heap), freed, allocated); !status.ok()) return status;
  }
  for (RestoredBlock& block : freed) block.row.kind = BlockKind::kInactive;
  freed.insert(freed.end(), allocated.begin(), allocated.end());
  for (Heap* heap : owned) {
    heap->mutex.assert_held();  // by `locked`
    if (Status status = heap->restore(saved_of(heap)); !status.ok()) return status;
  }
  *changes = std::move(freed);
  return {};
}

}  // namespace spillway
