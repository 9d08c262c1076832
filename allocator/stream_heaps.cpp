#include "allocator/stream_heaps.h"

#include <algorithm>
#include <utility>

#include "allocator/listing.h"
#include "driver/capture.h"

namespace spillway {

uint64_t next_stamp() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

StreamHeaps::StreamHeaps(ArenaParts& parts, OpenPools& open_pools)
    : parts_(parts), open_pools_(open_pools), stamp_(next_stamp()) {}

std::vector<Heap*> StreamHeaps::all() const {
  const Lock lock(mutex_);
  std::vector<Heap*> all;
  all.reserve(heaps_.size());
  for (const std::unique_ptr<Heap>& heap : heaps_) all.push_back(heap.get());
  return all;
}

std::vector<Heap*> StreamHeaps::of(PoolId id) const {
  std::vector<Heap*> owned = all();
  std::erase_if(owned, [&](const Heap* heap) { return heap->key.pool != id; });
  return owned;
}

std::vector<CUstream> StreamHeaps::streams() const {
  const Lock lock(mutex_);
  std::vector<CUstream> all;
  for (const auto& [key, heap] : serving_) all.push_back(std::get<CUstream>(key));
  return all;
}

Result<Heap*> StreamHeaps::find(CUstream stream) {
  const uint64_t stamp = stamp_.load(std::memory_order_relaxed);
  const bool pools = open_pools_.any();
  HeapKey key;
  key.stream = stream == CU_STREAM_LEGACY ? nullptr : stream;
  if (stream == CU_STREAM_PER_THREAD) key.thread = thread_number();
  if (const auto pool = pools ? open_pools_.serving(stream) : nullptr; pool != nullptr) {
    key.pool = pool->id;
    if (pool->is_movable) note_capture(*pool, stream);
  }
  Heap* heap = nullptr;
  {
    const Lock lock(mutex_);
    const auto found = serving_.find(key_of(key));
    if (found != serving_.end()) heap = found->second;
  }
  const bool checked = ends_unseen(stream);
  if (heap != nullptr && checked) {
    const Lock lock(heap->mutex);
    if (named_has_gone(*heap)) heap = nullptr;
  }
  if (heap == nullptr) {
    Result<Heap*> opened = open(key);
    if (!opened.ok()) return opened;
    heap = opened.value();
  }
  if (!pools && !checked) last_heap = {stamp, stream, heap};
  return heap;
}

Result<Heap*> StreamHeaps::open(const HeapKey& wanted) {
  HeapKey key = wanted;
  Result<StreamIdentity> identity = identify_named(wanted.stream);
  if (!identity.ok()) {
    // With the context gone, no stream is known.
    const ScopedContext context(*parts_.driver, parts_.context.get());
    return context.status().ok() ? identity.take_status() : context.status();
  }
  static_cast<StreamIdentity&>(key) = identity.value();
  if (Status status = check_context(*parts_.driver, key.stream, parts_.context.get(), parts_.device);
      !status.ok())
    return status;
  close_unreachable(key);
  // Host memory that runs out must not come between a heap and its stream.
  std::map<StreamKey, Heap*> entry{{key_of(key), nullptr}};
  const ArenaLock arena_lock(parts_.mutex);
  {
    // Another thread may have been faster.
    const Lock lock(mutex_);
    if (const auto found = serving_.find(key_of(key)); found != serving_.end()) return found->second;
  }
  Heap* heap = reuse_released(key);
  if (heap == nullptr) heap = take_over_closed(key);
  if (heap == nullptr) {
    auto made =
        std::make_unique<Heap>(parts_.store_of(key.pool), parts_.counters, parts_.events, *parts_.driver,
                               parts_.context.get(), key, leader_, grain_of(key.pool));
    if (key.thread != 0) made->life.thread_ended = thread_has_ended();
    made->life.users_end_unseen = parts_.options.check_streams;
    const Lock lock(mutex_);
    heap = heaps_.emplace_back(std::move(made)).get();
  }
  const Lock heap_lock(heap->mutex);
  const Lock lock(mutex_);
  Pool* pool = parts_.pools.claimed(key.pool);
  heap->count_for(pool == nullptr ? nullptr : &pool->bytes);
  parts_.pools.set_use_of(*heap);  // mutant: use-new-heap
  heap->life.was_captured = key.ends_unseen && spillway::is_capturing(*parts_.driver, key.stream);
  entry.begin()->second = heap;
  serving_.merge(entry);
  return heap;
}

Heap* StreamHeaps::reuse_released(const HeapKey& key) {
  if (!key.pool.is_private()) return nullptr;
  for (Heap* heap : all()) {
    if (heap->is_closed() || static_cast<const StreamIdentity&>(heap->key) != key) continue;
    const Lock heap_lock(heap->mutex);
    if (!parts_.may_serve(*heap, key.pool)) continue;
    if (!heap->key.pool.is_private() || heap->use.keeps_pages || !heap->is_idle()) continue;
    const Lock lock(mutex_);
    serving_.erase(key_of(heap->key));
    heap->serve_pool(key.pool);
    return heap;
  }
  return nullptr;
}

Heap* StreamHeaps::take_over_closed(const HeapKey& key) {
  std::vector<Heap*> candidates;
  {
    const Lock lock(mutex_);
    candidates = closed_;
  }
  const RelaxedCapture relaxed(*parts_.driver);
  for (auto at = candidates.rbegin(); at != candidates.rend(); ++at) {
    Heap& heap = **at;
    const Lock heap_lock(heap.mutex);
    if (!may_take_over(heap, key.pool)) continue;
    heap.take_over(key);
    const Lock lock(mutex_);
    std::erase(closed_, &heap);
    return &heap;
  }
  return nullptr;
}

bool StreamHeaps::may_take_over(Heap& heap, PoolId pool) {
  if (!parts_.may_serve(heap, pool)) return false;  // mutant: source-serves
  // A pool's graphs may be replayed after its stream.
  if (heap.key.pool.is_private()) return !heap.use.keeps_pages && heap.is_idle();  // mutant: take-over-pool
  if (pool.is_private()) return false;
  if (heap.timeline.is_over()) return true;  // mutant: take-over-closed
  if (!heap.timeline.is_covered() || !parts_.context.check_alive().ok()) return false;
  parts_.counters.on_driver_call(DriverCall::kEventQuery);
  const Result<bool> done = heap.timeline.event().completed();
  return done.ok() && done.value();
}

BlockGrain StreamHeaps::grain_of(PoolId id) const {
  const SourcedPool* source = parts_.pools.source(id);
  if (source != nullptr && source->no_split) return BlockGrain::kSegment;
  return parts_.options.share_edges ? BlockGrain::kQuantum : BlockGrain::kPage;
}

void StreamHeaps::note_capture(const OpenPool& open, CUstream stream) {
  using Captured = MovablePool::Captured;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (parts_.driver->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
      status == CU_STREAM_CAPTURE_STATUS_NONE) {
    return;
  }
  const Captured captured = open.by_owner ? Captured::kForGood : Captured::kByAnother;
  const ArenaLock lock(parts_.mutex);
  MovablePool* pool = parts_.pools.movable(open.id);
  if (pool == nullptr || pool->captured >= captured) return;
  pool->captured = captured;
  for (Heap* heap : of(open.id)) {
    const Lock heap_lock(heap->mutex);
    parts_.pools.set_use_of(*heap);
  }
}

// ---- Streams that go

bool StreamHeaps::ends_unseen(CUstream stream) const {
  if (is_default_stream(stream)) return false;
  if (parts_.options.check_streams) return true;
  if (!any_ends_unseen_.load(std::memory_order_acquire)) return false;
  const Lock lock(mutex_);
  return ending_unseen_.count(stream) > 0;
}

void StreamHeaps::expect_unseen_end(CUstream stream) {
  if (is_default_stream(stream) || ends_unseen(stream)) return;
  {
    const Lock lock(mutex_);
    ending_unseen_.insert(stream);
    any_ends_unseen_.store(true, std::memory_order_release);
  }
  stamp_.store(next_stamp(), std::memory_order_relaxed);
}

Result<StreamIdentity> StreamHeaps::identify_named(CUstream stream) const {
  Result<StreamIdentity> identity = identify(*parts_.driver, stream);
  if (identity.ok()) identity->ends_unseen = ends_unseen(stream);
  return identity;
}

bool StreamHeaps::named_has_gone(Heap& heap) {
  if (heap.is_closed()) return true;
  if (is_same(*parts_.driver, heap.key)) {  // mutant: has-gone
    if (heap.key.ends_unseen)
      heap.life.was_captured = spillway::is_capturing(*parts_.driver, heap.key.stream);
    return false;
  }
  close(heap, false);
  return true;
}

bool StreamHeaps::is_in_reach(const Heap& heap) const {
  return !heap.is_closed() && !heap.key.ends_unseen;  // mutant: unseen-reach
}

bool StreamHeaps::is_capturing(Heap& heap) {
  if (heap.is_closed()) return false;
  if (heap.key.ends_unseen) return heap.life.was_captured;
  // Without a context the default streams mean nothing, and a thread that is new has none.
  const ScopedContext context(*parts_.driver, parts_.context.get());
  return !context.status().ok() || spillway::is_capturing(*parts_.driver, heap.key.stream);
}

bool StreamHeaps::any_capturing(const std::vector<Heap*>& heaps) {
  return std::any_of(heaps.begin(), heaps.end(), [&](Heap* heap) {
    const Lock lock(heap->mutex);
    return is_capturing(*heap);
  });
}

void StreamHeaps::close(Heap& heap, bool covered) {
  heap.close(covered);
  stamp_.store(next_stamp(), std::memory_order_relaxed);  // mutant: close-forgets
  const Lock lock(mutex_);
  const auto found = serving_.find(key_of(heap.key));
  if (found != serving_.end() && found->second == &heap) serving_.erase(found);
  closed_.push_back(&heap);
}

void StreamHeaps::close_unreachable(const HeapKey& opened) {
  std::vector<Heap*> gone;
  {
    const Lock lock(mutex_);
    for (const auto& [key, heap] : serving_) {
      const bool is_superseded = opened.id != 0 && heap->key.stream == opened.stream &&
                                 static_cast<const StreamIdentity&>(heap->key) != opened;
      const auto& ended = heap->life.thread_ended;
      const bool has_ended = ended != nullptr && ended->load(std::memory_order_acquire);
      if (is_superseded || has_ended) gone.push_back(heap);
    }
  }
  for (Heap* heap : gone) {
    const Lock lock(heap->mutex);
    if (!heap->is_closed()) close(*heap, false);
  }
}

Status StreamHeaps::stream_destroyed(CUstream stream) {
  if (is_default_stream(stream)) return {};
  std::vector<Heap*> owned;
  {
    const Lock lock(mutex_);
    for (const auto& [key, heap] : serving_) {
      if (std::get<CUstream>(key) == stream) owned.push_back(heap);
    }
  }
  std::vector<Heap*> used = all();
  std::erase_if(used, [&](Heap* heap) {
    const Lock lock(heap->mutex);
    return !heap->pending().is_used_by(stream);
  });
  if (owned.empty() && used.empty()) return {};
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  for (Heap* heap : owned) {
    const Lock lock(heap->mutex);
    if (named_has_gone(*heap)) continue;
    bool covered = false;
    // What a capture holds of it runs when a graph is launched, wherever that is.
    if (!spillway::is_capturing(*parts_.driver, stream)) {
      // mutant: announced-close
      const Status closed = heap->timeline.close(*parts_.driver, stream, heap->timeline.epoch(), &covered);
      if (covered) parts_.counters.on_driver_call(DriverCall::kEventRecord);
      covered = covered && closed.ok();  // mutant: announced-covered
    }
    close(*heap, covered);
  }
  if (used.empty()) return {};
  // It is too late to ask about another stream by the same handle.
  const Result<StreamIdentity> identity = identify(*parts_.driver, stream);
  for (Heap* heap : used) {
    const Lock lock(heap->mutex);
    if (identity.ok()) heap->pending().stream_goes(identity.value());
  }
  return {};
}

void StreamHeaps::clear() {
  const Lock lock(mutex_);
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    heap->mutex.assert_held();  // nobody else has the arena any more
    trace_end(*heap);
  }
  heaps_.clear();
}

}  // namespace spillway
