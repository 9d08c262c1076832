// Holds what the parts of an arena have in common: the device, the memory that is taken from it, and the
// bounds of that. Each part is a class that refers to these, and to the parts below it:
//
//   OpenPools -> StreamHeaps -> DeviceWaits -> PoolMover, Trimming, Borrowing, ViewBudget, Sources -> Ladder
//
// Locks are taken in this order: arena, heaps (more than one only under the arena's), those of the parts. No
// lock is held while the host waits for the device.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "allocator/last_rungs.h"
#include "allocator/mutex.h"
#include "allocator/page_store.h"
#include "allocator/pool_table.h"
#include "allocator/shared_blocks.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "driver/event.h"
#include "stats/counters.h"

namespace spillway {

// Live mappings beyond which views are retired before another is mapped; the arenas of a process share them
// (ViewBudget). An H100 refused a process its 524,089th (docs/hardware-proof.md); what is left is for others.
constexpr uint32_t kMostMappings = 440'000;

struct ArenaOptions {
  uint64_t limit_bytes = UINT64_MAX;       // of physical memory held from the driver
  uint64_t soft_limit_bytes = UINT64_MAX;  // exceeded only where nothing else serves without a host wait
  uint64_t reserve_bytes = 0;              // left to others on the device, whatever the limit
  uint64_t headroom_bytes = 0;             // stays free on the device, see PageStore::set_headroom
  double slack_percent = 12;               // see Purchase
  bool use_vmm = true;                     // false: cuMemAlloc segments
  bool exportable = true;                  // where the device can: blocks may be shown to other processes
  bool share_edges = true;                 // false: blocks of a page and more share no page
  uint64_t small_limit_bytes = 16384;      // requests up to this go to slabs; at most kLargestSmallBytes
  uint32_t most_mappings = kMostMappings;
  bool check_streams = false;  // whether each request on a stream that the program made asks which one it is
  // A view is mapped only when the host has waited for what used its pages, and the arena validates itself
  // now and then at a miss; `on_broken` (may be null) hears of the first failure.
  bool careful = false;
  void (*on_broken)(const Status& found) = nullptr;
  Tracer* tracer = nullptr;                    // records what happens; outlives the arena
  std::shared_ptr<DeviceCounters> counters{};  // of the arenas before on this device; null: there are none
};

struct ArenaParts {
  ArenaParts(std::shared_ptr<const Driver> its_driver, int its_device, const ArenaOptions& its_options,
             Arena& arena)
      : driver(std::move(its_driver)),
        device(its_device),
        options(its_options),
        device_counters(its_options.counters != nullptr
                            ? its_options.counters
                            : std::make_shared<DeviceCounters>(its_options.tracer, its_device)),
        counters(*device_counters),
        events(*driver, &context),
        shared(*driver, arena, counters, events),
        limit(its_options.limit_bytes),
        reserve_bytes(its_options.reserve_bytes) {}

  // Tells the store how many pages may be held. After each change of a bound, or of what is held beside the
  // pages.
  void update_most_pages() SPW_REQUIRES(kArenaLock);
  // Beside the pages: shared blocks and segments of sources.
  uint64_t held_elsewhere_bytes() const SPW_REQUIRES(kArenaLock) {
    return shared.held_bytes() + pools.sourced_bytes();
  }
  // Returns where the memory of the pool's heaps comes from.
  PageStore& store_of(PoolId pool) const SPW_REQUIRES(kArenaLock) {
    const SourcedPool* source = pools.source(pool);
    return source == nullptr ? *store : *source->store;
  }
  bool may_serve(const Heap& heap, PoolId pool) const SPW_REQUIRES(kArenaLock) {
    return &heap.store() == &store_of(pool);
  }

  const std::shared_ptr<const Driver> driver;
  const int device;
  const ArenaOptions options;
  DeviceProperties properties;
  RetainedContext context;
  const std::shared_ptr<DeviceCounters> device_counters;
  DeviceCounters& counters;  // the same
  EventPool events;

  mutable Mutex mutex;  // kArenaLock: pages, views, shared blocks, and whatever needs more than one heap
  std::unique_ptr<PageStore> store;
  SharedBlocks shared SPW_GUARDED_BY(kArenaLock);
  PoolTable pools SPW_GUARDED_BY(kArenaLock);
  LastRungs last_rungs;

  std::atomic<uint64_t> limit;
  uint64_t reserve_bytes SPW_GUARDED_BY(kArenaLock);
  uint64_t traced_limit SPW_GUARDED_BY(kArenaLock) = 0;
  std::atomic<bool> exceeds_limit{false};  // more pages are held than may be; changes under the lock
};

}  // namespace spillway
