// Says how many mappings there may be, and what is done when they become many: pages are bought, so that
// requests find holes, and views that lie unused are retired. Programs that repeat themselves never come
// near; the measurements are in docs/decisions/mappings.md.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/arena_parts.h"
#include "allocator/device_waits.h"
#include "allocator/stream_heaps.h"

namespace spillway {

class ViewBudget {
 public:
  ViewBudget(ArenaParts& parts, StreamHeaps& heaps, DeviceWaits& waits)
      : parts_(parts), heaps_(heaps), waits_(waits) {}
  ~ViewBudget();
  ViewBudget(const ViewBudget&) = delete;
  ViewBudget& operator=(const ViewBudget&) = delete;

  // The first tells whether views are mapped so often that it matters more to map few than to hold few pages;
  // the second returns the pages that may be created for that now.
  bool is_strained() const SPW_REQUIRES(kArenaLock) {
    return parts_.store->live_mappings() > many_mappings();
  }
  uint32_t pages_to_spend() const SPW_REQUIRES(kArenaLock);
  // Returns the pages that may be created for the request where a view would do, of the heap of a program
  // that does not repeat itself while memory is plentiful.
  uint32_t pages_to_buy(const Heap& heap, const Request& request) const SPW_REQUIRES(kArenaLock, heap.mutex);
  void on_spent(uint32_t pages) SPW_REQUIRES(kArenaLock) { spent_pages_ += pages; }
  void on_pages_released() SPW_REQUIRES(kArenaLock) { spent_pages_ = 0; }
  // Tells whether so many mappings more may live, of views. From the first question on the arena has its part
  // of what a process may have.
  bool has_room(uint32_t mappings) SPW_REQUIRES(kArenaLock);
  // Views that only a pool's graphs needed may go: the bound that was raised for them is tried again.
  void on_pool_released() SPW_REQUIRES(kArenaLock) { raised_to_ = 0; }

  // Retires views that lie unused, a sixth of the mappings that may be, in as few calls as serve, or
  // `every` one; waits for the device before. False while a stream is captured, or when there are none. With
  // no lock held.
  bool retire_views(bool every = false);

 private:
  // The mappings of a process that each arena may have; and that this one may have now.
  uint32_t part_of_process() const;
  uint32_t most_mappings() const SPW_REQUIRES(kArenaLock);
  uint32_t many_mappings() const SPW_REQUIRES(kArenaLock);
  // Lists those that are not in use, and which programs that repeat themselves would not want next.
  std::vector<View*> list_unused(const std::vector<Heap*>& all) const SPW_REQUIRES(kArenaLock);
  void retire_longest_runs(std::vector<View*>& unused, bool every) SPW_REQUIRES(kArenaLock);

  ArenaParts& parts_;
  StreamHeaps& heaps_;
  DeviceWaits& waits_;
  bool has_part_ SPW_GUARDED_BY(kArenaLock) = false;     // it is one of those that share what there may be
  uint32_t raised_to_ SPW_GUARDED_BY(kArenaLock) = 0;    // where all views were in use
  uint64_t spent_pages_ SPW_GUARDED_BY(kArenaLock) = 0;  // since memory was last given back
};

}  // namespace spillway
