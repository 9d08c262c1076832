#include "allocator/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "allocator/address_map.h"
#include "allocator/placed_blocks.h"
#include "driver/capture.h"
#include "stats/oom_report.h"

namespace spillway {
namespace {

std::atomic<uint64_t> next_arena_id{1};

// Which heap this thread used last: a hit looks up nothing else.
struct LastHeap {
  uint64_t arena = 0;
  CUstream stream = nullptr;
  Heap* heap = nullptr;
};
// A few bytes of static TLS: a hit makes no call to find them.
thread_local LastHeap last_heap __attribute__((tls_model("initial-exec")));

// A number of the calling thread, for streams that mean another queue in every thread.
uint64_t thread_number() {
  static std::atomic<uint64_t> next{1};
  thread_local uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

// Pools whose heaps may lie idle, waiting for graphs that may still be replayed, before the host waits for
// them.
constexpr uint32_t kReleasesPerWait = 64;

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
      id_(next_arena_id.fetch_add(1)),
      events_(*driver_),
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
  Result<std::unique_ptr<PageStore>> store =
      PageStore::create(std::move(driver), device, properties.value(), options.use_vmm, arena->counters_);
  if (!store.ok()) return store.take_status();
  arena->store_ = std::move(store.value());
  arena->update_most_pages();
  (void)arena->set_soft_limit(options.soft_limit_bytes);
  return arena;
}

Arena::~Arena() {
  PlacedBlocks::instance().release_all(counters_);
  const ScopedContext context(*driver_, context_.get());
  const RelaxedCapture relaxed(*driver_);
  // Without its context nothing uses the memory any more.
  open_pools_.clear();
  open_pool_count_.store(0, std::memory_order_release);
  bool idle = !context.status().ok();
  try {
    idle = idle || wait_if_nothing_captures();
  } catch (const std::bad_alloc&) {
    idle = false;
  }
  if (!idle) store_->leave_to_driver();
  heaps_.clear();
  store_.reset();
  events_.clear();
}

void Arena::update_most_pages() {
  const uint64_t device_bytes = store_->device_bytes();
  const uint64_t reserve = std::min(reserve_bytes_, device_bytes);
  store_->set_most_pages(std::min(limit_.load(std::memory_order_relaxed), device_bytes - reserve) /
                         kPageBytes);
}

Status Arena::set_limit(uint64_t bytes) {
  const Lock lock(mutex_);
  limit_.store(bytes, std::memory_order_relaxed);
  update_most_pages();
  return {};
}

Status Arena::set_reserve(uint64_t bytes) {
  const Lock lock(mutex_);
  reserve_bytes_ = bytes;
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

Heap* Arena::heap_for(CUstream stream) {
  const bool pools = open_pool_count_.load(std::memory_order_acquire) != 0;
  if (!pools && last_heap.arena == id_ && last_heap.stream == stream) return last_heap.heap;
  HeapKey key;
  key.stream = stream;
  if (stream == CU_STREAM_PER_THREAD) key.thread = thread_number();
  const bool in_pool = pools && pool_for(stream, &key.pool);
  Heap* heap = find_heap(key);
  if (!in_pool && !pools) last_heap = {id_, stream, heap};
  return heap;
}

Heap* Arena::find_heap(const HeapKey& key) {
  if (key.pool != PoolId{}) {
    {
      const Lock lock(registry_mutex_);
      if (const auto found = heaps_.find(key); found != heaps_.end()) return found->second.get();
    }
    if (Heap* heap = reuse_heap(key); heap != nullptr) return heap;
  }
  const Lock lock(registry_mutex_);
  if (const auto found = heaps_.find(key); found != heaps_.end()) return found->second.get();
  auto heap = std::make_unique<Heap>(*store_, counters_, events_, *driver_, context_.get(), key, leader_,
                                     options_.share_edges);
  heap->pool_is_open = pool_uses_.count(key.pool) != 0;
  return heaps_.emplace(key, std::move(heap)).first->second.get();
}

Heap* Arena::reuse_heap(const HeapKey& key) {
  const Lock arena_lock(mutex_);
  for (Heap* heap : heaps()) {
    if (heap->key.stream != key.stream || heap->key.thread != key.thread) continue;
    const Lock heap_lock(heap->mutex);
    if (heap->key.pool == PoolId{} || heap->pool_is_open || !heap->is_idle()) continue;
    const Lock lock(registry_mutex_);
    if (const auto found = heaps_.find(key); found != heaps_.end()) return found->second.get();
    auto node = heaps_.extract(heap->key);
    node.key() = heap->key = key;
    heap->pool_is_open = pool_uses_.contains(key.pool);
    heaps_.insert(std::move(node));
    return heap;
  }
  return nullptr;
}

std::vector<Heap*> Arena::heaps() const {
  const Lock lock(registry_mutex_);
  std::vector<Heap*> all;
  for (const auto& [key, heap] : heaps_) all.push_back(heap.get());
  return all;
}

std::vector<CUstream> Arena::streams() const {
  std::vector<CUstream> all;
  for (const Heap* heap : heaps()) all.push_back(heap->key.stream);
  return all;
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
  bool is_last = false;
  if (Status status = release_claim(id, &is_last); !status.ok() || !is_last) return status;
  // Until a wait for the device its heaps serve no other pool.
  if (released_pools_.fetch_add(1, std::memory_order_relaxed) % kReleasesPerWait == kReleasesPerWait - 1) {
    (void)wait_if_nothing_captures();
  }
  return {};
}

bool Arena::wait_if_nothing_captures() {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return false;
  const std::vector<Heap*> all = heaps();
  if (std::any_of(all.begin(), all.end(), [&](const Heap* heap) { return is_capturing(heap->key.stream); })) {
    return false;
  }
  bool everything = false;
  return synchronize(all, &everything).ok() && everything;
}

Status Arena::release_claim(PoolId id, bool* is_last) {
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
    *is_last = true;
  }
  // Views that only its graphs needed may go: the bound that was raised for them is tried again.
  most_mappings_ = options_.most_mappings;
  for (Heap* heap : heaps()) {
    if (heap->key.pool != id) continue;
    const Lock heap_lock(heap->mutex);
    heap->pool_is_open = false;
    heap->release_empty_slabs();
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
    Heap* heap = heap_for(stream);
    return bytes <= options_.small_limit_bytes ? allocate_small(*heap, bytes, requested_bytes, out)
                                               : allocate_large(*heap, bytes, requested_bytes, out);
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

Status Arena::climb_unlocked(std::unique_lock<BiasedMutex>& lock, Heap& heap, const Request& request,
                             Place** place) {
  lock.unlock();
  Result<Place*> climbed = climb(heap, request);
  if (!climbed.ok()) return climbed.take_status();
  *place = climbed.value();
  if (*place != nullptr) lock = std::unique_lock<BiasedMutex>(heap.mutex, std::adopt_lock);
  return {};
}

Status Arena::allocate_large(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out) {
  std::unique_lock<BiasedMutex> lock(heap.mutex);
  const Request request = heap.large_request(bytes);
  Place* place = heap.take_predicted(request);
  if (place == nullptr) {
    if (Status status = climb_unlocked(lock, heap, request, &place); !status.ok()) return status;
    if (place == nullptr) return place_outside(heap, bytes, requested_bytes, out);
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
    if (Status status = climb_unlocked(lock, heap, request, &place); !status.ok()) return status;
    if (place == nullptr) return place_outside(heap, bytes, requested_bytes, out);
  }
  if (!heap.open_slab(*place, size_class)) return no_host_memory();
  *out = heap.allocate_small(size_class, requested_bytes);
  return {};
}

namespace {

// No block of the device is known at this address.
[[gnu::noinline, gnu::cold]] Status not_ours(const char* what, uint64_t va) {
  return Status::invalid_pointer(fmt::format("{} of {:#x}: no live block begins there", what, va));
}

}  // namespace

Status Arena::free(void* pointer) {
  if (pointer == nullptr) return {};
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr) return PlacedBlocks::instance().free(va, not_ours("free", va));
  Heap& heap = *place->heap;
  const Lock lock(heap.mutex);
  return heap.free(*place, va);
}

Status Arena::record_stream(void* pointer, CUstream stream) {
  if (pointer == nullptr) return {};
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr)
    return PlacedBlocks::instance().record_stream(va, stream, not_ours("record_stream", va));
  Heap& heap = *place->heap;
  if (stream == CU_STREAM_PER_THREAD && heap.key.stream == stream && heap.key.thread == thread_number())
    return {};
  const Lock lock(heap.mutex);
  return heap.record_stream(*place, va, stream);
}

Status Arena::withhold(void* pointer) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr) return PlacedBlocks::instance().withhold(va, not_ours("free", va));
  Heap& heap = *place->heap;
  const Lock lock(heap.mutex);
  return heap.withhold(*place, va);
}

