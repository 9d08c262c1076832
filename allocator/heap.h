// A heap: the memory of one stream in one pool. What is free of its pages (free_pages.h), the places that its
// blocks have had (extent_cache.h), which of them the program wants next (sequence_predictor.h), its slabs
// (slab_heap.h), and the frees that wait for other streams (pending_frees.h).
//
// A request is served, cheapest first: by the predictor; by a place of the same size; by a hole of the home
// view (a run of vacant pages with what is free at its two ends), the hole that consumes the fewest whole
// pages first; and, when the ladder calls plan() for it, by an aliasing view over scattered pages or by new
// pages. Everything but the last makes no driver call.
//
// Every method needs the heap's `mutex` unless it says otherwise; those under "slow path" need the arena's
// lock as well.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/extent_cache.h"
#include "allocator/free_pages.h"
#include "allocator/mutex.h"
#include "allocator/page_store.h"
#include "allocator/pending_frees.h"
#include "allocator/place.h"
#include "allocator/pool.h"
#include "allocator/request.h"
#include "allocator/sequence_predictor.h"
#include "allocator/slab_heap.h"
#include "allocator/stream_identity.h"
#include "allocator/timeline.h"
#include "driver/event.h"
#include "stats/counters.h"
#include "stats/segment_row.h"

namespace spillway {

struct HeapKey : StreamIdentity {
  PoolId pool;
};

class Heap {
 public:
  Heap(PageStore& store, DeviceCounters& counters, EventPool& events, const Driver& driver, CUcontext context,
       const HeapKey& key, std::atomic<const Journal*>& leader, BlockUnit unit);

  BiasedMutex mutex;
  HeapCounters counters;
  Timeline timeline SPW_GUARDED_BY(mutex);
  // Another when the heap of a stream that is gone is taken over; its pool also when the heap is idle.
  // Changes under the arena's lock too.
  HeapKey key;
  std::shared_ptr<const std::atomic<bool>> thread_ended;  // of a per-thread default stream
  // What follows from its pool, see PoolTable::set_use_of.
  struct Use {
    // Nothing leaves it: of a private pool that was not released, or of one whose memory moves or is away.
    bool keeps_pages = false;
    // Graphs that were captured over its memory are replayed on any stream, and stamp nothing.
    bool is_replayed = false;
    bool may_move = false;  // of a pool whose memory can leave the device
  } use;

  // Need no lock.
  int device() const { return store_.device(); }
  const PageStore& store() const { return store_; }
  // Its memory comes from a source of its pool's, and is no other heap's.
  bool is_sourced() const { return store_.is_sourced(); }
  // Blocks of any size are large ones: no slab is opened here.
  bool has_no_slabs() const { return unit_ == BlockUnit::kSegment; }
  Request large_request(uint64_t bytes) const;
  // Its stream is gone: it lends and takes frees back, but serves nobody.
  bool is_closed() const { return closed_.load(std::memory_order_relaxed); }

  void close(bool covered) SPW_REQUIRES(mutex);
  // Serves another stream from now on; the old one is over. Frees that wait for others go on waiting.
  void take_over(const HeapKey& by) SPW_REQUIRES(mutex);
  // Another pool's from now on. The heap is idle.
  void serve_pool(PoolId pool) SPW_REQUIRES(mutex);
  // What is free of it may leave from now on.
  void pool_released() SPW_REQUIRES(mutex);
  // Its pages are the pool's from now on, which counts them here; null where no pool claims them. Under the
  // arena's lock, under which pages come and go.
  void count_for(spw_stat* pool_bytes) SPW_REQUIRES(mutex);
  const spw_stat* pool_bytes() const SPW_REQUIRES(mutex) { return pool_bytes_; }

  // ---- Requests

  // A slot of the class, or null when the heap has to find room for a slab first.
  void* allocate_small(uint32_t size_class, uint64_t requested_bytes) SPW_REQUIRES(mutex);
  // A place that was taken becomes the program's block, or gives it one of its slots: *out. False, with the
  // place given back, when host memory has run out.
  bool make_live(Place& place, uint64_t requested_bytes, void** out) SPW_REQUIRES(mutex);
  bool make_slot_live(Place& place, uint32_t size_class, uint64_t requested_bytes, void** out)
      SPW_REQUIRES(mutex);

