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

Pool* Arena::find_pool(PoolId id) const {
  const auto found = pools_.find(id);
  return found == pools_.end() ? nullptr : found->second.get();
}

Pool* Arena::claimed(PoolId id) const {
  Pool* pool = find_pool(id);
  return pool != nullptr && pool->is_claimed() ? pool : nullptr;
}

bool Arena::is_open(PoolId id) const {
  const Lock lock(registry_mutex_);
  return std::any_of(open_pools_.begin(), open_pools_.end(),
                     [&](const std::shared_ptr<OpenPool>& pool) { return pool->id == id; });
}

bool Arena::pool_for(CUstream stream, PoolId* id) {
  struct Asked {
    Asked() { ++filters_inside; }
    ~Asked() {
      --filters_inside;
      for (const std::shared_ptr<OpenPool>& pool : pools)
        pool->askers.fetch_sub(1, std::memory_order_release);
    }
    std::vector<std::shared_ptr<OpenPool>> pools;
  } asked;
  {
    const Lock lock(registry_mutex_);
    asked.pools = open_pools_;
    for (const std::shared_ptr<OpenPool>& pool : asked.pools) {
      pool->askers.fetch_add(1, std::memory_order_relaxed);
    }
  }
  // The filters are the program's: no lock is held while they run.
  const auto found =
      std::find_if(asked.pools.rbegin(), asked.pools.rend(), [&](const std::shared_ptr<OpenPool>& pool) {
        if (pool->is_sourced && is_inside_source()) return false;
        return pool->filter == nullptr || pool->filter(stream);
      });
  if (found == asked.pools.rend()) return false;
  *id = (*found)->id;
  if ((*found)->use.load(std::memory_order_relaxed) == OpenPool::Use::kUnknown) note_use(**found, stream);
  if ((*found)->is_movable) note_capture(*id, stream, (*found)->by_owner);
  return true;
}

void Arena::note_use(OpenPool& pool, CUstream stream) {
  const OpenPool::Use use = use_of(pool, stream);
  const Lock lock(registry_mutex_);
  const bool is_open =
      std::any_of(open_pools_.begin(), open_pools_.end(),
                  [&](const std::shared_ptr<OpenPool>& open) { return open.get() == &pool; });
  if (!is_open || pool.use != OpenPool::Use::kUnknown) return;
  pool.use = use;
  if (use == OpenPool::Use::kOther) capture_pool_count_.fetch_sub(1, std::memory_order_release);
}

OpenPool::Use Arena::use_of(const OpenPool& pool, CUstream stream) {
  // Without a filter every stream is accepted, before a capture and in it.
  if (pool.filter == nullptr) return OpenPool::Use::kCapture;
  // A thread that has not used the device yet has no context.
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok() || spillway::is_capturing(*driver_, stream)) return OpenPool::Use::kCapture;
  const RelaxedCapture relaxed(*driver_);
  CUstream idle = nullptr;
  if (driver_->cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return OpenPool::Use::kCapture;
  const bool is_accepted = pool.filter(idle);
  (void)driver_->cuStreamDestroy(idle);
  return is_accepted ? OpenPool::Use::kOther : OpenPool::Use::kCapture;
}

