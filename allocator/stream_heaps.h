// Finds which heap serves a stream, and says what becomes of it when the stream goes.
//
// A heap outlives its stream. A stream that the program announces as going (stream_destroyed) is closed by an
// event after the last of its work; one whose handle turns out to be another's is closed without, and then
// only a wait of the host for the device orders its memory. Either way the heap goes on as a lender, and once
// its stream's work is over the next new stream takes it over, with all it holds and remembers.
//
// Until it is announced, a stream counts as alive, and is named to the driver when other streams want its
// memory. One whose end may come unseen is never: what it freed serves others after a wait of the host.
// docs/decisions/stream-identity.md.
//
// Thread-safe.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "allocator/arena_parts.h"
#include "allocator/heap.h"
#include "allocator/last_heap.h"
#include "allocator/open_pools.h"

namespace spillway {

class StreamHeaps {
 public:
  StreamHeaps(ArenaParts& parts, OpenPools& open_pools);

  // The heap that this thread used last, if that is the one that serves the stream; or null.
  Heap* remembered(CUstream stream) const {
    if (open_pools_.any()) return nullptr;
    const bool is_it =
        last_heap.stamp == stamp_.load(std::memory_order_relaxed) && last_heap.stream == stream;
    return is_it ? last_heap.heap : nullptr;
  }
  // The heap that serves the stream from now on: one that does, an old one that can, or a new one. Errors:
  // invalid_argument (a stream of another context), driver.
  Result<Heap*> find(CUstream stream);

  // All there are, for as long as the arena lives; those of one pool; the streams that are served.
  std::vector<Heap*> all() const;
  std::vector<Heap*> of(PoolId id) const;
  std::vector<CUstream> streams() const;

  // The program may destroy it without a word: each request that names it asks which stream it is.
  void expect_unseen_end(CUstream stream);
  // Returns that of a stream that the program just named. Errors: those of identify().
  Result<StreamIdentity> identify_named(CUstream stream) const;
  // The program just named a stream by the handle of the heap's: tells whether the heap's is gone, in which
  // case the heap is closed.
  bool named_has_gone(Heap& heap) SPW_REQUIRES(heap.mutex);
  // The heap's stream may be named to the driver now, whatever the program has named.
  bool is_in_reach(const Heap& heap) const SPW_REQUIRES(heap.mutex);
  void close(Heap& heap, bool covered) SPW_REQUIRES(heap.mutex);
  // Tells whether the heap's stream is being captured; a stream that is gone is not. Of one whose end may be
  // unseen, whether it was when the program named it last.
  bool is_capturing(Heap& heap) SPW_REQUIRES(heap.mutex);
  bool any_capturing(const std::vector<Heap*>& heaps);
  // See Arena::stream_destroyed.
  Status stream_destroyed(CUstream stream);

  // The end of all heaps. Nobody else has the arena any more.
  void clear();

 private:
  // Identifies a stream by its handle, which no two streams have at the same time.
  using StreamKey = std::tuple<CUstream, uint64_t, PoolId>;
  static StreamKey key_of(const HeapKey& key) { return {key.stream, key.thread, key.pool}; }

  Result<Heap*> open(const HeapKey& wanted);
  // The next two answer null if there is none. A heap of the stream whose pool was released and whose memory
  // nothing uses any more: programs that capture and release graphs without end would else make heaps
  // without end.
  Heap* reuse_released(const HeapKey& key) SPW_REQUIRES(kArenaLock);
  // One whose stream is gone, and over.
  Heap* take_over_closed(const HeapKey& key) SPW_REQUIRES(kArenaLock);
  bool may_take_over(Heap& heap, PoolId pool) SPW_REQUIRES(kArenaLock, heap.mutex);
  // Closes the heaps whose stream can be known to be gone: another has its handle, or its thread has ended.
  void close_unreachable(const HeapKey& opened);
  // A stream is served from a movable pool: is it being captured? With no lock held.
  void note_capture(const OpenPool& pool, CUstream stream);
  bool ends_unseen(CUstream stream) const;
  BlockGrain grain_of(PoolId pool) const SPW_REQUIRES(kArenaLock);

  ArenaParts& parts_;
  OpenPools& open_pools_;
  // What threads remember of heaps is of this arena, and true, while it bears this number. No two arenas ever
  // have the same.
  std::atomic<uint64_t> stamp_;
  std::atomic<const SequencePredictor*> leader_{nullptr};  // see sequence_predictor.h

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Heap>> heaps_ SPW_GUARDED_BY(mutex_);
  std::map<StreamKey, Heap*> serving_ SPW_GUARDED_BY(mutex_);
  std::vector<Heap*> closed_ SPW_GUARDED_BY(mutex_);  // to be taken over
  std::set<CUstream> ending_unseen_ SPW_GUARDED_BY(mutex_);
  std::atomic<bool> any_ends_unseen_{false};
};

}  // namespace spillway
