// A heap: the memory of one stream in one pool. It knows which of its pages are vacant (a bitmap), what is
// free inside the partly used ones (an index of fragments), which places its blocks have had (by size, and in
// the order of requests: the journal), and its slabs.
//
// A request is served, cheapest first: by the journal; by a place of the same size; by a hole of the home
// view (a run of vacant pages with what is free at its two ends), the hole that consumes the fewest whole
// pages first; and, when the arena calls plan() for it, by an aliasing view over scattered pages or by new
// pages. Everything but the last makes no driver call.
//
// Every method needs the heap's `mutex`; those under "slow path" need the arena's lock as well.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/captured_order.h"
#include "allocator/fragments.h"
#include "allocator/free_space.h"
#include "allocator/index_set.h"
#include "allocator/journal.h"
#include "allocator/mutex.h"
#include "allocator/openings.h"
#include "allocator/page_store.h"
#include "allocator/place.h"
#include "allocator/pool.h"
#include "allocator/slab.h"
#include "allocator/stream_identity.h"
#include "allocator/timeline.h"
#include "driver/event.h"
#include "stats/counters.h"
#include "stats/segment_row.h"

namespace spillway {

struct HeapKey : StreamIdentity {
  PoolId pool;
};

// How a request may be served by pages that no place covers yet.
struct Plan {
  enum class Kind : uint8_t { kNone, kExtend, kView, kSegment };
  Kind kind = Kind::kNone;
  uint32_t new_pages = 0;  // to be created
  PageId head_page = kNoPage;
  uint32_t head_lines = 0;  // taken from the end of head_page
  PageId tail_page = kNoPage;
  uint32_t tail_lines = 0;  // taken from the beginning of tail_page
  uint32_t full_pages = 0;  // whole pages between the two; of a broken last page only the beginning is used
  PageId first_page = kNoPage;  // kExtend: the first whole page
  PageId first_new = kNoPage;   // kExtend: the first page to be created
  uint32_t spare_pages = 0;     // of the new ones, those that a view of own pages would have done without
};

// The slabs of one size class.
struct SlabClass {
  // Slots come from the first of the slabs with room, in an order that never changes: which slots are taken
  // then depends on what is live, not on what was before, and a program that repeats itself opens and
  // closes the same slabs in every pass.
  IndexSet room;  // by slab number
  uint32_t room_count = 0;
  Slab* with_room = nullptr;  // the first of them
  // A slab without live slots that is kept because no other has room, so that a lone slot does not carve
  // and give back.
  Slab* empty = nullptr;
  Openings openings;
};

// What is looked for: so many lines in a row, beginning at a multiple of `align_lines`. For a slab, its
// class, where openings are noted; what serves other requests is noted in the heap's journal.
struct Request {
  uint32_t lines = 0;
  uint32_t align_lines = 1;
  SlabClass* slab_class = nullptr;
  uint32_t size_class = 0;  // its number
};

// What a block of a page and more consists of: lines, of which others may have those of its first and last
// page; pages; or, alone of the three for a block of any size, one whole segment of the heap's source.
enum class BlockUnit : uint8_t { kLine, kPage, kSegment };

class Heap {
 public:
  Heap(PageStore& store, DeviceCounters& counters, EventPool& events, const Driver& driver, CUcontext context,
       const HeapKey& key, std::atomic<const Journal*>& leader, BlockUnit unit);
  ~Heap();

  BiasedMutex mutex;
  HeapCounters counters;
  Timeline timeline SPW_GUARDED_BY(mutex);
  // Another when the heap of a stream that is gone is taken over; its pool also when the heap is idle.
  // Changes under the arena's lock too.
  HeapKey key;
  std::shared_ptr<const std::atomic<bool>> thread_ended;  // of a per-thread default stream
  // Nothing leaves it: of a private pool that was not released, or of one whose memory moves or is away.
  bool keeps_pages = false;
  // Graphs that were captured over its memory are replayed on any stream, and stamp nothing.
  bool is_replayed = false;
  bool may_move = false;  // of a pool whose memory can leave the device

