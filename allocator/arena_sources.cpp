// Pools with a source of their own. Their heaps divide segments of that source as they would divide those of
// the driver without virtual memory management, and share nothing with other heaps: no page is lent, mapped
// into a view or released but with its segment.
//
// A source is the program's code, so it is called with no lock held, and may use the allocator itself.

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "allocator/arena.h"
#include "driver/capture.h"

namespace spillway {
namespace {

// A request above the first size gets a segment of the second at least, for others to share.
constexpr uint64_t kSmallBytes = uint64_t{1} << 20;
constexpr uint64_t kSegmentPages = 10;

thread_local int sources_inside = 0;  // calls of sources that this thread is in

struct InsideSource {
  InsideSource() { ++sources_inside; }
  ~InsideSource() { --sources_inside; }
  InsideSource(const InsideSource&) = delete;
  InsideSource& operator=(const InsideSource&) = delete;
};

SegmentMemory ask(const SegmentSource& source, uint64_t bytes, CUstream stream) {
  const InsideSource inside;
  return {source.allocate(bytes, stream), bytes};
}

void give_back(const SegmentSource& source, const SegmentMemory& memory) {
  const InsideSource inside;
  source.free(memory);
}

// So many bytes, and more where they do not begin as a slab must; pointer null when there are none.
SegmentMemory ask_aligned(const SegmentSource& source, uint64_t bytes, CUstream stream) {
  const SegmentMemory memory = ask(source, bytes, stream);
  if (memory.pointer == nullptr || memory.first_byte() == memory.va()) return memory;
  give_back(source, memory);
  return ask(source, bytes + kSlabBytes, stream);
}

}  // namespace

bool Arena::is_inside_source() {
  return sources_inside > 0;
}

PageStore& Arena::store_of(PoolId id) const {
  const Pool* pool = find_pool(id);
  return pool == nullptr || pool->source == nullptr ? *store_ : *pool->source->store;
}

BlockUnit Arena::unit_of(PoolId id) const {
  const Pool* pool = find_pool(id);
  if (pool != nullptr && pool->source != nullptr && pool->source->no_split) return BlockUnit::kSegment;
  return options_.share_edges ? BlockUnit::kLine : BlockUnit::kPage;
}

uint64_t Arena::sourced_bytes() const {
  uint64_t bytes = 0;
  for_each_sourced([&](const SourcedPool& pool) { bytes += pool.store->reserved_bytes(); });
  return bytes;
}

Status Arena::set_pool_source(PoolId id, SegmentSource source) {
  const ArenaLock lock(mutex_);
  Pool* pool = claimed(id);
  if (pool == nullptr) return pool_refused(id, "does not exist");
  if (pool->source != nullptr) return pool_refused(id, "has a source already");
  if (pool->movable != nullptr) return pool_refused(id, "is a region's, whose memory is the device's");
  if (pool->lends_as.has_value()) return pool_refused(id, "lends its memory");
  for (const Heap* heap : heaps()) {
    if (heap->key.pool == id && &heap->store() == store_.get())
      return pool_refused(id, "has memory of the device already");
  }
  auto sourced = std::make_unique<SourcedPool>();
  sourced->source = std::move(source);
  Result<std::unique_ptr<PageStore>> store =
      PageStore::create(driver_, device_, properties_, {.use_vmm = false, .exportable = false}, counters_);
  if (!store.ok()) return store.take_status();
  sourced->store = std::move(store.value());
  pool->source = std::move(sourced);
  return {};
}

Status Arena::set_pool_no_split(PoolId id) {
  const ArenaLock lock(mutex_);
  const Pool* pool = claimed(id);
  if (pool == nullptr) return pool_refused(id, "does not exist");
  if (pool->source == nullptr || pool->source->no_split) return {};
  for (const Heap* heap : heaps()) {
    if (&heap->store() == pool->source->store.get()) return pool_refused(id, "has served blocks already");
  }
  pool->source->no_split = true;
  return {};
}

bool Arena::retire_source(Pool& pool) {
  if (pool.source == nullptr) return false;
  for (Heap* heap : heaps()) {
    if (&heap->store() != pool.source->store.get()) continue;
    const Lock heap_lock(heap->mutex);
    if (!heap->is_closed()) close_heap(*heap, false);
  }
  released_sources_.push_back(std::move(pool.source));
  return true;
}

Place* Arena::take_free(Heap& heap, const Request& request) {
  if (heap.has_pending_frees()) heap.complete_finished_frees();
  Place* place = heap.slab_with_room(request);
  if (place == nullptr) place = heap.take_located(request);
  if (place == nullptr && heap.release_empty_slabs() > 0) place = heap.take_located(request);
  return place != nullptr ? place : heap.take_found(request, false);
}

Result<TakenPlace> Arena::climb_sourced(Heap& heap, const Request& request) {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return context.status();
  const RelaxedCapture relaxed(*driver_);
  bool may_wait = true;
  bool may_trim = true;
  for (bool waited = false;;) {
    {
      HeapLock lock(heap.mutex);
      if (has_gone(heap)) return Status::invalid_state("the stream is gone");
      if (Place* place = take_free(heap, request); place != nullptr) {
        if (waited) counters_.on_alloc_retry();
        return TakenPlace{place, std::move(lock)};
      }
    }
    Result<bool> grown = grow_sourced(heap, request);
    if (!grown.ok()) return grown.take_status();
    if (grown.value()) continue;
    waited = true;
    if (std::exchange(may_wait, false) && wait_for_frees(heap)) continue;
    // What the device has may be in the hands of the other heaps.
    if (std::exchange(may_trim, false) && trim().ok()) continue;
    return TakenPlace{};
  }
}

Result<bool> Arena::grow_sourced(Heap& heap, const Request& request) {
  SourcedPool* pool = nullptr;
  uint64_t room = 0;
  CUstream stream = nullptr;
  {
    const ArenaLock lock(mutex_);
    for_each_sourced([&](SourcedPool& each) {
      if (each.store.get() == &heap.store()) pool = &each;
    });
    room = store_->room_pages();
    const Lock heap_lock(heap.mutex);
    stream = heap.key.stream;
  }
  const uint64_t bytes = uint64_t{request.lines} * kLineBytes;
  const uint64_t needed = bytes_to_pages(bytes);
  const bool is_shared = !pool->no_split && bytes > kSmallBytes;
  const uint64_t wanted = is_shared ? std::max(needed, kSegmentPages) : needed;
  for (const uint64_t pages : std::array{wanted, needed}) {
    if (pages > room) continue;
    const SegmentMemory memory = ask_aligned(pool->source, pages * kPageBytes, stream);
    if (memory.pointer == nullptr) continue;
    Status status =
        find_block(memory.pointer).ok()
            ? Status::invalid_argument("the source of a pool gives memory that Spillway manages already")
            : add_segment(*pool, heap, memory, static_cast<uint32_t>(pages));
    if (status.ok()) return true;
    give_back(pool->source, memory);
    return status;
  }
  return false;
}

Status Arena::add_segment(SourcedPool& pool, Heap& heap, const SegmentMemory& memory, uint32_t pages) {
  PageId first = kNoPage;
  const ArenaLock lock(mutex_);
  const Lock heap_lock(heap.mutex);
  if (Status status = pool.store->add_segment(memory, pages, &heap, &first); !status.ok()) return status;
  heap.add_vacant(first, pages);
  update_most_pages();
  return {};
}

void Arena::return_segments() {
  std::vector<std::pair<SegmentMemory, const SegmentSource*>> gone;
  {
    const ArenaLock lock(mutex_);
    if (released_sources_.empty()) return;
    const std::vector<Heap*> all = heaps();
    const AllLocked locked(all);
    for (const std::unique_ptr<SourcedPool>& pool : released_sources_) {
      PageStore& store = *pool->store;
      const auto owner_of = [&](PageId id) { return store.page(id).owner.load(std::memory_order_relaxed); };
      const auto goes = [&](PageId id) {
        const Heap& owner = *owner_of(id);
        owner.mutex.assert_held();  // by `locked`
        return may_go(owner, id);
      };
      const auto drop = [&](PageId id) {
        Heap& owner = *owner_of(id);
        owner.mutex.assert_held();  // by `locked`
        owner.drop_vacant(id, 1);
      };
      const std::vector<SegmentMemory> taken = store.take_segments(goes, drop);
      for (const SegmentMemory& memory : taken) gone.emplace_back(memory, &pool->source);
    }
    update_most_pages();
  }
  for (const auto& [memory, source] : gone) give_back(*source, memory);
}

}  // namespace spillway
