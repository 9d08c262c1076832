// A heap: the memory of one stream in one pool. What is free of its pages (free_pages.h), the ranges that its
// blocks have had (range_cache.h), which of them the program wants next (predictor.h), its slabs
// (slab_heap.h), and the frees that wait for other streams (pending_frees.h).
//
// A request is served, cheapest first: by the predictor; by a range of the same size; by a hole of the home
// view, the one that consumes the fewest whole pages, or for programs that do not repeat themselves the
// closest fit; and, when the ladder calls plan() for it, by an aliasing view over scattered pages or by new
// pages.
//
// Every method needs the heap's `mutex` unless it says otherwise; the slow path needs the arena's lock as
// well.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/free_pages.h"
#include "allocator/page_store.h"
#include "allocator/pending_frees.h"
#include "allocator/pool.h"
#include "allocator/predictor.h"
#include "allocator/purchase.h"
#include "allocator/range_cache.h"
#include "allocator/request.h"
#include "allocator/slab_heap.h"
#include "allocator/timeline.h"
#include "stats/counters.h"

namespace spillway {

class Heap {
 public:
  Heap(PageStore& store, DeviceCounters& counters, EventPool& events, const Driver& driver, CUcontext context,
       const HeapKey& key, std::atomic<const SequencePredictor*>& leader, BlockGrain grain);

  BiasedMutex mutex;
  HeapCounters counters;
  Timeline timeline SPW_GUARDED_BY(mutex);
  // Changes under the arena's lock too: take_over(), serve_pool().
  HeapKey key;
  StreamLife life;
  HeapUse use;

  // Need no lock.
  int device() const { return store_.device(); }
  const PageStore& store() const { return store_; }
  // Its memory comes from a source of its pool's, and is no other heap's.
  bool is_sourced() const { return store_.is_sourced(); }
  // Blocks of any size are large ones: no slab is opened here.
  bool has_no_slabs() const { return grain_ == BlockGrain::kSegment; }
  Request large_request(uint64_t bytes) const;
  // Its stream is gone: it lends and takes frees back, but serves nobody.
  bool is_closed() const { return life.is_over.load(std::memory_order_relaxed); }

  CUstream stream() const SPW_REQUIRES(mutex) { return key.stream; }
  void close(bool covered) SPW_REQUIRES(mutex);
  // Serves another stream from now on; the old one is over. Frees that wait for others go on waiting.
  void take_over(const HeapKey& by) SPW_REQUIRES(mutex);
  // Another pool's from now on. The heap is idle.
  void serve_pool(PoolId pool) SPW_REQUIRES(mutex);
  // What is free of it may leave from now on.
  void pool_released() SPW_REQUIRES(mutex);
  // Its pages are counted here from now on; null where no pool claims them. Under the arena's lock too.
  void count_for(spw_stat* pool_bytes) SPW_REQUIRES(mutex);
  const spw_stat* pool_bytes() const SPW_REQUIRES(mutex) { return pool_bytes_; }

  // ---- Requests

  // A slot of the class, or null when the heap has to find room for a slab first.
  void* allocate_small(uint32_t size_class, uint64_t requested_bytes) SPW_REQUIRES(mutex);
  // A range that was taken becomes the program's block, or gives it one of its slots: *out. False, with the
  // range given back, when host memory has run out.
  bool make_live(CachedRange& range, uint64_t requested_bytes, void** out) SPW_REQUIRES(mutex);
  bool make_slot_live(CachedRange& range, uint32_t size_class, uint64_t requested_bytes, void** out)
      SPW_REQUIRES(mutex);