  // Blocks of any size are large ones: no slab is opened here.
  bool has_no_slabs() const { return unit_ == BlockUnit::kSegment; }

  // Its pages are the pool's from now on, which counts them here; null where no pool claims them. With the
  // arena's lock held, under which pages come and go.
  void count_for(spw_stat* pool_bytes) SPW_REQUIRES(mutex);
  const spw_stat* pool_bytes() const SPW_REQUIRES(mutex) { return pool_bytes_; }

  int device() const { return store_.device(); }
  const PageStore& store() const { return store_; }
  // Its memory comes from a source of its pool's, and is no other heap's.
  bool is_sourced() const { return store_.is_sourced(); }

  // Its stream is gone: it lends and takes frees back, but serves nobody. Needs no lock.
  bool is_closed() const { return closed_.load(std::memory_order_relaxed); }
  void close(bool covered) SPW_REQUIRES(mutex) {
    timeline.seal(covered);
    closed_.store(true, std::memory_order_relaxed);
  }
  // Serves another stream from now on; the old one is over. Frees that wait for others go on waiting.
  void take_over(const HeapKey& by) SPW_REQUIRES(mutex);

  // Small requests: a slot of the class, or null when the heap has to find room for a slab first.
  void* allocate_small(uint32_t size_class, uint64_t requested_bytes) SPW_REQUIRES(mutex);
  // The same where a slab has room, as after open_slab().
  void* allocate_slot(uint32_t size_class, uint64_t requested_bytes) SPW_REQUIRES(mutex);
  // What to ask of the methods below to open a slab, and what to do with the place.
  Request slab_request(uint32_t size_class) SPW_REQUIRES(mutex);
  // What to ask of this heap for what was to be asked of another.
  Request same_request(const Request& request) SPW_REQUIRES(mutex) {
    return request.slab_class == nullptr ? request : slab_request(request.size_class);
  }
  // The place of a slab that has room by now, which serves a slab's request as well; null if there is none.
  static Place* slab_with_room(const Request& request) {
    const Slab* slab = request.slab_class == nullptr ? nullptr : request.slab_class->with_room;
    return slab == nullptr ? nullptr : slab->place;
  }
  // False, with the place given back, when host memory has run out; so does make_live().
  bool open_slab(Place& place, uint32_t size_class) SPW_REQUIRES(mutex);

  Request large_request(uint64_t bytes) const;
  // The place that served this request when the program was last here, as far as is known, free or not.
  Place* expected(const Request& request) const SPW_REQUIRES(mutex);
  // That place, taken; null when it is not free.
  Place* take_predicted(const Request& request) SPW_REQUIRES(mutex);
  // Looks for where the program is, so that expected() is the best guess, and takes that place if it is free.
  Place* take_located(const Request& request) SPW_REQUIRES(mutex);
  // Any other place that needs no driver call, taken; take_located() has answered null. With `frugal`, holes
  // that break a page that a view would spare are passed over.
  Place* take_found(const Request& request, bool frugal) SPW_REQUIRES(mutex);
  // A slab with room, or the two in turn: for what came free since they were tried.
  Place* take_again(const Request& request, bool frugal) SPW_REQUIRES(mutex);
  // How often a request that was not served at once was tried in the place that was guessed, and how often
  // the journal was searched. For tests.
  struct Looks {
    uint64_t guessed = 0;
    uint64_t searched = 0;
  };
  Looks looks() const SPW_REQUIRES(mutex) { return {guessed_, journal_.searches()}; }
  bool make_live(Place& place, uint64_t requested_bytes) SPW_REQUIRES(mutex);

  // Frees the block at `va`, which the address map says may lie in `place`.
  Status free(Place& place, uint64_t va) SPW_REQUIRES(mutex);
  Status record_stream(Place& place, uint64_t va, CUstream stream) SPW_REQUIRES(mutex);
  // Whether a stream by this handle was recorded on a block; and what is left to do while it lives, for what
  // it did with those blocks.
  bool is_used_by(CUstream stream) const SPW_REQUIRES(mutex);
  void stream_goes(const StreamIdentity& stream) SPW_REQUIRES(mutex);
  // A free in two parts, see Arena::withhold.
  Status withhold(Place& place, uint64_t va, uint64_t* bytes) SPW_REQUIRES(mutex);
  Status release_withheld(Place& place, uint64_t va) SPW_REQUIRES(mutex);

