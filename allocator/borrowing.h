// Gives one heap what it can have of others' pages, behind waits on the device, without host waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "allocator/arena_parts.h"
#include "allocator/heap.h"
#include "allocator/stream_heaps.h"

namespace spillway {

// Needs the arena's lock and that of the heap that borrows; takes those of lenders. The calling thread has
// the arena's context, and the heap's stream is not captured.
class Borrowing {
 public:
  Borrowing(ArenaParts& parts, StreamHeaps& heaps) : parts_(parts), heaps_(heaps) {}

  // Tells whether the range expected for the request is only held up by other streams, which still use it or
  // own pages of it, and the limit leaves no room to make up for it. Needs the heap's lock alone, captured or
  // not.
  bool wants_back(const Heap& heap, const Request& request) SPW_REQUIRES(heap.mutex);
  // Returns that range, with pages that others own by now; null where they do not let go of them.
  CachedRange* take_expected(Heap& heap, const Request& request) SPW_REQUIRES(kArenaLock, heap.mutex);
  // Brings up to `wanted` free pages of others to the heap; answers how many.
  uint32_t borrow(Heap& heap, uint32_t wanted) SPW_REQUIRES(kArenaLock, heap.mutex);

 private:
  // Tells whether so many more pages can be had within the soft limit, as far as is known. A device that
  // others had filled is asked again now and then.
  bool may_have_room(uint64_t pages);
  // Tells whether the lender can give exactly these: what is pending there is waited for, behind its stream.
  bool can_give(Heap& lender, const Heap& heap, const std::vector<PageId>& pages)
      SPW_REQUIRES(kArenaLock, lender.mutex);
  uint32_t borrow_from(Heap& lender, Heap& heap, uint32_t wanted)
      SPW_REQUIRES(kArenaLock, lender.mutex, heap.mutex);
  uint32_t lend(Heap& lender, Heap& heap, const std::vector<PageId>& pages)
      SPW_REQUIRES(kArenaLock, lender.mutex, heap.mutex);
  bool order_after(Heap& waiter, Heap& earlier, uint64_t epoch) SPW_REQUIRES(waiter.mutex, earlier.mutex);

  ArenaParts& parts_;
  StreamHeaps& heaps_;
  std::atomic<uint32_t> fullness_questions_{0};
};

}  // namespace spillway
