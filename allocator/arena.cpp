#include "allocator/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "allocator/address_map.h"
#include "allocator/host_blocks.h"
#include "allocator/last_heap.h"
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
    : parts_(std::move(driver), device, options, *this),
      mover_(parts_, open_pools_, heaps_, waits_,
             {[this](uint64_t bytes) { return make_room(bytes); }, [this] { return trim(); }}) {}

Result<std::unique_ptr<Arena>> Arena::create(std::shared_ptr<const Driver> driver, int device,
                                             const ArenaOptions& options) {
  Result<DeviceProperties> properties = query_device(*driver, device);
  if (!properties.ok()) return properties.take_status();
  Result<RetainedContext> context = RetainedContext::retain(driver, device);
  if (!context.ok()) return context.take_status();
  std::unique_ptr<Arena> arena(new Arena(driver, device, options));
  ArenaParts& parts = arena->parts_;
  parts.context = std::move(context.value());
  parts.properties = properties.value();
  Result<std::unique_ptr<PageStore>> store = PageStore::create(
      std::move(driver), device, properties.value(), {options.use_vmm, options.exportable}, parts.counters);
  if (!store.ok()) return store.take_status();
  parts.store = std::move(store.value());
  parts.update_most_pages();
  (void)arena->set_soft_limit(options.soft_limit_bytes);
  (void)arena->set_slack(options.slack_percent);
  (void)arena->set_headroom(options.headroom_bytes);
  return arena;
}

Arena::~Arena() {
  if (parts_.store == nullptr) return;  // create() failed: the device holds nothing of the arena
  HostBlocks::instance().release_all(parts_.counters);
  const ScopedContext context(*parts_.driver, parts_.context.get());
  const RelaxedCapture relaxed(*parts_.driver);
  open_pools_.clear();
  // Without its context nothing uses the memory any more.
  bool idle = !context.status().ok();
  try {
    idle = idle || waits_.wait_if_nothing_captures();  // mutant: wait-at-end
  } catch (const std::bad_alloc&) {
    idle = false;
  }
  if (!idle) {
    parts_.store->leave_to_driver();
    parts_.shared.leave_to_driver();
  }
  if (idle) sources_.return_all();
  heaps_.clear();
  parts_.store.reset();
  parts_.shared.give_back();
  parts_.events.clear();
}

Predictor::Looks Arena::looks() const {
  Predictor::Looks all;
  for (Heap* heap : heaps_.all()) {
    const Lock lock(heap->mutex);
    const Predictor::Looks own = heap->predictor().looks();
    all.guessed += own.guessed;
    all.searched += own.searched;
  }
  return all;
}

uint64_t Arena::most_reserved_bytes() const {
  const ArenaLock lock(parts_.mutex);
  return parts_.store->most_pages() * kPageBytes + parts_.held_elsewhere_bytes();
}

Status Arena::set_limit(uint64_t bytes) {
  const ArenaLock lock(parts_.mutex);
  parts_.limit.store(bytes, std::memory_order_relaxed);
  parts_.update_most_pages();
  return {};
}

Status Arena::set_reserve(uint64_t bytes) {
  const ArenaLock lock(parts_.mutex);
  parts_.reserve_bytes = bytes;
  parts_.update_most_pages();
  return {};
}

Status Arena::set_headroom(uint64_t bytes) {
  const ArenaLock lock(parts_.mutex);
  parts_.store->set_headroom(bytes);
  return {};
}

Status Arena::set_soft_limit(uint64_t bytes) {
  const ArenaLock lock(parts_.mutex);  // orders the change between requests that climb the ladder
  parts_.store->set_soft_most_pages(bytes / kPageBytes);
  return {};
}

Status Arena::set_slack(double percent) {
  parts_.store->set_slack_percent(percent);
  return {};
}

// ---- Allocate and free