  // Frees whose other streams are done are completed; answers how many blocks that was.
  size_t complete_finished_frees() SPW_REQUIRES(mutex);
  bool has_pending_frees() const SPW_REQUIRES(mutex) { return !pending_.empty(); }
  // The heap's stream waits on the device for pending frees, oldest first, until blocks of `enough_lines` are
  // complete in its order. Not while the stream is captured.
  Result<size_t> complete_frees_behind_stream(uint32_t enough_lines) SPW_REQUIRES(mutex);
  // The same for the free of one place; false if there is none, or it has no event to wait for.
  bool complete_free_behind_stream(const Place& place) SPW_REQUIRES(mutex);
  // The same for all frees of blocks that lie on one of these pages.
  void complete_frees_on_pages(const std::vector<PageId>& pages) SPW_REQUIRES(mutex);
  // Whether an event on the heap's stream and those of its pending frees mark all that uses its memory.
  bool events_mark_all_uses() const SPW_REQUIRES(mutex) {
    return !is_replayed && std::all_of(pending_.begin(), pending_.end(),
                                       [](const PendingFree& pending) { return pending.streams.empty(); });
  }
  // The events of pending frees, for a wait without locks.
  void list_pending_events(std::vector<CUevent>& out) const SPW_REQUIRES(mutex);
  // Slabs without a live slot give their place back; answers how many.
  size_t release_empty_slabs() SPW_REQUIRES(mutex);

  // heap_state.cpp. Tells the trace that every block is gone, as they are with the arena.
  void trace_end() SPW_REQUIRES(mutex);

  // For the heaps of a pool that was not released. The blocks in the program's hands.
  HeapState save() SPW_REQUIRES(mutex);
  // Whether restore() can be done, which cannot fail then; lists what it will free and allocate. Errors:
  // invalid_state (another stream still uses memory of the state).
  Status prepare_restore(const HeapState& state, std::vector<RestoredBlock>& freed,
                         std::vector<RestoredBlock>& allocated) SPW_REQUIRES(mutex);
  // Frees the blocks in the program's hands and allocates those of the state, each at its place. What lies in
  // both stays as it is. Errors: internal.
  Status restore(const HeapState& state) SPW_REQUIRES(mutex);
  // What is free of it may leave from now on.
  void pool_released() SPW_REQUIRES(mutex);

