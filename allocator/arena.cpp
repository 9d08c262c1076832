#include "allocator/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "allocator/address_map.h"
#include "allocator/last_heap.h"
#include "stats/oom_report.h"

namespace spillway {
namespace {

Status no_host_memory() {
  return Status::out_of_memory("host memory for the allocator's tables has run out");
}

Status absurd_request(uint64_t bytes) {
  return Status::out_of_memory(
      fmt::format("CUDA out of memory. Tried to allocate {} bytes; no device has more than {}", bytes,
                  kLargestRequestBytes));
}

}  // namespace

Arena::Arena(std::shared_ptr<const Driver> driver, int device, const ArenaOptions& options)
    : driver_(std::move(driver)),
      device_(device),
      options_(options),
      stamp_(next_stamp()),
      events_(*driver_),
      shared_(*driver_, *this, counters_, events_),
      most_mappings_(options.most_mappings),
      limit_(options.limit_bytes) {}

Result<std::unique_ptr<Arena>> Arena::create(std::shared_ptr<const Driver> driver, int device,
                                             const ArenaOptions& options) {
  Result<DeviceProperties> properties = query_device(*driver, device);
  if (!properties.ok()) return properties.take_status();
  Result<RetainedContext> context = RetainedContext::retain(driver, device);
  if (!context.ok()) return context.take_status();
  std::unique_ptr<Arena> arena(new Arena(driver, device, options));
  arena->context_ = std::move(context.value());
  arena->properties_ = properties.value();
  Result<std::unique_ptr<PageStore>> store =
      PageStore::create(std::move(driver), device, properties.value(), options.use_vmm, arena->counters_);
  if (!store.ok()) return store.take_status();
  arena->store_ = std::move(store.value());
  arena->update_most_pages();
  (void)arena->set_soft_limit(options.soft_limit_bytes);
  return arena;
}

Arena::~Arena() {
  heaps_.clear();
  const ScopedContext context(*driver_, context_.get());
  store_.reset();
  shared_.give_back();
  events_.clear();
}

void Arena::update_most_pages() {
  const uint64_t device_bytes = store_->device_bytes();
  const uint64_t reserve = std::min(options_.reserve_bytes, device_bytes);
  const uint64_t most = std::min(limit_.load(std::memory_order_relaxed), device_bytes - reserve);
  store_->set_most_pages((most - std::min(most, shared_.held_bytes())) / kPageBytes);
}

Status Arena::set_limit(uint64_t bytes) {
  const Lock lock(mutex_);
  limit_.store(bytes, std::memory_order_relaxed);
  update_most_pages();
  return {};
}

Status Arena::set_soft_limit(uint64_t bytes) {
  const Lock lock(mutex_);
  store_->set_soft_most_pages(bytes / kPageBytes);
  return {};
}

// ---- Heaps and pools
// -------------------------------------------------------------------------------------------------

inline Heap* Arena::remembered_heap(CUstream stream) const {
  if (open_pool_count_.load(std::memory_order_acquire) != 0) return nullptr;
  const bool is_it = last_heap.stamp == stamp_.load(std::memory_order_relaxed) && last_heap.stream == stream;
  return is_it ? last_heap.heap : nullptr;
}

bool Arena::pool_for(CUstream stream, PoolId* id) {
  std::vector<Pool> open;
  {
    const Lock lock(registry_mutex_);
    open = open_pools_;
  }
  // The filters are the program's: no lock is held while they run.
  for (auto pool = open.rbegin(); pool != open.rend(); ++pool) {
    if (pool->filter == nullptr || pool->filter(stream)) {
      *id = pool->id;
      return true;
    }
  }
  return false;
}

Status Arena::begin_pool(PoolId id, std::function<bool(CUstream)> filter) {
  if (id == PoolId{}) return Status::invalid_argument("pool {0, 0} is the default pool and is always open");
  const Lock arena_lock(mutex_);
  // Heaps of an earlier pool by this id serve the new one; what they hold is the pool's again.
  for (Heap* heap : heaps()) {
    if (heap->key.pool != id) continue;
    const Lock heap_lock(heap->mutex);
    heap->pool_is_open = true;
  }
  const Lock lock(registry_mutex_);
  for (const Pool& pool : open_pools_) {
    if (pool.id == id) {
      return Status::invalid_state(fmt::format("pool {{{}, {}}} is already open", id.first, id.second));
    }
  }
  open_pools_.push_back({std::move(filter), id});
  ++pool_uses_[id];
  open_pool_count_.fetch_add(1, std::memory_order_release);
  return {};
}

Status Arena::end_pool(PoolId id) {
  const Lock lock(registry_mutex_);
  const auto found =
      std::find_if(open_pools_.begin(), open_pools_.end(), [&](const Pool& pool) { return pool.id == id; });
  if (found == open_pools_.end()) {
    return Status::invalid_state(fmt::format("pool {{{}, {}}} is not open", id.first, id.second));
  }
  open_pools_.erase(found);
  open_pool_count_.fetch_sub(1, std::memory_order_release);
  return {};
}

Status Arena::release_pool(PoolId id) {
  const Lock lock(mutex_);
  {
    const Lock registry(registry_mutex_);
    const auto uses = pool_uses_.find(id);
    if (uses == pool_uses_.end()) {
      return Status::invalid_state(fmt::format("pool {{{}, {}}} does not exist", id.first, id.second));
    }
    if (--uses->second > 0) return {};
    for (const Pool& pool : open_pools_) {
      if (pool.id == id) {
        ++uses->second;
        return Status::invalid_state(
            fmt::format("pool {{{}, {}}} is still open: end it before its release", id.first, id.second));
      }
    }
    pool_uses_.erase(uses);
  }
  for (Heap* heap : heaps()) {
    if (heap->key.pool != id) continue;
    const Lock heap_lock(heap->mutex);
    heap->pool_is_open = false;
    // Replays of a graph stamp nothing: only a wait from now on says that they are over.
    heap->stamp_all();
  }
  return {};
}

// ---- Allocate and free
// -----------------------------------------------------------------------------------------------

inline __attribute__((always_inline)) Status Arena::serve(uint64_t bytes, uint64_t requested_bytes,
                                                          CUstream stream, void** out) {
  try {
    for (;;) {
      Heap* heap = remembered_heap(stream);
      if (heap == nullptr) [[unlikely]] {
        Result<Heap*> found = find_heap(stream);
        if (!found.ok()) return found.take_status();
        heap = found.value();
      }
      Status status = bytes <= options_.small_limit_bytes
                          ? allocate_small(*heap, bytes, requested_bytes, out)
                          : allocate_large(*heap, bytes, requested_bytes, out);
      // The climb found out that its stream is gone, and another has the handle: that one has a heap of its
      // own.
      if (status.ok() || !heap->is_closed()) [[likely]]
        return status;
    }
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
}

Status Arena::allocate(size_t bytes, CUstream stream, void** out) {
  *out = nullptr;
  if (bytes == 0) return {};
  if (bytes > kLargestRequestBytes) return absurd_request(bytes);
  return serve(bytes, bytes, stream, out);
}

Status Arena::allocate_padded(size_t bytes, size_t padding, CUstream stream, void** out) {
  *out = nullptr;
  if (bytes == 0) return {};
  if (bytes > kLargestRequestBytes || padding > kLargestRequestBytes - bytes) return absurd_request(bytes);
  return serve(bytes + padding, bytes, stream, out);
}

Status Arena::climb_unlocked(std::unique_lock<BiasedMutex>& lock, Heap& heap, const Wanted& wanted,
                             Place** place) {
  lock.unlock();
  Result<Place*> climbed = climb(heap, wanted);
  if (!climbed.ok()) return climbed.take_status();
  lock = std::unique_lock<BiasedMutex>(heap.mutex, std::adopt_lock);
  *place = climbed.value();
  return {};
}

Status Arena::allocate_large(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out) {
  std::unique_lock<BiasedMutex> lock(heap.mutex);
  const Request request = heap.large_request(bytes);
  Place* place = heap.take_predicted(request);
  if (place == nullptr) {
    if (Status status = climb_unlocked(lock, heap, {request, requested_bytes}, &place); !status.ok())
      return status;
  }
  if (!heap.make_live(*place, requested_bytes)) return no_host_memory();
  *out = reinterpret_cast<void*>(place->va);
  return {};
}

Status Arena::allocate_small(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out) {
  const uint32_t size_class = kClassOfLines[bytes_to_lines(bytes)];
  std::unique_lock<BiasedMutex> lock(heap.mutex);
  *out = heap.allocate_small(size_class, requested_bytes);
  if (*out != nullptr) return {};
  const Request request = heap.slab_request(size_class);
  Place* place = heap.take_predicted(request);
  if (place == nullptr) {
    if (Status status = climb_unlocked(lock, heap, {request, requested_bytes}, &place); !status.ok())
      return status;
  }
  if (!heap.open_slab(*place, size_class)) return no_host_memory();
  *out = heap.allocate_small(size_class, requested_bytes);
  return {};
}

Status Arena::free_unknown(uint64_t va) {
  if (Arena* arena = SharedBlocks::arena_of(va)) return arena->free_shared(va);
  return Status::invalid_pointer(fmt::format("free of {:#x}: no live block begins there", va));
}

Status Arena::free(void* pointer) {
  if (pointer == nullptr) return {};
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr) [[unlikely]]
    return free_unknown(va);
  Heap& heap = *place->heap;
  const Lock lock(heap.mutex);
  return heap.free(*place, va);
}

Status Arena::record_stream(void* pointer, CUstream stream) {
  if (pointer == nullptr) return {};
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr) {
    if (Arena* arena = SharedBlocks::arena_of(va)) return arena->record_stream_shared(va, stream);
    return Status::invalid_pointer(fmt::format("record_stream of {:#x}: no live block begins there", va));
  }
  Heap& heap = *place->heap;
  const Lock lock(heap.mutex);
  return heap.record_stream(*place, va, stream);
}

