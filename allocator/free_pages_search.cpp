// Searches of the pages of one heap that need no driver call, but for a view that exists already.

#include <algorithm>
#include <utility>

#include "allocator/free_pages.h"
#include "allocator/hole_search.h"

namespace spillway {
namespace {

// Views are built to spare a page only for blocks below 32 MiB (above, the page is a small part) and only
// while free pages are scarce; otherwise a hole that breaks a page costs no driver call and loses nothing.
constexpr uint32_t kMostFrugalPages = 16;
constexpr uint32_t kScarceFreeDivisor = 5;
constexpr uint32_t kScarceWhereMappingsAreMany = 64;
constexpr int kMostNeighbours = 32;
// A segment serves, whole, a block of at least this part of its size: 1 of 2.
constexpr uint32_t kMostOfSegment = 2;
// Slots that one search of the views looks at: tens of microseconds, as a few mappings cost.
constexpr uint32_t kMostViewLooks = 20'000;

}  // namespace

std::optional<Layout> FreePages::find_fragment(const Request& request) {
  reindex();
  const uint32_t quanta = request.quanta;
  const uint32_t align = request.align_quanta;
  PageId best = kNoPage;
  Fragment best_kind = kMiddle;
  uint32_t best_size = ~0u;
  for (const Fragment kind : {kMiddle, kPrefix, kSuffix}) {
    // Both ends of a page lie at multiples of any alignment.
    const uint32_t wanted = kind == kMiddle ? quanta + align - 1 : quanta;
    if (wanted >= kPageQuanta) continue;
    const PageId page = fragments_.find(kind, wanted);
    if (page == kNoPage) continue;
    const uint32_t size = fragments_.size_of(kind, page);
    if (size < best_size) {
      best = page;
      best_kind = kind;
      best_size = size;
    }
  }
  if (best == kNoPage) return std::nullopt;
  const QuantumSet& free_quanta = store_.page(best).free_quanta;
  uint32_t begin = 0;
  switch (best_kind) {
    case kPrefix:  // what remains stays a prefix
      begin = (best_size - quanta) / align * align;
      break;
    case kSuffix:
      begin = (kPageQuanta - best_size + align - 1) / align * align;
      break;
    case kMiddle:
      begin = (free_quanta.largest_middle().begin + align - 1) / align * align;
      break;
  }
  return lay_out_from(best, begin, quanta);
}

std::optional<Layout> FreePages::find_low_fragment(const Request& request) {
  if (!is_low(request)) return find_fragment(request);
  reindex_holes();
  std::optional<Layout> low = holes_.is_built() ? find_low_piece(request) : std::nullopt;
  // Aligned pieces at the ends of pages may do that are too short in general.
  return low.has_value() ? std::move(low) : find_fragment(request);
}

std::optional<Layout> FreePages::find_hole(const Request& request, bool frugal) {
  reindex();
  const uint32_t quanta = request.quanta;
  HoleSearch search(quanta, has_few_prefixes());
  const bool takes_edges = may_take_edges(request);
  for (PageId first = free_.next_set(0); first < free_.end();) {
    const PageId last = free_.next_clear(first);
    Hole hole{0, first, last - first, 0};
    if (takes_edges) {
      if (first > 0 && is_partly_used(first - 1))
        hole.head_quanta = store_.page(first - 1).free_quanta.suffix();
      if (last < store_.id_capacity() && is_partly_used(last))
        hole.tail_quanta = store_.page(last).free_quanta.prefix();
    }
    search.consider(hole);
    first = free_.next_set(last);
  }
  if (takes_edges && quanta < 2 * kPageQuanta) {
    // Two partly used neighbours: the end of one and the beginning of the next. Where no view can join
    // others, all are looked at.
    int pairs = 0;
    fragments_.for_each(kSuffix, quanta > kPageQuanta ? quanta - kPageQuanta : 1, [&](PageId page) {
      const uint32_t suffix = store_.page(page).free_quanta.suffix();
      if (suffix < quanta && page + 1 < store_.id_capacity() && is_partly_used(page + 1)) {
        search.consider({suffix, page + 1, 0, store_.page(page + 1).free_quanta.prefix()});
      }
      return ++pairs < kMostNeighbours || !store_.uses_vmm();
    });
  }
  const Fit& fit = search.best();
  if (fit.consumed == ~0u) return std::nullopt;
  const uint32_t scarce_divisor = breaks_pages_ ? kScarceWhereMappingsAreMany : kScarceFreeDivisor;
  if (frugal && fit.consumed > quanta / kPageQuanta && quanta < kMostFrugalPages * kPageQuanta &&
      free_count_ * scarce_divisor <= owned_count_) {
    return std::nullopt;
  }
  return lay_out_at_home(quanta, fit.head_page, fit.head_quanta, fit.first);
}

std::optional<Layout> FreePages::find_close_fit(const Request& request) {
  reindex_holes();
  if (!holes_.is_built()) return std::nullopt;
  if (is_low(request)) {
    if (std::optional<Layout> low = find_low_piece(request); low.has_value()) return low;
    const PageId free = free_.next_set(0);
    return free == free_.end() ? std::nullopt : std::optional(lay_out_from(free, 0, request.quanta));
  }
  if (request.align_quanta > 1) return std::nullopt;
  const std::optional<HoleIndex::Position> hole = holes_.find_closest(request.quanta);
  if (!hole.has_value()) return std::nullopt;
  return lay_out_from(hole->page, hole->quantum, request.quanta);
}

std::optional<Layout> FreePages::find_low_piece(const Request& request) const {
  const uint32_t align = request.align_quanta;
  // Both ends of a page lie at multiples of any alignment.
  const uint32_t wanted = request.quanta + align - 1;
  const PageId page = holes_.find_piece(wanted);
  if (page == kNoPage) return std::nullopt;
  uint32_t begin = 0;
  for (const QuantumInterval& piece : store_.page(page).free_quanta) {
    if (piece.quanta() < wanted) continue;
    // What remains of a beginning goes on being one.
    begin = (piece.begin == 0 ? piece.end - request.quanta : piece.begin + align - 1) / align * align;
    break;
  }
  return lay_out_from(page, begin, request.quanta);
}

std::optional<PageRun> FreePages::find_segment(const Request& request) const {
  // There is an unused page between two segments, and no block has a part of one: a free run is a segment.
  const auto pages = static_cast<uint32_t>(bytes_to_pages(uint64_t{request.quanta} * kQuantumBytes));
  PageRun best{kNoPage, pages * kMostOfSegment + 1};
  for (PageId first = free_.next_set(0); first < free_.end();) {
    const PageId last = free_.next_clear(first);
    if (last - first >= pages && last - first < best.count) best = {first, last - first};
    first = free_.next_set(last);
  }
  return best.first == kNoPage ? std::nullopt : std::optional(best);
}

std::optional<Layout> FreePages::find_in_view(const Request& request, uint32_t most_pages,
                                              bool spare_mappings) {
  const uint32_t quanta = request.quanta;
  if (quanta <= kPageQuanta) return std::nullopt;  // any free page serves it at home
  if (quanta < kMostFrugalPages * kPageQuanta && !spare_mappings) return std::nullopt;
  const bool takes_edges = may_take_edges(request);
  // A run of free pages shorter than this holds no such request, whatever is free at its two ends.
  const uint32_t fewest =
      std::max(1u, quanta / kPageQuanta - (!takes_edges || quanta < 2 * kPageQuanta ? 0 : 1));
  const bool leave_prefix = has_few_prefixes();
  const auto is_partial = [this](PageId id) { return id != kNoPage && is_partly_used(id); };
  Fit best;
  View* best_view = nullptr;
  uint32_t looks = kMostViewLooks;
  store_.for_each_view([&](View& view) {
    if (view.retired || looks == 0) return;
    const std::vector<PageId>& pages = view.pages;
    const auto slots = static_cast<uint32_t>(pages.size());
    const auto free = [&](uint32_t slot) { return pages[slot] != kNoPage && free_.test(pages[slot]); };
    HoleSearch search(quanta, leave_prefix);
    // Every run of so many pages covers one of these slots.
    for (uint32_t slot = fewest - 1; slot < slots && looks > 0; slot += fewest) {
      --looks;
      if (!free(slot)) continue;
      uint32_t first = slot;
      while (first > 0 && free(first - 1)) --first;
      uint32_t last = slot + 1;
      while (last < slots && free(last)) ++last;
      Hole hole{0, first, last - first, 0};
      if (takes_edges) {
        if (first > 0 && is_partial(pages[first - 1]))
          hole.head_quanta = store_.page(pages[first - 1]).free_quanta.suffix();
        if (last < slots && is_partial(pages[last]))
          hole.tail_quanta = store_.page(pages[last]).free_quanta.prefix();
      }
      search.consider(hole);
      slot = last;
    }
    if (search.best().consumed <= most_pages && search.best().rank() < best.rank()) {
      best = search.best();
      best_view = &view;
    }
  });
  if (best_view == nullptr) return std::nullopt;
  return lay_out_in_view(quanta, *best_view, best.head_quanta, best.first - (best.head_quanta > 0));
}

}  // namespace spillway