  // Slow path.
  // A place of at most `most_pages` vacant pages inside an aliasing view that exists already; null if none
  // was found. Blocks below 32 MiB go there only to spare mappings: for them a view of their own wastes less.
  Place* take_window(const Request& request, uint32_t most_pages, bool spare_mappings)
      SPW_REQUIRES(mutex, kArenaLock);
  // With `spare_pages`, up to so many pages are created where a view of own pages would do, to spare its
  // mappings.
  Plan plan(const Request& request, uint32_t spare_pages = 0) SPW_REQUIRES(mutex, kArenaLock);
  // Where mappings are many: the places of a program that does not repeat itself are not remembered, because
  // what settles here and there by chance breaks the runs of pages that larger blocks need without a view.
  // With `breaks_pages`, holes are taken although a view would spare a page, until hardly any page is vacant.
  void keep_together(bool together, bool breaks_pages) SPW_REQUIRES(mutex) {
    keeps_together_ = together;
    breaks_pages_ = breaks_pages;
  }
  Result<Place*> take_planned(const Request& request, const Plan& plan) SPW_REQUIRES(mutex, kArenaLock);
  // Pages that the place predicted for the request needs, or nothing if it could not be taken even with them.
  void pages_missing_from(const Place& place, std::vector<PageId>& missing) const SPW_REQUIRES(mutex);
  uint32_t vacant_pages() const SPW_REQUIRES(mutex) { return vacant_count_; }
  uint32_t owned_pages() const SPW_REQUIRES(mutex) { return owned_count_; }
  // Whether no block lives here and nothing that used the memory may still be at work. Gives up empty slabs.
  bool is_idle() SPW_REQUIRES(mutex);
  bool is_vacant(PageId page) const SPW_REQUIRES(mutex) { return vacant_.test(page); }
  // Vacant pages, those of the longest runs first; at most `most`.
  void choose_vacant(uint32_t most, std::vector<PageId>& out) const SPW_REQUIRES(mutex);
  // Those that may leave the heap: all, unless it keeps them; then those that its pool never used, which an
  // earlier pool that it served left behind.
  void list_leavable(std::vector<PageId>& out) const SPW_REQUIRES(mutex);
  // Another pool's from now on. The heap is idle.
  void serve_pool(PoolId pool) SPW_REQUIRES(mutex);
  // The epoch after which a vacant page may be used by another stream; kept for every kEpochPages pages
  // together, so that the free of a large block stores little, which may name a later epoch than needed,
  // never an earlier.
  uint64_t last_use(PageId page) const SPW_REQUIRES(mutex) { return epochs_[page / kEpochPages]; }
  // Whether the uses of a vacant page are over as of the last wait of the host; and whether it may be given
  // back therefore.
  bool is_done_with(PageId page) const SPW_REQUIRES(mutex) { return timeline.is_complete(last_use(page)); }
  bool may_release(PageId page) const SPW_REQUIRES(mutex) {
    return !keeps_pages && is_vacant(page) && is_done_with(page);
  }
  // As if everything vacant had been used just now.
  void stamp_all() SPW_REQUIRES(mutex) { std::fill(epochs_.begin(), epochs_.end(), timeline.epoch()); }
  // What it could serve a request from without new memory.
  FreeSpace free_space() SPW_REQUIRES(mutex);
  // Moves vacant pages of `from` here; the caller has ordered the streams.
  void receive(Heap& from, const std::vector<PageId>& pages) SPW_REQUIRES(mutex, from.mutex);
  // New pages, or pages taken out before their release.
  void add_vacant(PageId first, uint32_t count) SPW_REQUIRES(mutex);
  void drop_vacant(PageId first, uint32_t count) SPW_REQUIRES(mutex);

  // Calls visit(view, age) for the views that places of this heap lie in: the age counts requests since the
  // place was taken last, and is 0 for one that is in use, or may be by a graph that is replayed.
  template <typename Visit>
  void for_each_view_used(Visit visit) const SPW_REQUIRES(mutex) {
    for (const std::unique_ptr<Place>& place : places_) {
      if (place->view == nullptr) continue;
      // A block outlives the loss of another slot of its view.
      const bool in_use = place->state != BlockState::kFree || keeps_pages;
      if (is_lost(*place) && !in_use) continue;
      visit(place->view, in_use ? 0 : journal_.now() - place->last_use);
    }
  }

  // Re-derives what the heap knows of its pages and compares; see walk.cpp.
  Status validate() const SPW_REQUIRES(mutex);
  template <typename Visit>
  void for_each_place(Visit visit) const SPW_REQUIRES(mutex) {
    for (const std::unique_ptr<Place>& place : places_) visit(*place);
  }
  uint64_t metadata_bytes() const SPW_REQUIRES(mutex);
  // The block in use, or pending, that begins there. Errors: invalid_pointer.
  Result<BlockRow> find_block(const Place& place, uint64_t va) const SPW_REQUIRES(mutex);
  // The pages that a place lies on, in the order of its addresses.
  static std::vector<PageId> pages_of(const Place& place);
  // Blocks of all kinds, the free ones included, in no order.
  void list_blocks(std::vector<BlockRow>& rows) const SPW_REQUIRES(mutex);

 private:
  static constexpr uint32_t kEpochPages = 64;
  static constexpr uint64_t kRequestsToReview = 1024;
  // Where mappings are many, a program repeats itself when so many requests in a row were as remembered.
  static constexpr uint32_t kRequestsToTrust = 64;