Status Arena::release_withheld(void* pointer) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Place* place = AddressMap::instance().find(va);
  if (place == nullptr) return PlacedBlocks::instance().release_withheld(va, not_ours("release", va));
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
  for (Heap* heap : all) {
    if (is_capturing(heap->key.stream)) {
      return Status::invalid_state("trim while a stream is being captured: nothing can be unmapped now");
    }
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
  return release_vacant_pages();
}

bool Arena::may_wait_for_context() const {
  // Whoever captures opens a pool first. The legacy stream knows of captures on the streams that wait for it,
  // and may be asked.
  return open_pool_count_.load(std::memory_order_acquire) == 0 && !is_capturing(CU_STREAM_LEGACY);
}

Status Arena::synchronize_context(const std::vector<Heap*>& all) {
  std::vector<uint64_t> awaited;
  for (Heap* heap : all) {
    const Lock lock(heap->mutex);
    awaited.push_back(heap->timeline.begin_wait());
  }
  counters_.on_driver_call(DriverCall::kSynchronize);
  if (Status status = driver_->check(driver_->cuCtxSynchronize(), "cuCtxSynchronize"); !status.ok())
    return status;
  for (size_t i = 0; i < all.size(); ++i) {
    const Lock lock(all[i]->mutex);
    all[i]->timeline.end_wait(awaited[i]);
  }
  return {};
}

