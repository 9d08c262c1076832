// Waits of the host for what uses an arena's memory. No lock is held during one.
//
// Events on the streams mark what is waited for, where they can: a wait for the whole context would end the
// capture of a stream that the arena does not know. Where such a capture is likely, heaps beyond the reach of
// events are left out.
//
// Thread-safe. The calling thread has the arena's context, but where a method says otherwise.
#pragma once

#include <cuda.h>

#include <vector>

#include "allocator/arena_parts.h"
#include "allocator/heap.h"
#include "allocator/open_pools.h"
#include "allocator/stream_heaps.h"

namespace spillway {

class DeviceWaits {
 public:
  DeviceWaits(ArenaParts& parts, const OpenPools& open_pools, StreamHeaps& heaps)
      : parts_(parts), open_pools_(open_pools), heaps_(heaps) {}

  // Waits for what uses the memory of these heaps, all there are, and for pending frees of shared blocks;
  // what was freed before is then complete. *everything (may be null): none was left out. Errors: driver.
  Status synchronize(const std::vector<Heap*>& all, bool* everything = nullptr);
  Status synchronize_context(const std::vector<Heap*>& all);
  // The same, and what it lets the chosen ones free is complete too.
  Status synchronize_with_frees(const std::vector<Heap*>& all, const std::vector<Heap*>& chosen);
  // Waits until nothing that was enqueued so far uses the arena's memory; false where that cannot be told.
  // Enters the context by itself.
  bool wait_if_nothing_captures();
  // Waits for the other streams that still use what the heap has pending; false where there are none. The
  // heap's stream is not captured.
  bool wait_for_pending_frees(Heap& heap);
  // Tells whether waiting for the whole context can disturb no capture, as far as can be known without
  // disturbing one.
  bool may_wait_for_context() const;

 private:
  // False where that cannot be done.
  bool mark_uses(Heap& heap, std::vector<Event>& marks, std::vector<CUevent>& events)
      SPW_REQUIRES(heap.mutex);

  ArenaParts& parts_;
  const OpenPools& open_pools_;
  StreamHeaps& heaps_;
};

}  // namespace spillway