  bool remembers() const SPW_REQUIRES(mutex) {
    return !keeps_together_ || led_by_ != nullptr || journal_.followed() >= kRequestsToTrust;
  }
  bool owns(const Page& page) const { return page.owner.load(std::memory_order_relaxed) == this; }
  void stamp(PageId first, uint32_t count) SPW_REQUIRES(mutex) {
    const uint64_t epoch = timeline.epoch();
    const PageId last = (first + count - 1) / kEpochPages;
    for (PageId group = first / kEpochPages; group <= last; ++group) epochs_[group] = epoch;
  }

  // Other streams that use a block: an event for each that is done with it, or has gone, else the stream.
  struct StreamUses {
    std::vector<StreamIdentity> streams;
    std::vector<Event> events;
    // The capture in which all of them were named, 0 if there is no such one. Of an open pool.
    std::optional<uint64_t> capture = std::nullopt;
  };
  // A block that the program freed and other streams still use. A stream is named only while it could not
  // record an event.
  struct PendingFree : StreamUses {
    Place* place;
    uint32_t slot;   // kMostSlots for a large block
    uint64_t epoch;  // of the heap's stream at the free: complete after a wait of the host for the device
                     // from then on
    CaptureTail captured = {};  // what the streams were last told, where that is all in one capture
  };
  // The net effect of taking or giving a place on the counters.
  struct Change {
    int64_t pages = 0;      // vacant ones that are used now, or the reverse
    int64_t fragments = 0;  // pieces of free space that appeared in partly used pages
    uint64_t page_bytes() const { return static_cast<uint64_t>(pages) * kPageBytes; }
  };

  // Whether the place could be taken now; of ends_fit() only its head and tail are free.
  bool fits(const Place& place) const SPW_REQUIRES(mutex);
  bool ends_fit(const Place& place) const SPW_REQUIRES(mutex);
  bool piece_is_free(PageId id, uint32_t begin, uint32_t end) const SPW_REQUIRES(mutex);
  // Takes the place if it fits. Leaves the effect in taken_, until the counters are told.
  bool take(Place& place) SPW_REQUIRES(mutex);
  Change give(Place& place) SPW_REQUIRES(mutex);
  void take_piece(PageId id, uint32_t begin, uint32_t end, Change& change) SPW_REQUIRES(mutex);
  void give_piece(PageId id, uint32_t begin, uint32_t end, Change& change) SPW_REQUIRES(mutex);
  void mark_dirty(PageId id) SPW_REQUIRES(mutex) {
    Page& page = store_.page(id);
    if (!page.dirty) {
      page.dirty = true;
      try {
        dirty_.push_back(id);
      } catch (const std::bad_alloc&) {
        dirty_is_short_ = true;
      }
    }
  }
  // Brings the fragment index up to date with the pages touched since the last search.
  void reindex() SPW_REQUIRES(mutex);

