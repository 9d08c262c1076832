#include "allocator/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "allocator/address_map.h"
#include "allocator/last_heap.h"
#include "allocator/placed_blocks.h"
#include "driver/capture.h"
#include "stats/oom_report.h"

namespace spillway {
namespace {

Status no_host_memory() {
  return Status::out_of_memory("host memory for the allocator's tables has run out");
}

// No block of the device is known at this address.
Status not_ours(const char* what, uint64_t va) {
  return Status::invalid_pointer(fmt::format("{} of {:#x}: no live block begins there", what, va));
}

}  // namespace

Arena::Arena(std::shared_ptr<const Driver> driver, int device, const ArenaOptions& options)
    : driver_(std::move(driver)),
      device_(device),
      options_(options),
      stamp_(next_stamp()),
      counters_(options.tracer, device),
      events_(*driver_),
      shared_(*driver_, *this, counters_, events_),
      most_mappings_(options.most_mappings),
      limit_(options.limit_bytes),
      reserve_bytes_(options.reserve_bytes) {}

Result<std::unique_ptr<Arena>> Arena::create(std::shared_ptr<const Driver> driver, int device,
                                             const ArenaOptions& options) {
  Result<DeviceProperties> properties = query_device(*driver, device);
  if (!properties.ok()) return properties.take_status();
  Result<RetainedContext> context = RetainedContext::retain(driver, device);
  if (!context.ok()) return context.take_status();
  std::unique_ptr<Arena> arena(new Arena(driver, device, options));
  arena->context_ = std::move(context.value());
  arena->properties_ = properties.value();
  Result<std::unique_ptr<PageStore>> store = PageStore::create(
      std::move(driver), device, properties.value(), {options.use_vmm, options.exportable}, arena->counters_);
  if (!store.ok()) return store.take_status();
  arena->store_ = std::move(store.value());
  arena->update_most_pages();
  (void)arena->set_soft_limit(options.soft_limit_bytes);
  return arena;
}

Arena::~Arena() {
  if (store_ == nullptr) return;  // create() failed: the device holds nothing of the arena
  PlacedBlocks::instance().release_all(counters_);
  const ScopedContext context(*driver_, context_.get());
  const RelaxedCapture relaxed(*driver_);
  // Without its context nothing uses the memory any more.
  open_pools_.clear();
  open_pool_count_.store(0, std::memory_order_release);
  capture_pool_count_.store(0, std::memory_order_release);
  bool idle = !context.status().ok();
  try {
    idle = idle || wait_if_nothing_captures();
  } catch (const std::bad_alloc&) {
    idle = false;
  }
  if (!idle) {
    store_->leave_to_driver();
    shared_.leave_to_driver();
  }
  for_each_sourced([&](const SourcedPool& pool) {
    kArenaLock.assert_held();  // nobody else has the arena any more
    if (!idle) return;
    for (const SegmentMemory& memory :
         pool.store->take_segments([](PageId) { return true; }, [](PageId) {})) {
      pool.source.free(memory);
    }
  });
  for (const std::unique_ptr<Heap>& heap : heaps_) heap->trace_end();
  heaps_.clear();
  store_.reset();
  shared_.give_back();
  events_.clear();
}

void Arena::update_most_pages() {
  const uint64_t device_bytes = store_->device_bytes();
  const uint64_t reserve = std::min(reserve_bytes_, device_bytes);
  const uint64_t most = std::min(limit_.load(std::memory_order_relaxed), device_bytes - reserve);
  store_->set_most_pages((most - std::min(most, held_elsewhere_bytes())) / kPageBytes);
  exceeds_limit_.store(store_->page_count() > store_->most_pages(), std::memory_order_relaxed);
  if (traced_limit_ != most) counters_.trace(TraceKind::kLimit, 0, traced_limit_ = most, 0);
}

Heap::Looks Arena::looks() const {
  Heap::Looks all;
  for (Heap* heap : heaps()) {
    const Lock lock(heap->mutex);
    const Heap::Looks own = heap->looks();
    all.guessed += own.guessed;
    all.searched += own.searched;
  }
  return all;
}

uint64_t Arena::most_reserved_bytes() const {
  const ArenaLock lock(mutex_);
  return store_->most_pages() * kPageBytes + held_elsewhere_bytes();
}

Status Arena::set_limit(uint64_t bytes) {
  const ArenaLock lock(mutex_);
  limit_.store(bytes, std::memory_order_relaxed);
  update_most_pages();
  return {};
}

Status Arena::set_reserve(uint64_t bytes) {
  const ArenaLock lock(mutex_);
  reserve_bytes_ = bytes;
  update_most_pages();
  return {};
}

Status Arena::set_soft_limit(uint64_t bytes) {
  const ArenaLock lock(mutex_);
  store_->set_soft_most_pages(bytes / kPageBytes);
  return {};
}

inline Heap* Arena::remembered_heap(CUstream stream) const {
  if (open_pool_count_.load(std::memory_order_acquire) != 0) return nullptr;
  const bool is_it = last_heap.stamp == stamp_.load(std::memory_order_relaxed) && last_heap.stream == stream;
  return is_it ? last_heap.heap : nullptr;
}

// ---- Allocate and free

inline __attribute__((always_inline)) Status Arena::serve(uint64_t bytes, uint64_t requested_bytes,
                                                          CUstream stream, void** out) {
  try {
    if (exceeds_limit_.load(std::memory_order_relaxed)) [[unlikely]]
      keep_limit();
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
  if (bytes > kLargestRequestBytes) return out_of_memory(bytes);
  return serve(bytes, bytes, stream, out);
}

Status Arena::allocate_padded(size_t bytes, size_t padding, CUstream stream, void** out) {
  *out = nullptr;
  if (bytes == 0) return {};
  if (bytes > kLargestRequestBytes || padding > kLargestRequestBytes - bytes) return out_of_memory(bytes);
  return serve(bytes + padding, bytes, stream, out);
}

Status Arena::serve_miss(Heap& heap, const Request& request, uint64_t bytes, uint64_t requested_bytes,
                         TakenPlace* taken, void** out) {
  Climb tried;
  tried.requested_bytes = requested_bytes;
  {
    const Lock lock(heap.mutex);  // under which another stream may take the heap over
    tried.stream = reinterpret_cast<uint64_t>(heap.key.stream);
  }
  Result<TakenPlace> climbed = climb(heap, request, tried);
  if (!climbed.ok()) return climbed.take_status();
  *taken = std::move(climbed.value());
  Status status;
  if (taken->place == nullptr) status = place_outside(heap, bytes, tried, out);
  climbs_.add(tried);
  return status;
}

Status Arena::allocate_large(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out) {
  Request request;
  {
    const Lock lock(heap.mutex);
    request = heap.large_request(bytes);
    if (Place* place = heap.take_predicted(request); place != nullptr) [[likely]]
      return hand_out(heap, *place, requested_bytes, out);
  }
  TakenPlace taken;
  Status status = serve_miss(heap, request, bytes, requested_bytes, &taken, out);
  if (!status.ok() || taken.place == nullptr) return status;
  Heap& serving = *taken.place->heap;
  serving.mutex.assert_held();  // by `taken`
  return hand_out(serving, *taken.place, requested_bytes, out);
}

Status Arena::hand_out(Heap& heap, Place& place, uint64_t requested_bytes, void** out) {
  if (!heap.make_live(place, requested_bytes)) return no_host_memory();
  *out = reinterpret_cast<void*>(place.va);
  return {};
}

Status Arena::allocate_small(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out) {
  const uint32_t size_class = kClassOfLines[bytes_to_lines(bytes)];
  Request request;
  {
    const Lock lock(heap.mutex);
    *out = heap.allocate_small(size_class, requested_bytes);
    if (*out != nullptr) return {};
    if (!heap.has_no_slabs()) {
      request = heap.slab_request(size_class);
      if (Place* place = heap.take_predicted(request); place != nullptr)
        return hand_out_slot(heap, *place, size_class, requested_bytes, out);
    }
  }
  if (heap.has_no_slabs()) return allocate_large(heap, bytes, requested_bytes, out);
  TakenPlace taken;
  Status status = serve_miss(heap, request, bytes, requested_bytes, &taken, out);
  if (!status.ok() || taken.place == nullptr) return status;
  Heap& serving = *taken.place->heap;
  serving.mutex.assert_held();  // by `taken`
  return hand_out_slot(serving, *taken.place, size_class, requested_bytes, out);
}

Status Arena::hand_out_slot(Heap& heap, Place& place, uint32_t size_class, uint64_t requested_bytes,
                            void** out) {
  if (place.slab == nullptr && !heap.open_slab(place, size_class)) return no_host_memory();
  *out = heap.allocate_slot(size_class, requested_bytes);
  return {};
}

Status Arena::free_unknown(uint64_t va) {
  if (Arena* arena = SharedBlocks::arena_of(va)) return arena->free_shared(va);
  return PlacedBlocks::instance().free(va, not_ours("free", va));
}

Status Arena::record_stream_unknown(uint64_t va, CUstream stream) {
  if (Arena* arena = SharedBlocks::arena_of(va)) return arena->record_stream_shared(va, stream);
  return PlacedBlocks::instance().record_stream(va, stream, not_ours("record_stream", va));
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

int Arena::device_of(const void* pointer) {
  const Place* place = AddressMap::instance().find(reinterpret_cast<uint64_t>(pointer));
  return place == nullptr ? -1 : place->heap->device();
}

Status Arena::free_on(void* pointer, CUstream stream) {
  if (Place* place = AddressMap::instance().find(reinterpret_cast<uint64_t>(pointer)); place != nullptr) {
    Heap& heap = *place->heap;
    const Lock lock(heap.mutex);
    const CUstream wanted = stream == CU_STREAM_LEGACY ? nullptr : stream;
    const uint64_t thread = stream == CU_STREAM_PER_THREAD ? thread_number() : 0;
    if (heap.key.stream == wanted && heap.key.thread == thread)
      return heap.free(*place, reinterpret_cast<uint64_t>(pointer));
  }
  if (Status status = record_stream(pointer, stream); !status.ok()) return status;
  return free(pointer);
}

Status Arena::record_stream(void* pointer, CUstream stream) {
  if (pointer == nullptr) return {};
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr) return record_stream_unknown(va, stream);
  Heap& heap = *place->heap;
  const Lock lock(heap.mutex);
  return heap.record_stream(*place, va, stream);
}

Status Arena::withhold(void* pointer, uint64_t* bytes) {
  if (bytes != nullptr) *bytes = 0;
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr) return PlacedBlocks::instance().withhold(va, not_ours("free", va));
  Heap& heap = *place->heap;
  const Lock lock(heap.mutex);
  return heap.withhold(*place, va, bytes);
}

Status Arena::release_withheld(void* pointer) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr) return PlacedBlocks::instance().release_withheld(va, not_ours("release", va));
  Heap& heap = *place->heap;
  const Lock lock(heap.mutex);
  return heap.release_withheld(*place, va);
}