  const Predictor& predictor() const SPW_REQUIRES(mutex) { return predictor_; }
  // These answer a range that was taken, or null; this one that of a slab which has room already.
  CachedRange* slab_with_room(const Request& request) const SPW_REQUIRES(mutex);
  // The range that the predictor names, if it is free: at once; after a look for the program; or both.
  CachedRange* take_predicted(const Request& request) SPW_REQUIRES(mutex);
  CachedRange* take_searched(const Request& request) SPW_REQUIRES(mutex);
  CachedRange* take_located(const Request& request) SPW_REQUIRES(mutex);
  // The first guess did not serve the request; nor did a look for the program.
  void note_unserved(const Request& request) SPW_REQUIRES(mutex);
  void note_miss(const Request& request) SPW_REQUIRES(mutex);
  // For a program that does not repeat itself, or whose guesses name what is in use: see
  // FreePages::find_close_fit. Null too where a look for it may help.
  CachedRange* take_close_fit(const Request& request) SPW_REQUIRES(mutex);
  // Any other range that needs no driver call. `frugal`: no hole that breaks a page which a view would spare.
  CachedRange* take_found(const Request& request, bool frugal) SPW_REQUIRES(mutex);
  // All of these in turn: for what came free since they were tried.
  CachedRange* take_again(const Request& request, bool frugal) SPW_REQUIRES(mutex);

  // ---- Frees

  // Both serve the block at `va`, which the address map says may lie in `range`.
  Status free(CachedRange& range, uint64_t va) SPW_REQUIRES(mutex);
  Status record_stream(CachedRange& range, uint64_t va, CUstream stream) SPW_REQUIRES(mutex);
  Status quarantine(CachedRange& range, uint64_t va, uint64_t* bytes) SPW_REQUIRES(mutex);
  Status release_quarantined(CachedRange& range, uint64_t va) SPW_REQUIRES(mutex);
  const PendingFrees& pending() const SPW_REQUIRES(mutex) { return pending_; }
  PendingFrees& pending() SPW_REQUIRES(mutex) { return pending_; }
  // Completes those whose streams are done; answers how many that was.
  size_t complete_finished_frees() SPW_REQUIRES(mutex);
  // Tells whether events on the heap's stream and of its pending frees mark all that uses its memory.
  bool events_mark_all_uses() const SPW_REQUIRES(mutex) { return !use.is_replayed && pending_.have_events(); }
  // Slabs without a live slot give their range back; answers how many.
  size_t release_empty_slabs() SPW_REQUIRES(mutex) { return slabs_.release_empty(); }

  // ---- Pages

  const FreePages& pages() const SPW_REQUIRES(mutex) { return pages_; }
  // Tells whether no block lives here and nothing may still use the memory. Gives up empty slabs.
  bool is_idle() SPW_REQUIRES(mutex);
  // The first tells whether the uses of a free page are over as of the last wait of the host; the second
  // whether it may be given back therefore.
  bool is_done_with(PageId page) const SPW_REQUIRES(mutex);
  bool may_release(PageId page) const SPW_REQUIRES(mutex) {
    return !use.keeps_pages && pages_.is_free(page) && is_done_with(page);  // mutant: page-leaves
  }
  // Lists the pages that may leave the heap: all, or, where it keeps them, those that its pool never used.
  void list_leavable(std::vector<PageId>& out) const SPW_REQUIRES(mutex);
  // Moves free pages of `from` here; the caller has ordered the streams.
  void receive(Heap& from, const std::vector<PageId>& pages) SPW_REQUIRES(mutex, from.mutex);
  // New pages, or pages taken out before their release.
  void add_free(PageId first, uint32_t count) SPW_REQUIRES(mutex);
  void drop_free(PageId first, uint32_t count) SPW_REQUIRES(mutex);
  // Gives the driver those of its free pages that are done with; `pages` are those that went, then.
  Status release_free(std::vector<PageId>& pages) SPW_REQUIRES(kArenaLock, mutex);
  // Returns what it could serve a request from without new memory.
  FreeSpace free_space() SPW_REQUIRES(mutex);

  // ---- Slow path: see FreePages