  // The place that served this request when the program was last here, as far as is known, free or not.
  Place* expected(const Request& request) const SPW_REQUIRES(mutex) { return predictor_.expected(request); }
  // The next answer places that were taken, or null. That of a slab that has room by now, which serves a
  // slab's request as well.
  Place* slab_with_room(const Request& request) const SPW_REQUIRES(mutex);
  // The predictor's first guess, if it is free.
  Place* take_predicted(const Request& request) SPW_REQUIRES(mutex);
  // Looks for where the program is, so that expected() is the best guess, and takes that place if it is free.
  Place* take_located(const Request& request) SPW_REQUIRES(mutex);
  // Any other place that needs no driver call; take_located() has answered null. With `frugal`, holes that
  // break a page that a view would spare are passed over.
  Place* take_found(const Request& request, bool frugal) SPW_REQUIRES(mutex);
  // All of these in turn: for what came free since they were tried.
  Place* take_again(const Request& request, bool frugal) SPW_REQUIRES(mutex);
  // How often a request that was not served at once was tried in the place that was guessed, and how often
  // the journal was searched. For tests.
  struct Looks {
    uint64_t guessed = 0;
    uint64_t searched = 0;
  };
  Looks looks() const SPW_REQUIRES(mutex) { return {predictor_.guesses(), predictor_.searches()}; }

  // ---- Frees

  // Of the block at `va`, which the address map says may lie in `place`.
  Status free(Place& place, uint64_t va) SPW_REQUIRES(mutex);
  Status record_stream(Place& place, uint64_t va, CUstream stream) SPW_REQUIRES(mutex);
  // A free in two parts, see Arena::withhold.
  Status withhold(Place& place, uint64_t va, uint64_t* bytes) SPW_REQUIRES(mutex);
  Status release_withheld(Place& place, uint64_t va) SPW_REQUIRES(mutex);
  // See the methods of PendingFrees by these names. Not while the heap's stream is captured, where it waits.
  size_t complete_finished_frees() SPW_REQUIRES(mutex);
  bool has_pending_frees() const SPW_REQUIRES(mutex) { return !pending_.empty(); }
  Result<size_t> complete_frees_behind_stream(uint32_t enough_lines) SPW_REQUIRES(mutex);
  bool complete_free_behind_stream(const Place& place) SPW_REQUIRES(mutex);
  void complete_frees_on_pages(const std::vector<PageId>& pages) SPW_REQUIRES(mutex);
  bool is_used_by(CUstream stream) const SPW_REQUIRES(mutex) { return pending_.is_used_by(stream); }
  void stream_goes(const StreamIdentity& stream) SPW_REQUIRES(mutex) { pending_.stream_goes(stream); }
  // Whether an event on the heap's stream and those of its pending frees mark all that uses its memory.
  bool events_mark_all_uses() const SPW_REQUIRES(mutex) { return !use.is_replayed && pending_.have_events(); }
  void list_pending_events(std::vector<CUevent>& out) const SPW_REQUIRES(mutex) { pending_.list_events(out); }
  // Slabs without a live slot give their place back; answers how many.
  size_t release_empty_slabs() SPW_REQUIRES(mutex) { return slabs_.release_empty(); }

  // ---- Pages

  uint32_t vacant_pages() const SPW_REQUIRES(mutex) { return pages_.vacant(); }
  uint32_t owned_pages() const SPW_REQUIRES(mutex) { return pages_.owned(); }
  bool is_vacant(PageId page) const SPW_REQUIRES(mutex) { return pages_.is_vacant(page); }
  // Whether no block lives here and nothing that used the memory may still be at work. Gives up empty slabs.
  bool is_idle() SPW_REQUIRES(mutex);
  // See FreePages. Whether the uses of a vacant page are over as of the last wait of the host; and whether it
  // may be given back therefore.
  uint64_t last_use(PageId page) const SPW_REQUIRES(mutex) { return pages_.last_use(page); }
  bool is_done_with(PageId page) const SPW_REQUIRES(mutex) { return timeline.is_complete(last_use(page)); }
  bool may_release(PageId page) const SPW_REQUIRES(mutex) {
    return !use.keeps_pages && is_vacant(page) && is_done_with(page);
  }
  void choose_vacant(uint32_t most, std::vector<PageId>& out) const SPW_REQUIRES(mutex) {
    pages_.choose_vacant(most, out);
  }
  // Those that may leave the heap: all, unless it keeps them; then those that its pool never used, which an
  // earlier pool that it served left behind.
  void list_leavable(std::vector<PageId>& out) const SPW_REQUIRES(mutex);
  void pages_missing_from(const Place& place, std::vector<PageId>& missing) const SPW_REQUIRES(mutex) {
    pages_.list_missing(place, missing);
  }
  // Moves vacant pages of `from` here; the caller has ordered the streams.
  void receive(Heap& from, const std::vector<PageId>& pages) SPW_REQUIRES(mutex, from.mutex);
  // New pages, or pages taken out before their release.
  void add_vacant(PageId first, uint32_t count) SPW_REQUIRES(mutex);
  void drop_vacant(PageId first, uint32_t count) SPW_REQUIRES(mutex);
  // What it could serve a request from without new memory.
  FreeSpace free_space() SPW_REQUIRES(mutex);

  // ---- Slow path: see FreePages