void Arena::claim(PoolId id) {
  Pool* pool = find_pool(id);
  if (pool == nullptr) pool = pools_.emplace(id, std::make_unique<Pool>(id)).first->second.get();
  if (pool->claims++ == 0) pool->birth = next_stamp();
  // Heaps of an earlier pool by this id serve the new one; what they hold is the pool's again.
  for (Heap* heap : heaps_of(id)) {
    if (&heap->store() != &store_of(id)) continue;
    const Lock heap_lock(heap->mutex);
    set_use_of(*heap);
    if (!heap->counters.is_away()) heap->count_for(&pool->bytes);
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
  if (is_open(id)) return pool_refused(id, "is already open");
  claim(id);
  const Lock lock(registry_mutex_);
  auto pool = std::make_shared<OpenPool>(id, std::move(filter));
  pool->is_sourced = find_pool(id)->source != nullptr;
  pool->is_movable = find_pool(id)->movable != nullptr;
  pool->by_owner = by_owner;
  pool->is_last = is_last;
  pool->use = is_last ? OpenPool::Use::kOther : OpenPool::Use::kUnknown;
  const auto behind = std::find_if(open_pools_.begin(), open_pools_.end(),
                                   [](const std::shared_ptr<OpenPool>& other) { return !other->is_last; });
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

uint64_t Arena::pool_claims(PoolId id) const {
  const ArenaLock lock(mutex_);
  const Pool* pool = find_pool(id);
  return pool == nullptr ? 0 : pool->claims;
}

Status Arena::end_pool(PoolId id) {
  std::shared_ptr<OpenPool> ended;
  {
    const Lock lock(registry_mutex_);
    const auto found = std::find_if(open_pools_.begin(), open_pools_.end(),
                                    [&](const std::shared_ptr<OpenPool>& pool) { return pool->id == id; });
    if (found == open_pools_.end()) return pool_refused(id, "is not open");
    ended = std::move(*found);
    open_pools_.erase(found);
    open_pool_count_.fetch_sub(1, std::memory_order_release);
    if (ended->use != OpenPool::Use::kOther) capture_pool_count_.fetch_sub(1, std::memory_order_release);
  }
  // What the filter uses is the program's again. Inside a filter, waiting for it would be waiting for
  // oneself.
  while (filters_inside == 0 && ended->askers.load(std::memory_order_acquire) != 0) {
    std::this_thread::yield();
  }
  return {};
}

Status Arena::release_pool(PoolId id) {
  Result<std::optional<Released>> last = release_claim(id);
  if (!last.ok()) return last.take_status();
  if (!last.value().has_value()) return {};
  const Released& released = *last.value();
  // Without a lock: a call in progress, which is waited for, may need one.
  if (released.lent_as.has_value()) last_rungs_.remove(*released.lent_as);
  if (released.was_sourced) {
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
  std::optional<LastRungs::Id> ended;
  {
    const ArenaLock lock(mutex_);
    Pool* pool = claimed(id);
    if (lends && pool == nullptr) return pool_refused(id, "does not exist");
    if (lends && !pool->lends_as.has_value()) {
      // What a source gave stays its pool's: take_lent() looks there.
      pool->lends_as = pool->source != nullptr
                           ? 0
                           : last_rungs_.add(Rung::kCallback, [this, id](uint64_t) { return lend_pool(id); });
    }
    if (!lends && pool != nullptr) ended = std::exchange(pool->lends_as, std::nullopt);
  }
  // Without a lock: a call in progress, which is waited for, may need one.
  if (ended.has_value()) last_rungs_.remove(*ended);
  return {};
}

TakenPlace Arena::take_lent(Heap& heap, const Request& request) {
  if (!may_ask_last_rungs(heap)) return {};
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return {};
  const RelaxedCapture relaxed(*driver_);
  const ArenaLock lock(mutex_);
  if (heap.key.pool != PoolId{}) return {};
  for (const auto& [id, pool] : pools_) {
    if (pool->source == nullptr || !pool->lends_as.has_value()) continue;
    for (Heap* lender : heaps_of(id)) {
      const bool is_of_stream = static_cast<const StreamIdentity&>(lender->key) == heap.key;
      if (!is_of_stream || lender->is_closed() || &lender->store() != pool->source->store.get()) continue;
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
  if (Pool* pool = claimed(id); pages > 0 && pool != nullptr) pool->birth = next_stamp();
  return pages * kPageBytes;
}

Result<std::optional<Arena::Released>> Arena::release_claim(PoolId id) {
  using Last = std::optional<Released>;
  const ArenaLock lock(mutex_);
  Pool* pool = find_pool(id);
  if (pool != nullptr && pool->movable != nullptr && pool->movable->is_moving())
    return pool_refused(id, "is being moved: release it afterwards");
  if (pool == nullptr || !pool->is_claimed()) return pool_refused(id, "does not exist");
  if (pool->claims == 1 && is_open(id)) return pool_refused(id, "is still open: end it before its release");
  if (--pool->claims > 0) return Last();
  pool->birth = 0;
  // Views that only its graphs needed may go: the bound that was raised for them is tried again.
  most_mappings_ = options_.most_mappings;
  if (pool->movable != nullptr) pool->movable->is_released = true;
  for (Heap* heap : heaps_of(id)) {
    const Lock heap_lock(heap->mutex);
    heap->pool_released();
    heap->count_for(nullptr);
    set_use_of(*heap);
  }
  if (pool->movable != nullptr && !pool->movable->is_away()) pool->movable.reset();
  return Last(Released{retire_source(*pool), std::exchange(pool->lends_as, std::nullopt)});
}

// ---- What a pool holds, counted

std::vector<std::pair<PoolId, spw_stat>> Arena::pool_bytes() const {
  std::vector<std::pair<PoolId, spw_stat>> all;
  const ArenaLock lock(mutex_);
  for (const auto& [id, pool] : pools_) all.emplace_back(id, pool->bytes);
  return all;
}

void Arena::reset_peaks() {
  counters_.reset_peaks();
  const ArenaLock lock(mutex_);
  for (const auto& [id, pool] : pools_) pool->bytes.peak = pool->bytes.current;
  forget_pools();
}

void Arena::reset_accumulated() {
  counters_.reset_accumulated();
  const ArenaLock lock(mutex_);
  for (const auto& [id, pool] : pools_) pool->bytes.allocated = pool->bytes.freed = 0;
  forget_pools();
}

void Arena::forget_pools() {
  std::erase_if(pools_, [](const auto& pool) { return pool.second->is_forgotten(); });
}

// ---- What a pool holds, saved and put back

Result<PoolState> Arena::checkpoint_pool(PoolId id) {
  const ArenaLock lock(mutex_);
  const Pool* pool = claimed(id);
  if (pool == nullptr) return pool_refused(id, "does not exist");
  PoolState state{id, pool->birth, {}};
  if (pool->source != nullptr || pool->movable != nullptr) {
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
  if (const Pool* pool = find_pool(state.pool); pool == nullptr || pool->birth != state.birth) {
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
