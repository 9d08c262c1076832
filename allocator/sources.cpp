#include "allocator/sources.h"

#include <algorithm>
#include <array>
#include <utility>

#include "allocator/arena.h"
#include "allocator/heap_lock.h"

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

bool Sources::is_inside() {
  return sources_inside > 0;
}

Status Sources::set(PoolId id, SegmentSource source) {
  const ArenaLock lock(parts_.mutex);
  Pool* pool = parts_.pools.claimed(id);
  if (pool == nullptr) return pool_refused(id, "does not exist");
  if (Status status = pool->check_source(); !status.ok()) return status;
  for (const Heap* heap : heaps_.all()) {
    if (heap->key.pool == id && !heap->is_sourced())
      return pool_refused(id, "has memory of the device already");
  }
  auto sourced = std::make_unique<SourcedPool>();
  sourced->source = std::move(source);
  Result<std::unique_ptr<PageStore>> store =
      PageStore::create(parts_.driver, parts_.device, parts_.properties,
                        {.use_vmm = false, .exportable = false, .is_sourced = true}, parts_.counters);
  if (!store.ok()) return store.take_status();
  sourced->store = std::move(store.value());
  pool->set_source(std::move(sourced));
  return {};
}

Status Sources::set_no_split(PoolId id) {
  const ArenaLock lock(parts_.mutex);
  const Pool* pool = parts_.pools.claimed(id);
  if (pool == nullptr) return pool_refused(id, "does not exist");
  if (pool->source() == nullptr || pool->source()->no_split) return {};
  for (const Heap* heap : heaps_.all()) {
    if (&heap->store() == pool->source()->store.get()) return pool_refused(id, "has served blocks already");
  }
  pool->source()->no_split = true;
  return {};
}

bool Sources::retire(Pool& pool) {
  if (pool.source() == nullptr) return false;
  for (Heap* heap : heaps_.all()) {
    if (&heap->store() != pool.source()->store.get()) continue;
    const Lock heap_lock(heap->mutex);
    if (!heap->is_closed()) heaps_.close(*heap, false);  // mutant: source-released
  }
  return parts_.pools.retire_source(pool);
}

Result<bool> Sources::grow(Heap& heap, const Request& request) {
  SourcedPool* pool = nullptr;
  uint64_t room = 0;
  CUstream stream = nullptr;
  {
    const ArenaLock lock(parts_.mutex);
    pool = parts_.pools.source_of(heap.store());
    room = parts_.store->room_pages();
    const Lock heap_lock(heap.mutex);
    stream = heap.stream();
  }
  const uint64_t bytes = uint64_t{request.quanta} * kQuantumBytes;
  const uint64_t needed = bytes_to_pages(bytes);
  const bool is_shared = !pool->no_split && bytes > kSmallBytes;
  const uint64_t wanted = is_shared ? std::max(needed, kSegmentPages) : needed;
  for (const uint64_t pages : std::array{wanted, needed}) {
    if (pages > room) continue;
    const SegmentMemory memory = ask_aligned(pool->source, pages * kPageBytes, stream);
    if (memory.pointer == nullptr) continue;
    Status status =
        Arena::find_block(memory.pointer).ok()
            ? Status::invalid_argument("the source of a pool gives memory that Spillway manages already")
            : add_segment(*pool, heap, memory, static_cast<uint32_t>(pages));
    if (status.ok()) return true;
    give_back(pool->source, memory);
    return status;
  }
  return false;
}

Status Sources::add_segment(SourcedPool& pool, Heap& heap, const SegmentMemory& memory, uint32_t pages) {
  PageId first = kNoPage;
  const ArenaLock lock(parts_.mutex);
  const Lock heap_lock(heap.mutex);
  if (Status status = pool.store->add_segment(memory, pages, &heap, &first); !status.ok()) return status;
  heap.add_free(first, pages);
  parts_.update_most_pages();
  return {};
}

void Sources::return_segments() {
  std::vector<std::pair<SegmentMemory, const SegmentSource*>> gone;
  {
    const ArenaLock lock(parts_.mutex);
    if (!parts_.pools.has_released_sources()) return;
    const AllLocked locked(heaps_.all());
    parts_.pools.for_each_released_source([&](SourcedPool& pool) {
      kArenaLock.assert_held();  // by `lock`
      PageStore& store = *pool.store;
      const auto owner_of = [&](PageId id) -> Heap& {
        return *store.page(id).owner.load(std::memory_order_relaxed);
      };
      const auto goes = [&](PageId id) {
        const Heap& owner = owner_of(id);
        owner.mutex.assert_held();  // by `locked`
        return owner.may_release(id);
      };
      const auto drop = [&](PageId id) {
        Heap& owner = owner_of(id);
        owner.mutex.assert_held();  // by `locked`
        owner.drop_free(id, 1);
      };
      for (const SegmentMemory& memory : store.take_segments(goes, drop))
        gone.emplace_back(memory, &pool.source);
    });
    if (gone.empty()) return;
    parts_.update_most_pages();
  }
  for (const auto& [memory, source] : gone) give_back(*source, memory);
}

void Sources::return_all() {
  parts_.pools.for_each_source([](const SourcedPool& pool) {
    kArenaLock.assert_held();  // by this function
    const auto all = pool.store->take_segments([](PageId) { return true; }, [](PageId) {});
    for (const SegmentMemory& memory : all) give_back(pool.source, memory);
  });
}

}  // namespace spillway