  // Whether the request may begin or end in a page that other blocks lie in.
  bool may_take_edges(const Request& request) const SPW_REQUIRES(mutex) {
    return request.align_lines == 1 && (unit_ == BlockUnit::kLine || request.lines < kPageLines);
  }
  Place* take_same_size(const Request& request) SPW_REQUIRES(mutex);
  Place* take_fragment(const Request& request) SPW_REQUIRES(mutex);
  Place* take_hole(const Request& request, bool frugal) SPW_REQUIRES(mutex);
  // The smallest vacant segment in which the request fits; null where all are much larger.
  Place* take_segment(const Request& request) SPW_REQUIRES(mutex);
  Place* new_place(uint32_t lines, uint64_t va, View* view) SPW_REQUIRES(mutex);
  // Its view lost a page or is retired: the bytes under its address are not the place's any more.
  static bool is_lost(const Place& place) {
    return place.view != nullptr &&
           place.view->generation.load(std::memory_order_relaxed) != place.view_generation;
  }
  // Without VMM: its segment was released, and its pages' ids serve another one.
  bool has_moved(const Place& place) const SPW_REQUIRES(mutex);
  Place* oldest_dead_place() SPW_REQUIRES(mutex);
  // Entries of blocks that are gone stay until others replace them, so those of a place that goes are
  // cleared.
  static void leave_address_map(const Place& place);
  void index_by_size(Place& place) SPW_REQUIRES(mutex);
  void unindex_by_size(Place& place) SPW_REQUIRES(mutex);
  // Notes that the place serves the request.
  Place* placed(const Request& request, Place* place) SPW_REQUIRES(mutex) {
    if (request.slab_class == nullptr) [[likely]] {
      journal_.append(request.lines, place, led_by_);
      if (journal_.now() % kRequestsToReview == 0) [[unlikely]]
        review_leader();
    } else {
      request.slab_class->openings.append(journal_, place);
    }
    return place;
  }
  // Whether another heap's journal should tell this one the time: only while it is much busier. Two busy
  // threads would else pass its cache line to and fro with every request.
  void review_leader() SPW_REQUIRES(mutex);
  // Describes the block that begins with `head_lines` at the end of head_page (if any) and goes on from page
  // `first`.
  static void lay_out(Place& place, PageId head_page, uint32_t head_lines, PageId first);
  // The same for slots of a view: slots[0] is the head page if there is one.
  static void lay_out_in_view(Place& place, uint32_t head_lines, const PageId* slots);
  Plan plan_extension(uint32_t lines) const SPW_REQUIRES(mutex, kArenaLock);
  void leave_scarcer_end(Plan& plan, uint32_t lines) const SPW_REQUIRES(mutex);
  Plan plan_view(const Request& request) const SPW_REQUIRES(mutex, kArenaLock);

  void count_in_pool(int64_t bytes) SPW_REQUIRES(mutex);

  // Whether a live block begins at `va`; *slot is kMostSlots where it is no slot of a slab.
  bool begins_live(const Place& place, uint64_t va, uint32_t* slot) const SPW_REQUIRES(mutex);
  void mark_pending(Place& place, uint32_t slot) SPW_REQUIRES(mutex);
  void free_after_streams(Place& place, uint64_t va, uint32_t slot) SPW_REQUIRES(mutex);
  // An event on each of the streams, as far as they take one.
  void record_events(StreamUses& uses) SPW_REQUIRES(mutex);
  // Notes where in the graph the streams are done with it, if all that they do is captured.
  void mark_in_capture(PendingFree& pending) SPW_REQUIRES(mutex);
  void complete_pending(size_t at) SPW_REQUIRES(mutex);
  void complete_free(Place& place, uint32_t slot) SPW_REQUIRES(mutex);
  Status wait_behind_stream(PendingFree& pending) SPW_REQUIRES(mutex);
  void slot_freed(Slab& slab, uint32_t slot, bool was_pending) SPW_REQUIRES(mutex);
  // Whether an empty slab that was kept is where one would be opened now. A program that repeats itself
  // otherwise finds its slabs, from pass to pass, in each other's places.
  bool reopens(const Slab& slab) SPW_REQUIRES(mutex);
  void list(Slab& slab) SPW_REQUIRES(mutex);
  void unlist(Slab& slab) SPW_REQUIRES(mutex);
  void release_slab(Slab& slab) SPW_REQUIRES(mutex);
  void add_spare_slab() SPW_REQUIRES(mutex);
  // Counts a slot that was taken, and notes that its slab is not empty and may be full.
  void slot_taken(SlabClass& state, Slab& slab, uint32_t slot, uint64_t requested_bytes) SPW_REQUIRES(mutex);
  void free_all_but(const HeapState& state, Place& place) SPW_REQUIRES(mutex);
  Status restore_large(Place& place, uint64_t requested_bytes) SPW_REQUIRES(mutex);
  Status restore_slab(Place& place, const Slab& saved) SPW_REQUIRES(mutex);
  // Everything that opening a slab there needs of host memory; false when that has run out.
  bool make_room_for_slab(Place& place, uint32_t size_class) noexcept SPW_REQUIRES(mutex);
  uint64_t va_of(PageId page, uint32_t line) const { return store_.page(page).va + line * kLineBytes; }