inline __attribute__((always_inline)) Status Arena::serve(uint64_t bytes, uint64_t requested_bytes,
                                                          CUstream stream, void** out) {
  try {
    if (parts_.exceeds_limit.load(std::memory_order_relaxed)) [[unlikely]]
      keep_limit();
    for (;;) {
      Heap* heap = heaps_.remembered(stream);
      if (heap == nullptr) [[unlikely]] {
        Result<Heap*> found = heaps_.find(stream);
        if (!found.ok()) return found.take_status();
        heap = found.value();
      }
      Status status = bytes <= parts_.options.small_limit_bytes
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

Status Arena::make_live(Heap& heap, CachedRange& range, const Request& request, uint64_t requested_bytes,
                        void** out) {
  const bool made = request.is_for_slab()
                        ? heap.make_slot_live(range, request.size_class, requested_bytes, out)
                        : heap.make_live(range, requested_bytes, out);
  return made ? Status() : no_host_memory();
}

Status Arena::serve_miss(Heap& heap, const Request& request, uint64_t bytes, uint64_t requested_bytes,
                         void** out) {
  if (parts_.options.careful) check_now_and_then();
  SlowPath tried;
  tried.requested_bytes = requested_bytes;
  {
    const Lock lock(heap.mutex);  // under which another stream may take the heap over
    tried.stream = reinterpret_cast<uint64_t>(heap.stream());
    if (CachedRange* range = ladder_.take_from_heap(heap, request, tried); range != nullptr)
      return make_live(heap, *range, request, requested_bytes, out);
  }
  Result<Ladder::Served> served = ladder_.climb(heap, request, bytes, tried);
  if (!served.ok()) return served.take_status();
  *out = served->outside;
  CachedRange* range = served->taken.range;
  Status status;
  if (range == nullptr && *out == nullptr) {
    tried.note(Rung::kOutOfMemory, true, 0);
    status = out_of_memory(requested_bytes, tried);
  }
  slow_paths_.add(tried);
  if (range == nullptr) return status;
  range->heap->mutex.assert_held();  // by what was served
  return make_live(*range->heap, *range, request, requested_bytes, out);
}

Status Arena::out_of_memory(uint64_t requested_bytes, const SlowPath& tried) {
  parts_.counters.on_rung(Rung::kOutOfMemory, true, 0);
  parts_.counters.trace(TraceKind::kOutOfMemory, 0, requested_bytes, 0);
  return Status::out_of_memory(oom_text(requested_bytes, tried));
}

Status Arena::allocate_large(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out) {
  Request request;
  {
    const Lock lock(heap.mutex);
    request = heap.large_request(bytes);
    if (CachedRange* range = heap.take_predicted(request); range != nullptr) [[likely]]
      return heap.make_live(*range, requested_bytes, out) ? Status() : no_host_memory();
  }
  return serve_miss(heap, request, bytes, requested_bytes, out);
}

Status Arena::allocate_small(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out) {
  const uint32_t size_class = kClassOfQuanta[bytes_to_quanta(bytes)];
  Request request;
  {
    const Lock lock(heap.mutex);
    *out = heap.allocate_small(size_class, requested_bytes);
    if (*out != nullptr) return {};
    if (!heap.has_no_slabs()) {
      request = Request::for_slab(size_class);
      if (CachedRange* range = heap.take_predicted(request); range != nullptr)
        return heap.make_slot_live(*range, size_class, requested_bytes, out) ? Status() : no_host_memory();
    }
  }
  if (heap.has_no_slabs()) return allocate_large(heap, bytes, requested_bytes, out);
  return serve_miss(heap, request, bytes, requested_bytes, out);
}

Status Arena::free_unknown(uint64_t va) {
  if (Arena* arena = SharedBlocks::arena_of(va)) return arena->free_shared(va);
  return HostBlocks::instance().free(va, not_ours("free", va));
}

Status Arena::record_stream_unknown(uint64_t va, CUstream stream) {
  if (Arena* arena = SharedBlocks::arena_of(va)) return arena->record_stream_shared(va, stream);
  return HostBlocks::instance().record_stream(va, stream, not_ours("record_stream", va));
}

Status Arena::free(void* pointer) {
  if (pointer == nullptr) return {};
  const auto va = reinterpret_cast<uint64_t>(pointer);
  CachedRange* range = AddressMap::instance().find(va);
  if (range == nullptr) [[unlikely]]
    return free_unknown(va);
  Heap& heap = *range->heap;
  const Lock lock(heap.mutex);
  return heap.free(*range, va);
}

int Arena::device_of(const void* pointer) {
  const CachedRange* range = AddressMap::instance().find(reinterpret_cast<uint64_t>(pointer));
  return range == nullptr ? -1 : range->heap->device();
}

Status Arena::free_on(void* pointer, CUstream stream) {
  if (CachedRange* range = AddressMap::instance().find(reinterpret_cast<uint64_t>(pointer));
      range != nullptr) {
    Heap& heap = *range->heap;
    const Lock lock(heap.mutex);
    const CUstream wanted = stream == CU_STREAM_LEGACY ? nullptr : stream;
    const uint64_t thread = stream == CU_STREAM_PER_THREAD ? thread_number() : 0;
    if (heap.key.stream == wanted && heap.key.thread == thread)
      return heap.free(*range, reinterpret_cast<uint64_t>(pointer));
  }
  if (Status status = record_stream(pointer, stream); !status.ok()) return status;
  return free(pointer);
}

Status Arena::record_stream(void* pointer, CUstream stream) {
  if (pointer == nullptr) return {};
  const auto va = reinterpret_cast<uint64_t>(pointer);
  CachedRange* range = AddressMap::instance().find(va);
  if (range == nullptr) return record_stream_unknown(va, stream);
  Heap& heap = *range->heap;
  const Lock lock(heap.mutex);
  return heap.record_stream(*range, va, stream);
}

Status Arena::quarantine(void* pointer, uint64_t* bytes) {
  if (bytes != nullptr) *bytes = 0;
  const auto va = reinterpret_cast<uint64_t>(pointer);
  CachedRange* range = AddressMap::instance().find(va);
  if (range == nullptr) return HostBlocks::instance().quarantine(va, not_ours("free", va));
  Heap& heap = *range->heap;
  const Lock lock(heap.mutex);
  return heap.quarantine(*range, va, bytes);
}

Status Arena::release_quarantined(void* pointer) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  CachedRange* range = AddressMap::instance().find(va);
  if (range == nullptr) return HostBlocks::instance().release_quarantined(va, not_ours("release", va));
  Heap& heap = *range->heap;
  const Lock lock(heap.mutex);
  return heap.release_quarantined(*range, va);
}

// ---- Work that is over

void Arena::complete_finished_frees() {
  const RelaxedCapture relaxed(*parts_.driver);
  for (Heap* heap : heaps_.all()) {
    const Lock lock(heap->mutex);
    if (!heap->pending().empty()) heap->complete_finished_frees();
  }
}

bool Arena::is_quiet() {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return false;
  const RelaxedCapture relaxed(*parts_.driver);
  for (Heap* heap : heaps_.all()) {
    const Lock lock(heap->mutex);
    // Only the other threads themselves can ask about their default streams.
    if (!heaps_.is_in_reach(*heap) || (heap->key.thread != 0 && heap->key.thread != thread_number()))
      continue;
    // Nobody opens a pool for a capture meanwhile: a question about a stream that captures ends the capture.
    const bool is_idle = open_pools_.without_captures([&] {
      return !is_capturing(*parts_.driver, heap->key.stream) &&
             parts_.driver->cuStreamQuery(heap->key.stream) == CUDA_SUCCESS;
    });
    if (!is_idle) return false;
  }
  return true;
}

// ---- Statistics

uint64_t Arena::largest_free_bytes() const {
  struct Server {
    FreeSpace space;
    bool lends = false;
    bool has_views = false;
  };
  std::vector<Server> servers;
  uint64_t lent_pages = 0;  // free, of heaps that let others have them
  for (Heap* heap : heaps_.all()) {
    const Lock lock(heap->mutex);
    if (heap->use.is_away) continue;
    const Server server{heap->free_space(), !heap->use.keeps_pages,
                        !heap->is_sourced() && parts_.store->uses_vmm()};
    if (server.lends && server.has_views) lent_pages += server.space.free_pages;
    // A pool that was released serves nobody, and the next heap to be opened has another one's pages only.
    const bool serves = !heap->is_closed() && (!heap->key.pool.is_private() || heap->pool_bytes() != nullptr);
    if (serves) servers.push_back(server);
  }
  RequestLimits limits{true, parts_.options.share_edges, parts_.options.small_limit_bytes};
  uint64_t largest = largest_request_bytes({}, lent_pages, limits);
  for (const Server& server : servers) {
    limits.views = server.has_views;
    const uint64_t own = server.lends ? server.space.free_pages : 0;
    const uint64_t others = server.has_views ? lent_pages - own : 0;
    largest = std::max(largest, largest_request_bytes(server.space, others, limits));
  }
  return largest;
}

DeviceStats Arena::stats() const {
  DeviceStats stats = parts_.counters.snapshot();
  const uint64_t limit_bytes = limit();
  stats.limit_bytes = limit_bytes > INT64_MAX ? INT64_MAX : static_cast<int64_t>(limit_bytes);
  uint64_t metadata = 0;
  for (Heap* heap : heaps_.all()) {
    const Lock lock(heap->mutex);
    metadata += heap->metadata_bytes();
  }
  {
    const ArenaLock lock(parts_.mutex);
    stats.live_mappings = parts_.store->live_mappings() + parts_.shared.mappings();
    stats.metadata_bytes = static_cast<int64_t>(metadata + parts_.store->metadata_bytes());
  }
  stats.largest_free_bytes = static_cast<int64_t>(largest_free_bytes());
  return stats;
}

std::optional<uint64_t> Arena::device_free_bytes() const {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  size_t free_bytes = 0;
  size_t device_bytes = 0;
  if (!context.status().ok() || parts_.driver->cuMemGetInfo(&free_bytes, &device_bytes) != CUDA_SUCCESS)
    return std::nullopt;
  return free_bytes;
}

std::string Arena::oom_text(uint64_t requested_bytes, const SlowPath& tried) const {
  OomRequest request{requested_bytes, parts_.device, most_reserved_bytes(), 0, 0, {}, tried};
  if (const std::optional<uint64_t> free_bytes = device_free_bytes()) {
    request.device_bytes = parts_.properties.total_bytes;
    request.device_free_bytes = *free_bytes;
  }
  {
    const ArenaLock lock(parts_.mutex);
    parts_.pools.for_each([&](const Pool& pool) {
      if (pool.movable() == nullptr) request.pools.push_back({pool.id.first, pool.id.second, pool.bytes});
    });
  }
  return oom_report(request, stats());
}

}  // namespace spillway