Status Arena::withhold(void* pointer) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr) {
    return Status::invalid_pointer(fmt::format("free of {:#x}: no live block begins there", va));
  }
  Heap& heap = *place->heap;
  const Lock lock(heap.mutex);
  return heap.withhold(*place, va);
}

Status Arena::release_withheld(void* pointer) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr) {
    return Status::invalid_pointer(fmt::format("release of {:#x}: no block begins there", va));
  }
  Heap& heap = *place->heap;
  const Lock lock(heap.mutex);
  return heap.release_withheld(*place, va);
}

// ---- Giving back
// -----------------------------------------------------------------------------------------------------

Status Arena::trim() {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return Status(context.status().code(), context.status().text());
  const std::vector<Heap*> all = heaps();
  if (any_capturing(all)) {
    return Status::invalid_state("trim while a stream is being captured: nothing can be unmapped now");
  }
  if (Status status = synchronize(all); !status.ok()) return status;
  // Frees that were pending are stamped as they complete, after the wait; the device is idle by now, so
  // waiting again for them costs nothing.
  size_t completed = 0;
  for (Heap* heap : all) {
    const Lock heap_lock(heap->mutex);
    completed += heap->complete_finished_frees() + heap->release_empty_slabs();
  }
  if (completed > 0) {
    if (Status status = synchronize(all); !status.ok()) return status;
  }
  const Lock lock(mutex_);
  Status released = shared_.release_idle();
  update_most_pages();
  Status pages = release_vacant_pages();
  return released.ok() ? std::move(pages) : std::move(released);
}

