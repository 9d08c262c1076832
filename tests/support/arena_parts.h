// Holds what the parts of an arena have in common, put together by hand, so that each part can be tested
// without those above it.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "allocator/arena_parts.h"
#include "allocator/borrowing.h"
#include "allocator/device_waits.h"
#include "allocator/heap.h"
#include "allocator/open_pools.h"
#include "allocator/pool_mover.h"
#include "allocator/sources.h"
#include "allocator/stream_heaps.h"
#include "allocator/trimming.h"
#include "allocator/view_budget.h"
#include "tests/support/device.h"

namespace spillway::test {

struct MadeParts {
  explicit MadeParts(const std::string& configuration = "capacity:1GiB", const ArenaOptions& options = {})
      : device(configuration), arena(device.arena()), parts(device.driver, 0, options, *arena) {
    Result<DeviceProperties> properties = query_device(*device.driver, 0);
    Result<RetainedContext> context = RetainedContext::retain(device.driver, 0);
    if (!properties.ok() || !context.ok()) throw std::runtime_error("no device");
    parts.properties = properties.value();
    parts.context = std::move(context.value());
    const PageStoreOptions store_options{options.use_vmm, options.exportable};
    Result<std::unique_ptr<PageStore>> store =
        PageStore::create(device.driver, 0, parts.properties, store_options, parts.counters);
    if (!store.ok()) throw std::runtime_error(store.status().text());
    parts.store = std::move(store.value());
    const ArenaLock lock(parts.mutex);
    parts.update_most_pages();
  }
  ~MadeParts() { device.driver->cuCtxSynchronize(); }
  MadeParts(const MadeParts&) = delete;
  MadeParts& operator=(const MadeParts&) = delete;

  // So many free pages in a row for the heap.
  PageId give(Heap& heap, uint32_t count) {
    const ArenaLock lock(parts.mutex);
    const Lock heap_lock(heap.mutex);
    PageId first = kNoPage;
    Status status;
    if (parts.store->uses_vmm()) {
      first = parts.store->find_unbacked(count);
      uint32_t created = 0;
      status = parts.store->create_pages(first, count, &heap, &created);
    } else {
      status = parts.store->create_segment(count, &heap, &first);
    }
    EXPECT_TRUE(status.ok()) << status.text();
    if (status.ok()) heap.add_free(first, count);
    return first;
  }

  // A block of whole pages from what is free of the heap.
  CachedRange& allocate(Heap& heap, uint32_t pages) {
    const Lock lock(heap.mutex);
    const Request request = heap.large_request(pages * kPageBytes);
    CachedRange* range = heap.take_again(request, false);
    void* out = nullptr;
    if (range == nullptr || !heap.make_live(*range, pages * kPageBytes, &out))
      throw std::runtime_error("no room for a block");
    return *range;
  }
  void free(CachedRange& range) {
    const Lock lock(range.heap->mutex);
    SPW_EXPECT_OK(range.heap->free(range, range.va));
  }
  // Work on the device with the block.
  void touch(CUstream stream, const CachedRange& range) const {
    device.touch(stream, reinterpret_cast<void*>(range.va), range.bytes());
  }
  void finish_all() const { EXPECT_EQ(device.driver->cuCtxSynchronize(), CUDA_SUCCESS); }

  Device device;
  std::unique_ptr<Arena> arena;  // only so that there is one to refer to
  ArenaParts parts;
};

// The parts themselves, as an arena has them, without the ladder.
struct AllParts : MadeParts {
  using MadeParts::MadeParts;

  Heap& heap(CUstream stream) {
    Result<Heap*> found = heaps.find(stream);
    if (!found.ok()) throw std::runtime_error(found.status().text());
    return *found.value();
  }
  // A claim on the pool, which is made by that.
  Pool& claim(PoolId id) {
    const ArenaLock lock(parts.mutex);
    Pool& pool = parts.pools.find_or_make(id);
    pool.claim(1);
    return pool;
  }
  // The heap that serves the stream from the pool.
  Heap& heap_of(PoolId id, CUstream stream) {
    open_pools.open(std::make_shared<OpenPool>(id, [stream](CUstream on) { return on == stream; }));
    Heap& found = heap(stream);
    EXPECT_TRUE(open_pools.close(id));
    return found;
  }
  uint32_t owned(Heap& heap) {
    const Lock lock(heap.mutex);
    return heap.pages().owned();
  }
  uint32_t free_count(Heap& heap) {
    const Lock lock(heap.mutex);
    return heap.pages().free_count();
  }

  OpenPools open_pools{parts};
  StreamHeaps heaps{parts, open_pools};
  DeviceWaits waits{parts, open_pools, heaps};
  std::function<Status(uint64_t bytes)> make_room = [](uint64_t) { return Status(); };
  PoolMover mover{parts,
                  open_pools,
                  heaps,
                  waits,
                  {[this](uint64_t bytes) { return make_room(bytes); }, [] { return Status(); }}};
  Sources sources{parts, heaps};
  ViewBudget views{parts, heaps, waits};
  Trimming trimming{parts, heaps, waits, sources, mover, views};
  Borrowing borrowing{parts, heaps};
};

}  // namespace spillway::test
