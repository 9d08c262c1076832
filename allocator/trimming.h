// Gives memory back to the driver: in trims, and to keep a limit that was lowered.
//
// Thread-safe. The calling thread holds no lock but where a method says otherwise.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "allocator/arena_parts.h"
#include "allocator/device_waits.h"
#include "allocator/pool_mover.h"
#include "allocator/sources.h"
#include "allocator/stream_heaps.h"
#include "allocator/view_budget.h"

namespace spillway {

class Trimming {
 public:
  Trimming(ArenaParts& parts, StreamHeaps& heaps, DeviceWaits& waits, Sources& sources, PoolMover& mover,
           ViewBudget& views)
      : parts_(parts), heaps_(heaps), waits_(waits), sources_(sources), mover_(mover), views_(views) {}

  // See the methods of Arena by these names.
  Status trim() { return trim_heaps(heaps_.all()); }
  Status settle();
  Status trim_for_now();
  uint64_t take_back();
  Status trim_pool(PoolId id);
  void keep_limit();

  // The free pages of these heaps, as far as nothing uses them since the last wait. Errors: driver.
  Status release_free_pages(const std::vector<Heap*>& chosen) SPW_REQUIRES(kArenaLock) {
    return release_free_pages(chosen, nullptr, Amount::kAll);
  }

 private:
  using GivenBack = std::vector<std::pair<Heap*, PageId>>;
  // Says how much of what is free goes.
  enum class Amount : uint8_t { kAll, kToLimit, kForGraphs };

  // `given`, where it is not null: what went.
  Status trim_heaps(const std::vector<Heap*>& chosen, GivenBack* given = nullptr,
                    Amount amount = Amount::kAll);
  Status release_free_pages(const std::vector<Heap*>& chosen, GivenBack* given, Amount amount)
      SPW_REQUIRES(kArenaLock);
  // Without virtual memory management, where pages go with their whole segment.
  Status release_free_segments(const std::vector<Heap*>& chosen, Amount amount) SPW_REQUIRES(kArenaLock);
  size_t pages_to_go(Amount amount) const;
  uint64_t pages_for_graphs() const;

  ArenaParts& parts_;
  StreamHeaps& heaps_;
  DeviceWaits& waits_;
  Sources& sources_;
  PoolMover& mover_;
  ViewBudget& views_;
  GivenBack given_back_ SPW_GUARDED_BY(kArenaLock);  // by trim_for_now(), heap after heap
};

}  // namespace spillway