Status Arena::synchronize(const std::vector<Heap*>& all) {
  std::vector<uint64_t> awaited;
  for (Heap* heap : all) {
    const Lock lock(heap->mutex);
    awaited.push_back(heap->timeline.begin_wait());
  }
  uint64_t shared_awaited = 0;
  {
    const Lock lock(mutex_);
    shared_awaited = shared_.begin_wait();
  }
  counters_.on_driver_call(DriverCall::kSynchronize);
  counters_.on_host_wait();
  counters_.on_sync_all_streams();
  if (Status status = driver_->check(driver_->cuCtxSynchronize(), "cuCtxSynchronize"); !status.ok())
    return status;
  for (size_t i = 0; i < all.size(); ++i) {
    const Lock lock(all[i]->mutex);
    all[i]->timeline.end_wait(awaited[i]);
  }
  const Lock lock(mutex_);
  shared_.end_wait(shared_awaited);
  update_most_pages();
  return {};
}

Status Arena::release_vacant_pages() {
  const std::vector<Heap*> all = heaps();
  // Freed since the wait: its users may still be at work.
  const auto may_go = [](const Heap& heap, PageId id) {
    return !heap.pool_is_open && heap.is_vacant(id) && heap.timeline.is_complete(heap.last_use(id));
  };
  if (!store_->uses_vmm()) {
    const AllLocked locked(all);
    return store_->release_segments(
        [&](PageId first, uint32_t count) {
          for (PageId id = first; id < first + count; ++id) {
            if (!may_go(*store_->page(id).owner.load(), id)) return false;
          }
          return true;
        },
        [&](PageId first, uint32_t count) {
          for (PageId id = first; id < first + count; ++id) store_->page(id).owner.load()->drop_vacant(id, 1);
        });
  }
  for (Heap* heap : all) {
    const Lock heap_lock(heap->mutex);
    std::vector<PageId> pages;
    heap->choose_vacant(heap->vacant_pages(), pages);
    for (const PageId id : pages) {
      if (!may_go(*heap, id)) continue;
      heap->drop_vacant(id, 1);
      if (Status status = store_->release_page(id); !status.ok()) {
        if (store_->backed(id)) heap->add_vacant(id, 1);
        return status;
      }
    }
  }
  return {};
}

// ---- Statistics
// ------------------------------------------------------------------------------------------------------

DeviceStats Arena::stats() const {
  DeviceStats stats = counters_.snapshot();
  const uint64_t limit_bytes = limit();
  stats.limit_bytes = limit_bytes > INT64_MAX ? INT64_MAX : static_cast<int64_t>(limit_bytes);
  uint64_t largest = 0;
  uint64_t metadata = 0;
  for (Heap* heap : heaps()) {
    const Lock lock(heap->mutex);
    largest = std::max(largest, heap->largest_free_bytes());
    metadata += heap->metadata_bytes();
  }
  {
    const Lock lock(mutex_);
    stats.live_mappings = store_->live_mappings() + shared_.mappings();
    stats.metadata_bytes = static_cast<int64_t>(metadata + store_->metadata_bytes());
  }
  stats.largest_free_bytes = static_cast<int64_t>(largest);
  return stats;
}

std::string Arena::oom_text(uint64_t requested_bytes) const {
  return oom_report({requested_bytes, device_, store_->most_pages() * kPageBytes + shared_held_bytes()},
                    stats());
}

}  // namespace spillway