// ---- Statistics

uint64_t Arena::largest_free_bytes() const {
  struct Server {
    FreeSpace space;
    bool lends = false;
    bool has_views = false;
  };
  std::vector<Server> servers;
  uint64_t lent_pages = 0;  // vacant, of heaps that let others have them
  for (Heap* heap : heaps()) {
    const Lock lock(heap->mutex);
    if (heap->counters.is_away()) continue;
    const Server server{heap->free_space(), !heap->keeps_pages,
                        &heap->store() == store_.get() && store_->uses_vmm()};
    if (server.lends && server.has_views) lent_pages += server.space.vacant_pages;
    // A pool that was released serves nobody, and the next heap to be opened has another one's pages only.
    const bool serves = !heap->is_closed() && (heap->key.pool == PoolId{} || heap->pool_bytes() != nullptr);
    if (serves) servers.push_back(server);
  }
  RequestLimits limits{true, options_.share_edges, options_.small_limit_bytes};
  uint64_t largest = largest_request_bytes({}, lent_pages, limits);
  for (const Server& server : servers) {
    limits.views = server.has_views;
    const uint64_t own = server.lends ? server.space.vacant_pages : 0;
    const uint64_t others = server.has_views ? lent_pages - own : 0;
    largest = std::max(largest, largest_request_bytes(server.space, others, limits));
  }
  return largest;
}