  PageStore& store_;
  EventPool& events_;
  const Driver& driver_;
  const CUcontext context_;
  std::atomic<bool> closed_{false};
  // Position in the journal since which the heap is its pool's: its places that were taken since are those
  // that the pool has used. 0: not known.
  uint64_t served_since_ SPW_GUARDED_BY(mutex) = 0;
  DeviceCounters& device_counters_;
  const BlockUnit unit_;

  Bitmap vacant_ SPW_GUARDED_BY(mutex);
  uint32_t vacant_count_ SPW_GUARDED_BY(mutex) = 0;
  uint32_t owned_count_ SPW_GUARDED_BY(mutex) = 0;
  spw_stat* pool_bytes_ SPW_GUARDED_BY(mutex) = nullptr;
  bool keeps_together_ SPW_GUARDED_BY(mutex) = false;
  bool breaks_pages_ SPW_GUARDED_BY(mutex) = false;
  FragmentIndex fragments_ SPW_GUARDED_BY(mutex);
  std::atomic<const Journal*>& leader_;  // the arena's: the journal of its busiest heap
  std::vector<PageId> dirty_ SPW_GUARDED_BY(mutex);
  bool dirty_is_short_ SPW_GUARDED_BY(mutex) = false;  // host memory ran out: every page is to be looked at

  std::vector<std::unique_ptr<Place>> places_ SPW_GUARDED_BY(mutex);
  std::unordered_map<uint32_t, Place*> newest_by_size_ SPW_GUARDED_BY(mutex);
  size_t recycle_hand_ SPW_GUARDED_BY(mutex) = 0;
  Change taken_ SPW_GUARDED_BY(mutex);
  std::vector<uint64_t> epochs_ SPW_GUARDED_BY(mutex);  // zero pages until used
  Journal journal_ SPW_GUARDED_BY(mutex);
  uint64_t guessed_ SPW_GUARDED_BY(mutex) = 0;
  const Journal* led_by_ SPW_GUARDED_BY(mutex) = nullptr;
  uint64_t reviewed_own_ SPW_GUARDED_BY(mutex) =
      0;  // requests noted here and by the leader at the last review
  uint64_t reviewed_leader_ SPW_GUARDED_BY(mutex) = 0;

  std::array<SlabClass, kClassCount> classes_ SPW_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Slab>> slabs_ SPW_GUARDED_BY(mutex);
  std::vector<Slab*> spare_slabs_ SPW_GUARDED_BY(mutex);
  std::vector<Place*> slab_places_ SPW_GUARDED_BY(mutex);  // by slab number

  std::deque<PendingFree> pending_ SPW_GUARDED_BY(mutex);
  CapturedOrder captured_order_ SPW_GUARDED_BY(mutex);
  std::unordered_map<uint64_t, StreamUses> stream_uses_ SPW_GUARDED_BY(mutex);  // of live blocks
  std::unordered_map<CUstream, uint64_t> known_streams_
      SPW_GUARDED_BY(mutex);  // by handle, the driver's number: of this context
};

// Holds a heap's lock, and can be handed on together with what was found under it.
class SPW_SCOPED_CAPABILITY HeapLock {
 public:
  HeapLock() = default;
  explicit HeapLock(BiasedMutex& mutex) SPW_ACQUIRE(mutex) : mutex_(&mutex) { mutex.lock(); }
  HeapLock(HeapLock&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
  HeapLock& operator=(HeapLock&& other) noexcept {
    std::swap(mutex_, other.mutex_);
    return *this;
  }
  ~HeapLock() SPW_RELEASE() {
    if (mutex_ != nullptr) mutex_->unlock();
  }

 private:
  BiasedMutex* mutex_ = nullptr;
};

// A place that was taken, with the lock of its heap; or none.
struct TakenPlace {
  Place* place = nullptr;
  HeapLock lock;
};

// Holds the locks of several heaps; only under the arena's lock, or two threads could wait for each other.
class AllLocked {
 public:
  explicit AllLocked(const std::vector<Heap*>& heaps) {
    locks_.reserve(heaps.size());
    for (Heap* heap : heaps) locks_.emplace_back(heap->mutex);
  }

 private:
  std::vector<HeapLock> locks_;
};

}  // namespace spillway
