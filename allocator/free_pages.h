// Records what is free of a heap's pages: those of which no byte is used (a bitmap), and parts of the others
// (an index of fragments), and until when each free page was used. Takes and gives back the bytes of ranges,
// and finds bytes for requests that no range of the past serves; for programs that do not repeat themselves
// by an index of holes, which is there only while it is asked.
//
// Guarded by the heap's lock; pages come and go under the arena's lock too. Epochs are those of the heap's
// timeline.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>
#include <vector>

#include "allocator/bitmap.h"
#include "allocator/cached_range.h"
#include "allocator/fragments.h"
#include "allocator/free_space.h"
#include "allocator/hole_index.h"
#include "allocator/mutex.h"
#include "allocator/page_store.h"
#include "allocator/request.h"

namespace spillway {

struct EmptiedPage;

class FreePages {
 public:
  // The pages in the store that `owner` owns: none at first.
  FreePages(PageStore& store, const Heap& owner, BlockGrain grain);

  // The net effect of taking or giving a range on the counters.
  struct Change {
    int64_t pages = 0;      // free ones that are used now, or the reverse
    int64_t fragments = 0;  // pieces of free space that appeared in partly used pages
    uint64_t page_bytes() const { return static_cast<uint64_t>(pages) * kPageBytes; }
  };

  // ---- Bytes of ranges

  // Tells whether the range could be taken now.
  bool fits(const CachedRange& range) const;
  // Takes the range if it fits. What changed is taken() until the next call.
  bool take(CachedRange& range);
  const Change& taken() const { return taken_; }
  // Its bytes are used until `epoch`.
  Change give(CachedRange& range, uint64_t epoch);
  // The pages that a free range needs and others use or own; none where it could not be taken even so.
  void list_missing(const CachedRange& range, std::vector<PageId>& missing) const;

  // ---- Pages

  uint32_t free_count() const { return free_count_; }
  uint32_t owned() const { return owned_count_; }
  bool owns(const Page& page) const { return page.owner.load(std::memory_order_relaxed) == &owner_; }
  bool is_free(PageId page) const { return free_.test(page); }
  template <typename Is>
  bool are_all_free(Is is) const {
    for (PageId id = free_.next_set(0); id < free_.end(); id = free_.next_set(id + 1)) {
      if (!is(id)) return false;
    }
    return true;
  }
  // Returns to what ends extents may be made; `spends`: memory is spent for calls.
  ExtentRoom extent_room(bool spends) const;
  // The same for the new pages of a plan.
  ExtentTerms extent_terms(const Plan& plan, bool spends) const;
  // Free pages, whole units of them: extents, then those of the longest runs; `most` where there are as many,
  // and what an extent has more in which they end.
  void choose_free(uint32_t most, std::vector<PageId>& out) const;
  // The epoch after which a free page may be used by another stream; kept for every kEpochPages pages
  // together, so that the free of a large block stores little, which may name a later epoch than needed,
  // never an earlier.
  uint64_t last_use(PageId page) const { return epochs_[page / kEpochPages]; }
  // Notes everything free as used until then.
  void stamp_all(uint64_t epoch) { std::fill(epochs_.begin(), epochs_.end(), epoch); }
  // New pages, or pages dropped before their release.
  void add(PageId first, uint32_t count);
  void drop(PageId first, uint32_t count);
  // Moves free pages of `from` here, whose uses are over at `epoch`; the caller has ordered the streams.
  void receive(FreePages& from, const std::vector<PageId>& pages, uint64_t epoch);

  // ---- Searches. None makes a driver call; none answers a layout that does not fit now.

  // A piece of a partly used page, for less than a page.
  std::optional<Layout> find_fragment(const Request& request);
  // The same, but of the lowest page that has one where the request is a small one (is_low).
  std::optional<Layout> find_low_fragment(const Request& request);
  // A run of the home view, the one that consumes the fewest whole pages. With `frugal`, holes that break a
  // page that a view would spare are passed over.
  std::optional<Layout> find_hole(const Request& request, bool frugal);
  // About the closest fit in the home view: the smallest hole or piece. For small requests a piece of the
  // lowest page that has one, else the lowest free page, so that they stay together. Large ones begin
  // anywhere.
  std::optional<Layout> find_close_fit(const Request& request);
  // Nobody will ask for close fits, nor for low fragments, for a while.
  void forget_holes() {
    if (holes_.is_built()) holes_.forget();
  }
  // The smallest free segment in which the request fits; none where all are much larger.
  std::optional<PageRun> find_segment(const Request& request) const;
  // At most `most_pages` free pages in a row inside an aliasing view that exists already. Blocks below 32
  // MiB go there only to spare mappings: for them a view of their own wastes less.
  std::optional<Layout> find_in_view(const Request& request, uint32_t most_pages, bool spare_mappings)
      SPW_REQUIRES(kArenaLock);
  // Holes are taken although a view would spare a page, until hardly any page is free.
  void break_pages(bool breaks) { breaks_pages_ = breaks; }

