// Private pools: which of them serves a stream, and what becomes of their heaps when they end. Graphs that
// were captured over a pool's memory are replayed on any stream, and stamp nothing: only a wait for the
// context after the pool's release says that they are over.

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "allocator/arena.h"
#include "allocator/last_heap.h"
#include "driver/capture.h"
#include "driver/context.h"

namespace spillway {
namespace {

// Pools whose heaps may lie idle, waiting for graphs that may still be replayed, before the host waits for
// them.
constexpr uint32_t kReleasesPerWait = 64;

thread_local int filters_inside = 0;  // calls of filters that this thread is in

}  // namespace

uint64_t Arena::pool_birth(PoolId id) const {
  const Lock lock(registry_mutex_);
  const auto found = pool_claims_.find(id);
  return found == pool_claims_.end() ? 0 : found->second.birth;
}

bool Arena::pool_for(CUstream stream, PoolId* id) {
  struct Asked {
    Asked() { ++filters_inside; }
    ~Asked() {
      --filters_inside;
      for (const std::shared_ptr<Pool>& pool : pools) pool->askers.fetch_sub(1, std::memory_order_release);
    }
    std::vector<std::shared_ptr<Pool>> pools;
  } asked;
  {
    const Lock lock(registry_mutex_);
    asked.pools = open_pools_;
    for (const std::shared_ptr<Pool>& pool : asked.pools) {
      pool->askers.fetch_add(1, std::memory_order_relaxed);
    }
  }
  // The filters are the program's: no lock is held while they run.
  const auto found =
      std::find_if(asked.pools.rbegin(), asked.pools.rend(), [&](const std::shared_ptr<Pool>& pool) {
        if (pool->is_sourced && is_inside_source()) return false;
        return pool->filter == nullptr || pool->filter(stream);
      });
  if (found == asked.pools.rend()) return false;
  *id = (*found)->id;
  if ((*found)->use.load(std::memory_order_relaxed) == Pool::Use::kUnknown) note_use(**found, stream);
  if ((*found)->is_movable) note_capture(*id, stream, (*found)->by_owner);
  return true;
}

void Arena::note_use(Pool& pool, CUstream stream) {
  const Pool::Use use = use_of(pool, stream);
  const Lock lock(registry_mutex_);
  const bool is_open = std::any_of(open_pools_.begin(), open_pools_.end(),
                                   [&](const std::shared_ptr<Pool>& open) { return open.get() == &pool; });
  if (!is_open || pool.use != Pool::Use::kUnknown) return;
  pool.use = use;
  if (use == Pool::Use::kOther) capture_pool_count_.fetch_sub(1, std::memory_order_release);
}

Arena::Pool::Use Arena::use_of(const Pool& pool, CUstream stream) {
  // Without a filter every stream is accepted, before a capture and in it.
  if (pool.filter == nullptr) return Pool::Use::kCapture;
  // A thread that has not used the device yet has no context.
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok() || spillway::is_capturing(*driver_, stream)) return Pool::Use::kCapture;
  const RelaxedCapture relaxed(*driver_);
  CUstream idle = nullptr;
  if (driver_->cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return Pool::Use::kCapture;
  const bool is_accepted = pool.filter(idle);
  (void)driver_->cuStreamDestroy(idle);
  return is_accepted ? Pool::Use::kOther : Pool::Use::kCapture;
}

void Arena::claim(PoolId id) {
  spw_stat& bytes = pool_bytes_[id];
  {
    const Lock lock(registry_mutex_);
    PoolClaims& claims = pool_claims_[id];
    if (claims.count++ == 0) claims.birth = next_stamp();
  }
  // Heaps of an earlier pool by this id serve the new one; what they hold is the pool's again.
  for (Heap* heap : heaps_of(id)) {
    if (&heap->store() != &store_of(id)) continue;
    const Lock heap_lock(heap->mutex);
    set_use_of(*heap, true);
    if (!heap->counters.is_away()) heap->count_for(&bytes);
  }
}

std::vector<Heap*> Arena::heaps_of(PoolId id) const {
  std::vector<Heap*> owned = heaps();
  std::erase_if(owned, [&](const Heap* heap) { return heap->key.pool != id; });
  return owned;
}

Status Arena::begin_pool(PoolId id, std::function<bool(CUstream)> filter, bool by_owner, bool is_last) {
  if (id == PoolId{}) return Status::invalid_argument("pool {0, 0} is the default pool and is always open");
  const ArenaLock arena_lock(mutex_);
  if (Status status = check_present(id); !status.ok()) return status;
  {
    const Lock lock(registry_mutex_);
    for (const std::shared_ptr<Pool>& pool : open_pools_) {
      if (pool->id == id) {
        return Status::invalid_state(fmt::format("pool {{{}, {}}} is already open", id.first, id.second));
      }
    }
  }
  claim(id);
  const Lock lock(registry_mutex_);
  auto pool = std::make_shared<Pool>(id, std::move(filter));
  pool->is_sourced = sourced_.count(id) != 0;
  pool->is_movable = movable(id) != nullptr;
  pool->by_owner = by_owner;
  pool->is_last = is_last;
  pool->use = is_last ? Pool::Use::kOther : Pool::Use::kUnknown;
  const auto behind = std::find_if(open_pools_.begin(), open_pools_.end(),
                                   [](const std::shared_ptr<Pool>& other) { return !other->is_last; });
  open_pools_.insert(is_last ? behind : open_pools_.end(), std::move(pool));
  open_pool_count_.fetch_add(1, std::memory_order_release);
  if (!is_last) capture_pool_count_.fetch_add(1, std::memory_order_release);
  return {};
}

Status Arena::retain_pool(PoolId id) {
  if (id == PoolId{}) return Status::invalid_argument("pool {0, 0} is the default pool and always exists");
  const ArenaLock lock(mutex_);
  claim(id);
  return {};
}

uint64_t Arena::pool_claims(PoolId id) {
  const Lock lock(registry_mutex_);
  const auto found = pool_claims_.find(id);
  return found == pool_claims_.end() ? 0 : found->second.count;
}

Status Arena::end_pool(PoolId id) {
  std::shared_ptr<Pool> ended;
  {
    const Lock lock(registry_mutex_);
    const auto found = std::find_if(open_pools_.begin(), open_pools_.end(),
                                    [&](const std::shared_ptr<Pool>& pool) { return pool->id == id; });
    if (found == open_pools_.end()) {
      return Status::invalid_state(fmt::format("pool {{{}, {}}} is not open", id.first, id.second));
    }
    ended = std::move(*found);
    open_pools_.erase(found);
    open_pool_count_.fetch_sub(1, std::memory_order_release);
    if (ended->use != Pool::Use::kOther) capture_pool_count_.fetch_sub(1, std::memory_order_release);
  }
  // What the filter uses is the program's again. Inside a filter, waiting for it would be waiting for
  // oneself.
  while (filters_inside == 0 && ended->askers.load(std::memory_order_acquire) != 0) {
    std::this_thread::yield();
  }
  return {};
}

Status Arena::release_pool(PoolId id) {
  bool is_last = false;
  bool was_sourced = false;
  if (Status status = release_claim(id, &is_last, &was_sourced); !status.ok() || !is_last) return status;
  stop_lending(id);
  if (was_sourced) {
    (void)wait_if_nothing_captures();
    return_segments();
    return {};
  }
  // Until a wait for the device its heaps serve no other pool.
  if (released_pools_.fetch_add(1, std::memory_order_relaxed) % kReleasesPerWait == kReleasesPerWait - 1) {
    (void)wait_if_nothing_captures();
  }
  return {};
}

Status Arena::set_pool_lends(PoolId id, bool lends) {
  if (!lends) {
    stop_lending(id);
    return {};
  }
  const ArenaLock arena_lock(mutex_);
  const Lock lock(registry_mutex_);
  if (pool_claims_.count(id) == 0) return pool_refused(id, "does not exist");
  if (lending_pools_.count(id) > 0) return {};
  // What a source gave stays its pool's: take_lent() looks there.
  lending_pools_[id] = sourced_.count(id) > 0
                           ? 0
                           : last_rungs_.add(Rung::kCallback, [this, id](uint64_t) { return lend_pool(id); });
  return {};
}

void Arena::stop_lending(PoolId id) {
  LastRungs::Id rung = 0;
  {
    const Lock lock(registry_mutex_);
    const auto found = lending_pools_.find(id);
    if (found == lending_pools_.end()) return;
    rung = found->second;
    lending_pools_.erase(found);
  }
  // Without the lock: a call in progress, which is waited for, may need it.
  last_rungs_.remove(rung);
}

TakenPlace Arena::take_lent(Heap& heap, const Request& request) {
  if (!may_ask_last_rungs(heap)) return {};
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return {};
  const RelaxedCapture relaxed(*driver_);
  const ArenaLock lock(mutex_);
  if (heap.key.pool != PoolId{}) return {};
  std::vector<PoolId> pools;
  {
    const Lock registry(registry_mutex_);
    for (const auto& [id, rung] : lending_pools_) pools.push_back(id);
  }
  for (const PoolId id : pools) {
    if (sourced_.count(id) == 0) continue;
    for (Heap* lender : heaps_of(id)) {
      const bool is_of_stream = static_cast<const StreamIdentity&>(lender->key) == heap.key;
      if (!is_of_stream || lender->is_closed() || &lender->store() != &store_of(id)) continue;
      HeapLock lender_lock(lender->mutex);
      Place* place = take_free(*lender, lender->same_request(request));
      if (place == nullptr) continue;
      return {place, std::move(lender_lock)};
    }
  }
  return {};
}

uint64_t Arena::lend_pool(PoolId id) {
  const ArenaLock lock(mutex_);
  uint64_t pages = 0;
  for (Heap* heap : heaps_of(id)) {
    const Lock heap_lock(heap->mutex);
    if (!heap->keeps_pages) continue;
    heap->release_empty_slabs();
    if (heap->vacant_pages() == 0) continue;
    heap->pool_released();
    pages += heap->vacant_pages();
  }
  // States that were saved before name memory that the pool may no longer have.
  const Lock registry(registry_mutex_);
  if (const auto claims = pool_claims_.find(id); pages > 0 && claims != pool_claims_.end()) {
    claims->second.birth = next_stamp();
  }
  return pages * kPageBytes;
}

Status Arena::release_claim(PoolId id, bool* is_last, bool* was_sourced) {
  const ArenaLock arena_lock(mutex_);
  if (const MovablePool* pool = movable(id); pool != nullptr && pool->is_moving) {
    return Status::invalid_state(
        fmt::format("pool {{{}, {}}} is being moved: release it afterwards", id.first, id.second));
  }
  {
    const Lock registry(registry_mutex_);
    const auto claims = pool_claims_.find(id);
    if (claims == pool_claims_.end()) return pool_refused(id, "does not exist");
    if (--claims->second.count > 0) return {};
    for (const std::shared_ptr<Pool>& pool : open_pools_) {
      if (pool->id == id) {
        ++claims->second.count;
        return Status::invalid_state(
            fmt::format("pool {{{}, {}}} is still open: end it before its release", id.first, id.second));
      }
    }
    pool_claims_.erase(claims);
    *is_last = true;
  }
  // Views that only its graphs needed may go: the bound that was raised for them is tried again.
  most_mappings_ = options_.most_mappings;
  MovablePool* pool = movable(id);
  if (pool != nullptr) pool->is_released = true;
  for (Heap* heap : heaps_of(id)) {
    const Lock heap_lock(heap->mutex);
    heap->pool_released();
    heap->count_for(nullptr);
    set_use_of(*heap, false);
  }
  if (pool != nullptr && !pool->is_away) movable_.erase(id);
  *was_sourced = retire_source(id);
  return {};
}

// ---- What a pool holds, counted

std::vector<std::pair<PoolId, spw_stat>> Arena::pool_bytes() const {
  const ArenaLock lock(mutex_);
  return {pool_bytes_.begin(), pool_bytes_.end()};
}

void Arena::reset_peaks() {
  counters_.reset_peaks();
  const ArenaLock lock(mutex_);
  for (auto& [id, bytes] : pool_bytes_) bytes.peak = bytes.current;
  forget_pool_bytes();
}

void Arena::reset_accumulated() {
  counters_.reset_accumulated();
  const ArenaLock lock(mutex_);
  for (auto& [id, bytes] : pool_bytes_) bytes.allocated = bytes.freed = 0;
  forget_pool_bytes();
}

void Arena::forget_pool_bytes() {
  std::erase_if(pool_bytes_, [&](const auto& pool) {
    const auto& [id, bytes] = pool;
    return pool_birth(id) == 0 && bytes.peak == 0 && bytes.allocated == 0 && bytes.freed == 0;
  });
}

// ---- What a pool holds, saved and put back

Result<PoolState> Arena::checkpoint_pool(PoolId id) {
  const ArenaLock lock(mutex_);
  PoolState state{id, pool_birth(id), {}};
  if (state.birth == 0) return pool_refused(id, "does not exist");
  if (sourced_.count(id) != 0 || movable(id) != nullptr) {
    return Status::unsupported(
        "the state of a region, or of a pool with an allocator of its own, cannot be saved");
  }
  for (Heap* heap : heaps_of(id)) {
    const Lock heap_lock(heap->mutex);
    state.heaps[heap] = heap->save();
  }
  return state;
}

Status Arena::restore_pool(const PoolState& state, std::vector<RestoredBlock>* changes) {
  const ArenaLock lock(mutex_);
  if (pool_birth(state.pool) != state.birth) {
    return Status::invalid_state(fmt::format(
        "pool {{{}, {}}} was released or lent memory since its state was saved, or is not of device {}",
        state.pool.first, state.pool.second, device_));
  }
  const std::vector<Heap*> owned = heaps_of(state.pool);
  const AllLocked locked(owned);
  const auto has_pending_frees = [](const Heap* heap) {
    heap->mutex.assert_held();  // by `locked`
    return heap->has_pending_frees();
  };
  if (std::any_of(owned.begin(), owned.end(), has_pending_frees)) {
    const ScopedContext context(*driver_, context_.get());
    const RelaxedCapture relaxed(*driver_);
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