  Place* take_window(const Request& request, uint32_t most_pages, bool spare_mappings)
      SPW_REQUIRES(mutex, kArenaLock);
  Plan plan(const Request& request, uint32_t spare_pages = 0) SPW_REQUIRES(mutex, kArenaLock) {
    return pages_.plan(request, spare_pages);
  }
  Result<Place*> take_planned(const Request& request, const Plan& plan) SPW_REQUIRES(mutex, kArenaLock);
  // Where mappings are many: see SequencePredictor::keep_together and FreePages::break_pages.
  void keep_together(bool together, bool breaks_pages) SPW_REQUIRES(mutex);

  // ---- heap_state.cpp. For the heaps of a pool that was not released: the blocks in the program's hands

  HeapState save() SPW_REQUIRES(mutex);
  // Whether restore() can be done, which cannot fail then; lists what it will free and allocate. Errors:
  // invalid_state (another stream still uses memory of the state).
  Status prepare_restore(const HeapState& state, std::vector<RestoredBlock>& freed,
                         std::vector<RestoredBlock>& allocated) SPW_REQUIRES(mutex);
  // Frees the blocks in the program's hands and allocates those of the state, each at its place. What lies in
  // both stays as it is. Errors: internal.
  Status restore(const HeapState& state) SPW_REQUIRES(mutex);

  // ---- What there is

  // Calls visit(view, age) for the views that places of this heap lie in: the age counts requests since the
  // place was taken last, and is 0 for one that is in use, or may be by a graph that is replayed.
  template <typename Visit>
  void for_each_view_used(Visit visit) const SPW_REQUIRES(mutex);
  template <typename Visit>
  void for_each_place(Visit visit) const SPW_REQUIRES(mutex) {
    extents_.for_each(visit);
  }
  // Re-derives what the heap knows of its pages and compares; validate.cpp.
  Status validate() const SPW_REQUIRES(mutex);
  uint64_t metadata_bytes() const SPW_REQUIRES(mutex);
  // listing.cpp. The block in use, or pending, that begins there. Errors: invalid_pointer.
  Result<BlockRow> find_block(const Place& place, uint64_t va) const SPW_REQUIRES(mutex);
  // Blocks of all kinds, the free ones included, in no order.
  void list_blocks(std::vector<BlockRow>& rows) const SPW_REQUIRES(mutex);
  // Tells the trace that every block is gone, as they are with the arena.
  void trace_end() SPW_REQUIRES(mutex);

 private:
  // The place was taken for the request.
  Place* serve(const Request& request, Place* place) SPW_REQUIRES(mutex) {
    predictor_.note(request, place);
    return place;
  }
  // A new place, taken.
  Place* settle(const Request& request, Layout layout) SPW_REQUIRES(mutex);
  Place* take_same_size(const Request& request) SPW_REQUIRES(mutex);
  Place* take_segment(const Request& request) SPW_REQUIRES(mutex);
  // What was taken and not made live is free again.
  void give_back(Place& place) SPW_REQUIRES(mutex);
  void count_in_pool(int64_t bytes) SPW_REQUIRES(mutex);

  // Whether a live block begins at `va`; *slot is kMostSlots where it is no slot of a slab.
  bool begins_live(const Place& place, uint64_t va, uint32_t* slot) const SPW_REQUIRES(mutex);
  void mark_pending(Place& place, uint32_t slot) SPW_REQUIRES(mutex);
  void free_after_streams(Place& place, uint64_t va, uint32_t slot) SPW_REQUIRES(mutex);
  void complete_free(Place& place, uint32_t slot) SPW_REQUIRES(mutex);
  PendingFrees::Complete completing() SPW_REQUIRES(mutex);

  void free_all_but(const HeapState& state, Place& place) SPW_REQUIRES(mutex);
  Status restore_large(Place& place, uint64_t requested_bytes) SPW_REQUIRES(mutex);
  Status restore_slab(Place& place, const Slab& saved) SPW_REQUIRES(mutex);

  PageStore& store_;
  const BlockUnit unit_;
  std::atomic<bool> closed_{false};
  spw_stat* pool_bytes_ SPW_GUARDED_BY(mutex) = nullptr;
  FreePages pages_ SPW_GUARDED_BY(mutex);
  ExtentCache extents_ SPW_GUARDED_BY(mutex);
  SequencePredictor predictor_ SPW_GUARDED_BY(mutex);
  SlabHeap slabs_ SPW_GUARDED_BY(mutex);
  PendingFrees pending_ SPW_GUARDED_BY(mutex);
};

template <typename Visit>
void Heap::for_each_view_used(Visit visit) const {
  const bool keeps_pages = use.keeps_pages;
  const uint64_t now = predictor_.now();
  extents_.for_each([&](const Place& place) {
    if (place.view == nullptr) return;
    // A block outlives the loss of another slot of its view.
    const bool in_use = place.state != BlockState::kFree || keeps_pages;
    if (!is_lost(place) || in_use) visit(place.view, in_use ? 0 : now - place.last_use);
  });
}

}  // namespace spillway