  // Own pages in a view, or pages to be created. With `spare_pages`, up to so many are created where a view
  // of own pages would do, to spare its mappings.
  Plan plan(const Request& request, uint32_t spare_pages) SPW_REQUIRES(kArenaLock);
  // Carries a plan out, whose new pages are here by now and begin at `first_new`.
  Result<Layout> lay_out(const Request& request, const Plan& plan, PageId first_new) SPW_REQUIRES(kArenaLock);
  // The layout that begins with `head_quanta` at the end of head_page (if any) and goes on from page `first`.
  Layout lay_out_at_home(uint32_t quanta, PageId head_page, uint32_t head_quanta, PageId first) const;

  // Returns what the heap could serve without new memory, the slabs at these ranges given up.
  FreeSpace space_without(const std::vector<const CachedRange*>& empty_slabs);

  uint64_t metadata_bytes() const { return free_.end() / 8 + holes_.metadata_bytes(); }

 private:
  static constexpr uint32_t kEpochPages = 64;

  // Checks all that fits() does but the whole pages.
  bool ends_fit(const CachedRange& range) const;
  // free_space.cpp. Measures what lies in a row in the home view.
  void measure_runs(const std::vector<EmptiedPage>& emptied, FreeSpace& space) const;
  bool piece_is_free(PageId id, uint32_t begin, uint32_t end) const;
  FreeUnits list_units() const;
  bool is_single(PageId id) const { return store_.page(id).extent_index == 0; }
  // Without VMM: its segment was released, and its pages' ids serve another one.
  bool has_moved(const CachedRange& range) const;
  void take_piece(PageId id, uint32_t begin, uint32_t end);
  void give_piece(PageId id, uint32_t begin, uint32_t end, uint64_t epoch, Change& change);
  void stamp(PageId first, uint32_t count, uint64_t epoch) {
    const PageId last = (first + count - 1) / kEpochPages;
    for (PageId group = first / kEpochPages; group <= last; ++group) epochs_[group] = epoch;
  }
  void mark_dirty(PageId id) {
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
  // The bits of these pages, or of the whole pages of the range, changed.
  void note_changed(PageId first, uint32_t count) {
    if (holes_.is_built()) [[unlikely]]
      holes_.note(first, count);
  }
  void note_changed(const CachedRange& range) {
    if (!holes_.is_built()) [[likely]]
      return;
    for (const PageRun& run : range.runs) holes_.note(run.first, run.count);
  }
  // Bring the fragment index, or that of the holes, up to date with the pages touched since the last search.
  void reindex();
  void reindex_holes();

  uint64_t va_of(PageId page, uint32_t quantum) const {
    return store_.page(page).va + quantum * kQuantumBytes;
  }
  bool is_partly_used(PageId id) const { return owns(store_.page(id)) && !free_.test(id); }
  // Tells whether the request may begin or end in a page that other blocks lie in.
  bool may_take_edges(const Request& request) const {
    return request.align_quanta == 1 && (grain_ == BlockGrain::kQuantum || request.quanta < kPageQuanta);
  }
  // Of close fits those up to 128 KiB, or of a heap of whole pages those below a page, are at the lowest
  // address: where they are spread, no long runs come about; of the larger ones more are lost inside pages so
  // (docs/decisions/unrepeated.md).
  bool is_low(const Request& request) const {
    return request.quanta + request.align_quanta - 1 <= holes_.most_piece();
  }
  // A piece of the lowest partly used page that has one.
  std::optional<Layout> find_low_piece(const Request& request) const;
  // The layout that begins at this quantum of the page in the home view.
  Layout lay_out_from(PageId page, uint32_t quantum, uint32_t quanta) const;
  // free_pages_plan.cpp. The same for slots of a view: slots[0] is the head page if there is one.
  static Layout lay_out_in_view(uint32_t quanta, View& view, uint32_t head_quanta, uint32_t first_slot);
  Plan plan_extension(uint32_t quanta) const SPW_REQUIRES(kArenaLock);
  Plan plan_view(const Request& request) const SPW_REQUIRES(kArenaLock);
  void leave_scarcer_end(Plan& plan, uint32_t quanta) const;
  // Maps a view of the plan's pages and lays the request there.
  Result<Layout> lay_out_in_new_view(const Request& request, const Plan& plan) SPW_REQUIRES(kArenaLock);
  // Tells whether prefixes are scarcer than suffixes: a broken page leaves the scarcer kind, since pairs need
  // one of each.
  bool has_few_prefixes() const { return fragments_.count(kPrefix) < fragments_.count(kSuffix); }

  PageStore& store_;
  const Heap& owner_;
  const BlockGrain grain_;
  bool breaks_pages_ = false;
  Bitmap free_;
  uint32_t free_count_ = 0;
  uint32_t owned_count_ = 0;
  uint64_t given_count_ = 0;  // pages that came free, ever since there were none
  Change taken_;
  std::vector<uint64_t> epochs_;  // zero pages until used
  FragmentIndex fragments_;
  HoleIndex holes_;
  std::vector<PageId> dirty_;
  std::vector<PageId> lacking_fragments_;  // those of before, which the index of holes knows already
  bool dirty_is_short_ = false;            // host memory ran out: every page is to be looked at
};

}  // namespace spillway
