// Streams and their heaps: which heap serves a stream, and what becomes of it when the stream goes.
//
// A heap outlives its stream. A stream that the program announces as going (stream_destroyed) is closed by an
// event after the last of its work; one of which the driver says that it is gone, because another has its
// handle or none has, is closed without, and then only a wait of the host for the device orders its memory.
// Either way the heap goes on as a lender, and once its stream's work is over the next new stream takes it
// over, with all it holds and remembers. docs/decisions/stream-identity.md.

#include <algorithm>
#include <mutex>

#include "allocator/arena.h"
#include "allocator/last_heap.h"
#include "driver/capture.h"

namespace spillway {

uint64_t next_stamp() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::vector<Heap*> Arena::heaps() const {
  const Lock lock(registry_mutex_);
  std::vector<Heap*> all;
  all.reserve(heaps_.size());
  for (const std::unique_ptr<Heap>& heap : heaps_) all.push_back(heap.get());
  return all;
}

std::vector<CUstream> Arena::streams() const {
  const Lock lock(registry_mutex_);
  std::vector<CUstream> all;
  for (const auto& [key, heap] : serving_) all.push_back(std::get<CUstream>(key));
  return all;
}

Result<Heap*> Arena::find_heap(CUstream stream) {
  const uint64_t stamp = stamp_.load(std::memory_order_relaxed);
  const bool pools = open_pool_count_.load(std::memory_order_acquire) != 0;
  HeapKey key;
  key.stream = stream == CU_STREAM_LEGACY ? nullptr : stream;
  if (stream == CU_STREAM_PER_THREAD) key.thread = thread_number();
  if (pools) pool_for(stream, &key.pool);
  Heap* heap = nullptr;
  {
    const Lock lock(registry_mutex_);
    const auto found = serving_.find(key_of(key));
    if (found != serving_.end()) heap = found->second;
  }
  const bool checked = options_.check_streams && !is_default_stream(stream);
  if (heap != nullptr && checked) {
    const Lock lock(heap->mutex);
    if (has_gone(*heap)) heap = nullptr;
  }
  if (heap == nullptr) {
    Result<Heap*> opened = open_heap(key);
    if (!opened.ok()) return opened;
    heap = opened.value();
  }
  if (!pools && !checked) last_heap = {stamp, stream, heap};
  return heap;
}

Result<Heap*> Arena::open_heap(const HeapKey& wanted) {
  HeapKey key = wanted;
  Result<StreamIdentity> identity = identify(*driver_, wanted.stream);
  if (!identity.ok()) {
    // With the context gone, no stream is known.
    const ScopedContext context(*driver_, context_.get());
    return context.status().ok() ? identity.take_status() : context.status();
  }
  static_cast<StreamIdentity&>(key) = identity.value();
  if (Status status = check_context(*driver_, key.stream, context_.get(), device_); !status.ok())
    return status;
  close_unreachable(key);
  // Host memory that runs out must not come between a heap and its stream.
  std::map<StreamKey, Heap*> entry{{key_of(key), nullptr}};
  const ArenaLock arena_lock(mutex_);
  {
    // Another thread may have been faster.
    const Lock lock(registry_mutex_);
    if (const auto found = serving_.find(key_of(key)); found != serving_.end()) return found->second;
  }
  Heap* heap = reuse_released(key);
  if (heap == nullptr) heap = take_over_closed(key);
  if (heap == nullptr) {
    auto made = std::make_unique<Heap>(store_of(key.pool), counters_, events_, *driver_, context_.get(), key,
                                       leader_, unit_of(key.pool));
    if (key.thread != 0) made->thread_ended = thread_has_ended();
    const Lock lock(registry_mutex_);
    heap = heaps_.emplace_back(std::move(made)).get();
  }
  const Lock heap_lock(heap->mutex);
  const Lock lock(registry_mutex_);
  Pool* pool = claimed(key.pool);
  heap->count_for(pool == nullptr ? nullptr : &pool->bytes);
  set_use_of(*heap);
  entry.begin()->second = heap;
  serving_.merge(entry);
  return heap;
}

Heap* Arena::reuse_released(const HeapKey& key) {
  if (key.pool == PoolId{}) return nullptr;
  for (Heap* heap : heaps()) {
    if (heap->is_closed() || static_cast<const StreamIdentity&>(heap->key) != key) continue;
    const Lock heap_lock(heap->mutex);
    if (&heap->store() != &store_of(key.pool)) continue;
    if (heap->key.pool == PoolId{} || heap->keeps_pages || !heap->is_idle()) continue;
    const Lock lock(registry_mutex_);
    serving_.erase(key_of(heap->key));
    heap->serve_pool(key.pool);
    return heap;
  }
  return nullptr;
}

Heap* Arena::take_over_closed(const HeapKey& key) {
  std::vector<Heap*> candidates;
  {
    const Lock lock(registry_mutex_);
    candidates = closed_;
  }
  const RelaxedCapture relaxed(*driver_);
  for (auto at = candidates.rbegin(); at != candidates.rend(); ++at) {
    Heap& heap = **at;
    const Lock heap_lock(heap.mutex);
    if (!may_take_over(heap, key.pool)) continue;
    heap.take_over(key);
    const Lock lock(registry_mutex_);
    std::erase(closed_, &heap);
    return &heap;
  }
  return nullptr;
}

bool Arena::may_take_over(Heap& heap, PoolId pool) {
  if (&heap.store() != &store_of(pool)) return false;
  // A pool's graphs may be replayed after its stream.
  if (heap.key.pool != PoolId{}) return !heap.keeps_pages && heap.is_idle();
  if (pool != PoolId{}) return false;
  if (heap.timeline.is_over()) return true;
  if (!heap.timeline.is_covered()) return false;
  counters_.on_driver_call(DriverCall::kEventQuery);
  const Result<bool> done = heap.timeline.event().completed();
  return done.ok() && done.value();
}

bool Arena::has_gone(Heap& heap) {
  if (heap.is_closed()) return true;
  if (is_alive(*driver_, heap.key)) return false;
  close_heap(heap, false);
  return true;
}

void Arena::close_heap(Heap& heap, bool covered) {
  heap.close(covered);
  stamp_.store(next_stamp(), std::memory_order_relaxed);
  const Lock lock(registry_mutex_);
  const auto found = serving_.find(key_of(heap.key));
  if (found != serving_.end() && found->second == &heap) serving_.erase(found);
  closed_.push_back(&heap);
}

void Arena::close_unreachable(const HeapKey& opened) {
  std::vector<Heap*> gone;
  {
    const Lock lock(registry_mutex_);
    for (const auto& [key, heap] : serving_) {
      const bool is_superseded =
          opened.id != 0 && heap->key.stream == opened.stream && heap->key.id != opened.id;
      const bool has_ended =
          heap->thread_ended != nullptr && heap->thread_ended->load(std::memory_order_acquire);
      if (is_superseded || has_ended) gone.push_back(heap);
    }
  }
  for (Heap* heap : gone) {
    const Lock lock(heap->mutex);
    if (!heap->is_closed()) close_heap(*heap, false);
  }
}

Status Arena::stream_destroyed(CUstream stream) {
  if (is_default_stream(stream)) return {};
  std::vector<Heap*> owned;
  {
    const Lock lock(registry_mutex_);
    for (const auto& [key, heap] : serving_) {
      if (std::get<CUstream>(key) == stream) owned.push_back(heap);
    }
  }
  std::vector<Heap*> used = heaps();
  std::erase_if(used, [&](Heap* heap) {
    const Lock lock(heap->mutex);
    return !heap->is_used_by(stream);
  });
  if (owned.empty() && used.empty()) return {};
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return context.status();
  for (Heap* heap : owned) {
    const Lock lock(heap->mutex);
    if (has_gone(*heap)) continue;
    bool covered = false;
    // What a capture holds of it runs when a graph is launched, wherever that is.
    if (!is_capturing(*heap)) {
      const Status closed = heap->timeline.close(*driver_, stream, heap->timeline.epoch(), &covered);
      if (covered) counters_.on_driver_call(DriverCall::kEventRecord);
      covered = covered && closed.ok();
    }
    close_heap(*heap, covered);
  }
  if (used.empty()) return {};
  // Of another stream by the same handle it is too late to ask.
  const Result<StreamIdentity> identity = identify(*driver_, stream);
  for (Heap* heap : used) {
    const Lock lock(heap->mutex);
    if (identity.ok()) heap->stream_goes(identity.value());
  }
  return {};
}

}  // namespace spillway
