// Pools with a source of their own. Their heaps divide segments of that source as they would divide those of
// the driver without virtual memory management, and share nothing with other heaps: no page is lent, mapped
// into a view or released but with its segment.
//
// A source is the program's code, so it is called with no lock held, and may use the allocator itself.
//
// Thread-safe.
#pragma once

#include "allocator/arena_parts.h"
#include "allocator/heap.h"
#include "allocator/segment_source.h"
#include "allocator/stream_heaps.h"

namespace spillway {

class Sources {
 public:
  Sources(ArenaParts& parts, StreamHeaps& heaps) : parts_(parts), heaps_(heaps) {}

  // Tells whether this thread is in a call of some source: pools with sources do not serve it.
  static bool is_inside();

  // See Arena::set_pool_source and set_pool_no_split.
  Status set(PoolId id, SegmentSource source);
  Status set_no_split(PoolId id);
  // Nothing is served from the pool's source any more; false where it has none.
  bool retire(Pool& pool) SPW_REQUIRES(kArenaLock);
  // One segment more for the heap, which has a source; false where there is no room, or none to be had.
  // Errors: invalid_argument (the source gave memory of this allocator), those of PageStore::add_segment.
  Result<bool> grow(Heap& heap, const Request& request);
  // Gives back segments of released pools that nothing uses since the last wait.
  void return_segments();
  // Does the same for all sources at the end of the arena: nothing uses anything, and nobody else has it.
  void return_all() SPW_REQUIRES(kArenaLock);

 private:
  Status add_segment(SourcedPool& pool, Heap& heap, const SegmentMemory& memory, uint32_t pages);

  ArenaParts& parts_;
  StreamHeaps& heaps_;
};

}  // namespace spillway