bool Arena::mark_uses(Heap& heap, std::vector<Event>& marks, std::vector<CUevent>& events) {
  if (heap.owned_pages() == 0) return true;
  if (heap.key.thread != 0 && heap.key.thread != thread_number()) return false;
  if (!heap.events_mark_all_uses()) return false;
  Result<Event> mark = events_.acquire();
  if (!mark.ok()) return false;
  counters_.on_driver_call(DriverCall::kEventRecord);
  const bool recorded = mark->record(heap.key.stream).ok();
  marks.push_back(std::move(mark.value()));
  if (!recorded) return false;
  events.push_back(marks.back().get());
  heap.list_pending_events(events);
  return true;
}

Status Arena::synchronize(const std::vector<Heap*>& all, bool* everything) {
  // Both recording and waiting would end another stream's capture.
  const RelaxedCapture relaxed(*driver_);
  std::vector<Event> marks;
  std::vector<CUevent> events;
  std::vector<std::pair<Heap*, uint64_t>> reached;
  for (Heap* heap : all) {
    const Lock lock(heap->mutex);
    const uint64_t awaited = heap->timeline.begin_wait();
    if (mark_uses(*heap, marks, events)) reached.emplace_back(heap, awaited);
  }
  counters_.on_host_wait();
  counters_.on_sync_all_streams();
  if (everything != nullptr) *everything = true;
  Status status;
  if (reached.size() < all.size() && may_wait_for_context()) {
    status = synchronize_context(all);
  } else {
    if (everything != nullptr) *everything = reached.size() == all.size();
    for (size_t i = 0; i < events.size() && status.ok(); ++i) {
      counters_.on_driver_call(DriverCall::kSynchronize);
      status = driver_->check(driver_->cuEventSynchronize(events[i]), "cuEventSynchronize");
    }
    for (const auto& [heap, awaited] : reached) {
      const Lock lock(heap->mutex);
      if (status.ok()) heap->timeline.end_wait(awaited);
    }
  }
  for (Event& mark : marks) events_.give_back(std::move(mark));
  return status;
}

Status Arena::release_vacant_pages() {
  spared_pages_ = 0;
  const RelaxedCapture relaxed(*driver_);
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
    stats.live_mappings = store_->live_mappings();
    stats.metadata_bytes = static_cast<int64_t>(metadata + store_->metadata_bytes());
  }
  stats.largest_free_bytes = static_cast<int64_t>(largest);
  return stats;
}

std::string Arena::oom_text(uint64_t requested_bytes) const {
  OomRequest request{requested_bytes, device_, most_reserved_bytes()};
  const ScopedContext context(*driver_, context_.get());
  size_t free_bytes = 0;
  size_t device_bytes = 0;
  if (context.status().ok() && driver_->cuMemGetInfo(&free_bytes, &device_bytes) == CUDA_SUCCESS) {
    request.device_bytes = device_bytes;
    request.device_free_bytes = free_bytes;
  }
  return oom_report(request, stats());
}

}  // namespace spillway