DeviceStats Arena::stats() const {
  DeviceStats stats = counters_.snapshot();
  const uint64_t limit_bytes = limit();
  stats.limit_bytes = limit_bytes > INT64_MAX ? INT64_MAX : static_cast<int64_t>(limit_bytes);
  uint64_t metadata = 0;
  for (Heap* heap : heaps()) {
    const Lock lock(heap->mutex);
    metadata += heap->metadata_bytes();
  }
  {
    const ArenaLock lock(mutex_);
    stats.live_mappings = store_->live_mappings() + shared_.mappings();
    stats.metadata_bytes = static_cast<int64_t>(metadata + store_->metadata_bytes());
  }
  stats.largest_free_bytes = static_cast<int64_t>(largest_free_bytes());
  return stats;
}

std::optional<uint64_t> Arena::device_free_bytes() const {
  const ScopedContext context(*driver_, context_.get());
  size_t free_bytes = 0;
  size_t device_bytes = 0;
  if (!context.status().ok() || driver_->cuMemGetInfo(&free_bytes, &device_bytes) != CUDA_SUCCESS)
    return std::nullopt;
  return free_bytes;
}

std::string Arena::oom_text(uint64_t requested_bytes, const Climb& tried) const {
  OomRequest request{requested_bytes, device_, most_reserved_bytes(), 0, 0, {}, tried};
  if (const std::optional<uint64_t> free_bytes = device_free_bytes()) {
    request.device_bytes = properties_.total_bytes;
    request.device_free_bytes = *free_bytes;
  }
  {
    const ArenaLock lock(mutex_);
    for (const auto& [id, pool] : pools_) {
      if (pool->movable == nullptr) request.pools.push_back({id.first, id.second, pool->bytes});
    }
  }
  return oom_report(request, stats());
}

}  // namespace spillway