  // Says how what the predictor does not serve is placed: where the fewest pages are taken; or, while there
  // is room and the program does not repeat itself, at the closest fit; or so, and pages are spent to spare
  // driver calls.
  enum class Placement : uint8_t { kFrugal, kClose, kSpending };
  Placement placement() const SPW_REQUIRES(mutex);
  bool spends_pages() const SPW_REQUIRES(mutex) { return placement() == Placement::kSpending; }
  const Purchase& purchase() const SPW_REQUIRES(mutex) { return purchase_; }
  CachedRange* reuse_view(const Request& request, uint32_t most_pages, bool spare_mappings)
      SPW_REQUIRES(mutex, kArenaLock);
  Plan plan(const Request& request, uint32_t spare_pages = 0) SPW_REQUIRES(mutex, kArenaLock);
  Result<CachedRange*> take_planned(const Request& request, const Plan& plan) SPW_REQUIRES(mutex, kArenaLock);
  // Where mappings are many: see Predictor::keep_together and FreePages::break_pages.
  void keep_together(bool together, bool breaks_pages) SPW_REQUIRES(mutex);

  // ---- heap_state.cpp. For the heaps of a pool that was not released: the blocks in the program's hands

  HeapState save() SPW_REQUIRES(mutex);
  // Checks whether restore() can be done, which cannot fail then; lists what it will free and allocate.
  // Errors: invalid_state (another stream still uses memory of the state).
  Status prepare_restore(const HeapState& state, std::vector<RestoredBlock>& freed,
                         std::vector<RestoredBlock>& allocated) SPW_REQUIRES(mutex);
  // Frees the blocks in the program's hands and allocates those of the state, each at its range. What lies in
  // both stays as it is. Errors: internal.
  Status restore(const HeapState& state) SPW_REQUIRES(mutex);

  // ---- What there is

  template <typename Visit>
  void for_each_range(Visit visit) const SPW_REQUIRES(mutex) {
    ranges_.for_each(visit);
  }
  uint64_t metadata_bytes() const SPW_REQUIRES(mutex);

 private:
  CachedRange* serve(const Request& request, CachedRange* range) SPW_REQUIRES(mutex) {
    predictor_.note(request, range);
    return range;
  }
  // A slot of the slab with room, which there is.
  void* take_slot(uint32_t size_class, uint64_t requested_bytes) SPW_REQUIRES(mutex);
  // The range is remembered as its placement says.
  CachedRange* settle(const Request& request, Layout layout, Placement placed) SPW_REQUIRES(mutex);
  CachedRange* take_same_size(const Request& request) SPW_REQUIRES(mutex);
  CachedRange* take_segment(const Request& request) SPW_REQUIRES(mutex);
  void give_back(CachedRange& range) SPW_REQUIRES(mutex);  // what was taken and not made live
  void count_in_pool(int64_t bytes) SPW_REQUIRES(mutex);

  // Tells whether a live block begins at `va`; *slot is kMostSlots where it is no slot of a slab.
  bool begins_live(const CachedRange& range, uint64_t va, uint32_t* slot) const SPW_REQUIRES(mutex);
  void mark_pending(CachedRange& range, uint32_t slot) SPW_REQUIRES(mutex);
  void free_after_streams(CachedRange& range, uint64_t va, uint32_t slot) SPW_REQUIRES(mutex);
  void complete_free(CachedRange& range, uint32_t slot) SPW_REQUIRES(mutex);

  void free_all_but(const HeapState& state, CachedRange& range) SPW_REQUIRES(mutex);
  Status restore_large(CachedRange& range, uint64_t requested_bytes) SPW_REQUIRES(mutex);
  Status restore_slab(CachedRange& range, const Slab& saved) SPW_REQUIRES(mutex);

  PageStore& store_;
  const BlockGrain grain_;
  spw_stat* pool_bytes_ SPW_GUARDED_BY(mutex) = nullptr;
  FreePages pages_ SPW_GUARDED_BY(mutex);
  RangeCache ranges_ SPW_GUARDED_BY(mutex);
  Predictor predictor_ SPW_GUARDED_BY(mutex);
  Purchase purchase_ SPW_GUARDED_BY(mutex);
  SlabHeap slabs_ SPW_GUARDED_BY(mutex);
  PendingFrees pending_ SPW_GUARDED_BY(mutex);
};

}  // namespace spillway
