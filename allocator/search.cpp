// Finding bytes for a request that no remembered place serves: fragments of partly used pages, holes of the
// home view, and plans for views and new pages.
//
// A request of k whole pages and r lines more (r < kPageLines) needs at least k whole pages; where its r
// lines come from is what separates a tight heap from a loose one. Taken from a fragment they cost nothing;
// broken off another vacant page they leave that page partly used. So every choice here is first by pages to
// be created, then by vacant pages consumed, then by driver calls.

#include <algorithm>
#include <tuple>

#include "allocator/address_map.h"
#include "allocator/heap.h"

namespace spillway {
namespace {

// Views are built to spare a page only for blocks below 32 MiB (above, the page is a small part) and only
// while vacant pages are scarce; otherwise a hole that breaks a page costs no driver call and loses nothing.
constexpr uint32_t kMostFrugalPages = 16;
constexpr uint32_t kScarceVacantDivisor = 5;
constexpr uint32_t kScarceWhereMappingsAreMany = 64;
constexpr int kMostPairs = 32;
constexpr int kMostPrefixes = 4;
// A segment serves, whole, a block of at least this part of its size: 1 of 2.
constexpr uint32_t kMostOfSegment = 2;
// What a view costs: lines left over in the middle of a page, where only small requests find them, against
// driver calls, these against vacant pages, and all of it against pages to be created.
constexpr uint64_t kLinesPerCall = 128;
constexpr uint64_t kCallsPerVacantPage = 8;
constexpr uint64_t kCallsPerCreatedPage = 10'000;
// Slots of views that one search for a window looks at: tens of microseconds, as a few mappings cost.
constexpr uint32_t kMostWindowLooks = 20'000;

}  // namespace

Place* Heap::take_fragment(const Request& request) {
  const uint32_t lines = request.lines;
  const uint32_t align = request.align_lines;
  PageId best = kNoPage;
  Fragment best_kind = kMiddle;
  uint32_t best_size = ~0u;
  for (const Fragment kind : {kMiddle, kPrefix, kSuffix}) {
    // Both ends of a page lie at multiples of any alignment.
    const uint32_t wanted = kind == kMiddle ? lines + align - 1 : lines;
    if (wanted >= kPageLines) continue;
    const PageId page = fragments_.find(kind, wanted);
    if (page == kNoPage) continue;
    const uint32_t size = fragments_.size_of(kind, page);
    if (size < best_size) {
      best = page;
      best_kind = kind;
      best_size = size;
    }
  }
  if (best == kNoPage) return nullptr;
  const LineSet& free_lines = store_.page(best).free_lines;
  uint32_t begin = 0;
  switch (best_kind) {
    case kPrefix:  // what remains stays a prefix
      begin = (best_size - lines) / align * align;
      break;
    case kSuffix:
      begin = (kPageLines - best_size + align - 1) / align * align;
      break;
    case kMiddle:
      begin = (free_lines.largest_middle().begin + align - 1) / align * align;
      break;
  }
  Place* place = new_place(lines, va_of(best, begin), nullptr);
  place->head_page = best;
  place->head_begin = static_cast<uint16_t>(begin);
  place->head_end = static_cast<uint16_t>(begin + lines);
  take(*place);
  return placed(request, place);
}

namespace {

// A maximal free range of the home view: the end of one page, whole pages, the beginning of another.
struct Hole {
  uint32_t head_lines = 0;  // at the end of page first - 1
  PageId first = 0;
  uint32_t pages = 0;
  uint32_t tail_lines = 0;  // at the beginning of page first + pages
};

// A block inside a hole.
struct Fit {
  uint32_t consumed = ~0u;  // vacant pages taken, broken ones included
  uint32_t leftover = ~0u;  // lines left over inside a fragment, away from both ends of its page
  uint32_t hole_pages = ~0u;
  PageId head_page = kNoPage;  // page of the first line when it is not a page boundary
  uint32_t head_lines = 0;
  PageId first = 0;  // first page that begins inside the block
  auto rank() const { return std::tie(consumed, hole_pages, leftover); }
};

// Compares the ways to lay a request into holes and keeps the best.
class HoleSearch {
 public:
  HoleSearch(uint32_t lines, bool leave_prefix)
      : lines_(lines), whole_(lines / kPageLines), rest_(lines % kPageLines), leave_prefix_(leave_prefix) {}

  const Fit& best() const { return best_; }

  void consider(const Hole& hole) {
    if (hole.head_lines + uint64_t{hole.pages} * kPageLines + hole.tail_lines < lines_) return;
    if (rest_ == 0) {
      if (hole.pages >= whole_) offer(hole, hole.first, 0, whole_, 0);
      // A run one page short, with what its two ends have, still holds whole_ pages' worth of lines.
    } else if (hole.pages >= whole_) {
      if (hole.head_lines >= rest_) offer(hole, hole.first, rest_, whole_, hole.head_lines - rest_);
      if (hole.tail_lines >= rest_) {
        offer(hole, hole.first + hole.pages - whole_, 0, whole_, hole.tail_lines - rest_);
      }
      if (hole.pages > whole_) {
        // Break a page, at the end that leaves the kind of fragment the heap has less of.
        const uint32_t head = std::min(hole.head_lines, lines_);
        const uint32_t tail = std::min(hole.tail_lines, lines_);
        const uint32_t left_pages = pages_for(lines_ - head);
        const uint32_t right_pages = pages_for(lines_ - tail);
        if (left_pages <= hole.pages) offer(hole, hole.first, head, left_pages, leave_prefix_ ? 1 : 0);
        if (right_pages <= hole.pages) {
          const PageId end = hole.first + hole.pages;
          const uint32_t in_pages = lines_ - tail;
          const uint32_t head_lines = in_pages % kPageLines;
          offer(hole, end - in_pages / kPageLines, head_lines, right_pages, leave_prefix_ ? 0 : 1);
        }
      }
    }
    // The whole run with something of both ends.
    const uint64_t run_lines = uint64_t{hole.pages} * kPageLines;
    if (run_lines < lines_ && hole.head_lines > 0 && hole.tail_lines > 0 &&
        lines_ - run_lines > hole.head_lines) {
      const uint32_t tail = static_cast<uint32_t>(lines_ - run_lines) - hole.head_lines;
      offer(hole, hole.first, hole.head_lines, hole.pages, hole.tail_lines - tail);
    }
  }

 private:
  static uint32_t pages_for(uint32_t lines) { return (lines + kPageLines - 1) / kPageLines; }

  void offer(const Hole& hole, PageId first, uint32_t head_lines, uint32_t consumed, uint32_t leftover) {
    Fit fit;
    fit.consumed = consumed;
    fit.leftover = leftover;
    fit.hole_pages = hole.pages;
    fit.head_page = head_lines > 0 ? first - 1 : kNoPage;
    fit.head_lines = head_lines;
    fit.first = first;
    if (fit.rank() < best_.rank()) best_ = fit;
  }

  const uint32_t lines_;
  const uint32_t whole_;
  const uint32_t rest_;
  const bool leave_prefix_;
  Fit best_;
};

}  // namespace

Place* Heap::take_hole(const Request& request, bool frugal) {
  const uint32_t lines = request.lines;
  HoleSearch search(lines, fragments_.count(kPrefix) < fragments_.count(kSuffix));
  const auto own_partial = [this](PageId id)
                               SPW_REQUIRES(mutex) { return owns(store_.page(id)) && !vacant_.test(id); };
  const bool takes_edges = may_take_edges(request);
  for (PageId first = vacant_.next_set(0); first < vacant_.end();) {
    const PageId last = vacant_.next_clear(first);
    Hole hole{0, first, last - first, 0};
    if (takes_edges) {
      if (first > 0 && own_partial(first - 1)) hole.head_lines = store_.page(first - 1).free_lines.suffix();
      if (last < store_.id_capacity() && own_partial(last))
        hole.tail_lines = store_.page(last).free_lines.prefix();
    }
    search.consider(hole);
    first = vacant_.next_set(last);
  }
  if (takes_edges && lines < 2 * kPageLines) {
    // Two partly used neighbours: the end of one and the beginning of the next. Where no view can join
    // others, all are looked at.
    int pairs = 0;
    fragments_.for_each(kSuffix, lines > kPageLines ? lines - kPageLines : 1, [&](PageId page) {
      mutex.assert_held();  // by this function
      const uint32_t suffix = store_.page(page).free_lines.suffix();
      if (suffix < lines && page + 1 < store_.id_capacity() && own_partial(page + 1)) {
        search.consider({suffix, page + 1, 0, store_.page(page + 1).free_lines.prefix()});
      }
      return ++pairs < kMostPairs || !store_.uses_vmm();
    });
  }
  const Fit& fit = search.best();
  if (fit.consumed == ~0u) return nullptr;
  const uint32_t scarce_divisor = breaks_pages_ ? kScarceWhereMappingsAreMany : kScarceVacantDivisor;
  if (frugal && fit.consumed > lines / kPageLines && lines < kMostFrugalPages * kPageLines &&
      vacant_count_ * scarce_divisor <= owned_count_) {
    return nullptr;
  }
  const uint64_t va =
      fit.head_page != kNoPage ? va_of(fit.head_page, kPageLines - fit.head_lines) : va_of(fit.first, 0);
  Place* place = new_place(lines, va, nullptr);
  lay_out(*place, fit.head_page, fit.head_lines, fit.first);
  take(*place);
  return placed(request, place);
}

Place* Heap::take_segment(const Request& request) {
  if (request.slab_class != nullptr) return nullptr;
  // There is an unused page between two segments, and no block has a part of one: a vacant run is a segment.
  const auto pages = static_cast<uint32_t>(bytes_to_pages(uint64_t{request.lines} * kLineBytes));
  PageRun best{kNoPage, pages * kMostOfSegment + 1};
  for (PageId first = vacant_.next_set(0); first < vacant_.end();) {
    const PageId last = vacant_.next_clear(first);
    if (last - first >= pages && last - first < best.count) best = {first, last - first};
    first = vacant_.next_set(last);
  }
  if (best.first == kNoPage) return nullptr;
  const uint32_t lines = best.count * kPageLines;
  Place* place = AddressMap::instance().find(va_of(best.first, 0));
  if (place == nullptr || place->heap != this || place->lines != lines || !fits(*place)) {
    place = new_place(lines, va_of(best.first, 0), nullptr);
    lay_out(*place, kNoPage, 0, best.first);
  }
  take(*place);
  return place;
}

Place* Heap::take_window(const Request& request, uint32_t most_pages, bool spare_mappings) {
  const uint32_t lines = request.lines;
  if (lines <= kPageLines) return nullptr;  // any vacant page serves it at home
  if (lines < kMostFrugalPages * kPageLines && !spare_mappings) return nullptr;
  const bool takes_edges = may_take_edges(request);
  // A run of vacant pages shorter than this holds no such request, whatever is free at its two ends.
  const uint32_t fewest = std::max(1u, lines / kPageLines - (!takes_edges || lines < 2 * kPageLines ? 0 : 1));
  const bool leave_prefix = fragments_.count(kPrefix) < fragments_.count(kSuffix);
  const auto own_partial = [this](PageId id) SPW_REQUIRES(mutex) {
    return id != kNoPage && owns(store_.page(id)) && !vacant_.test(id);
  };
  Fit best;
  View* best_view = nullptr;
  uint32_t looks = kMostWindowLooks;
  store_.for_each_view([&](View& view) {
    mutex.assert_held();  // by this function
    if (view.retired || looks == 0) return;
    const std::vector<PageId>& pages = view.pages;
    const auto slots = static_cast<uint32_t>(pages.size());
    const auto vacant = [&](uint32_t slot) SPW_REQUIRES(mutex) {
      return pages[slot] != kNoPage && vacant_.test(pages[slot]);
    };
    HoleSearch search(lines, leave_prefix);
    // Every run of so many pages covers one of these slots.
    for (uint32_t slot = fewest - 1; slot < slots && looks > 0; slot += fewest) {
      --looks;
      if (!vacant(slot)) continue;
      uint32_t first = slot;
      while (first > 0 && vacant(first - 1)) --first;
      uint32_t last = slot + 1;
      while (last < slots && vacant(last)) ++last;
      Hole hole{0, first, last - first, 0};
      if (takes_edges) {
        if (first > 0 && own_partial(pages[first - 1]))
          hole.head_lines = store_.page(pages[first - 1]).free_lines.suffix();
        if (last < slots && own_partial(pages[last]))
          hole.tail_lines = store_.page(pages[last]).free_lines.prefix();
      }
      search.consider(hole);
      slot = last;
    }
    if (search.best().consumed <= most_pages && search.best().rank() < best.rank()) {
      best = search.best();
      best_view = &view;
    }
  });
  if (best_view == nullptr) return nullptr;
  const uint64_t begin = best.first * kPageBytes - best.head_lines * kLineBytes;
  Place* place = new_place(lines, best_view->va + begin, best_view);
  lay_out_in_view(*place, best.head_lines, best_view->pages.data() + best.first - (best.head_lines > 0));
  take(*place);
  return placed(request, place);
}

void Heap::lay_out(Place& place, PageId head_page, uint32_t head_lines, PageId first) {
  uint32_t rest = place.lines - head_lines;
  if (head_page != kNoPage) {
    place.head_page = head_page;
    place.head_begin = static_cast<uint16_t>(kPageLines - head_lines);
    place.head_end = kPageLines;
  }
  if (const uint32_t whole = rest / kPageLines; whole > 0) {
    place.runs.assign({{first, whole}});
    first += whole;
    rest -= whole * kPageLines;
  }
  if (rest > 0) {
    place.tail_page = first;
    place.tail_end = static_cast<uint16_t>(rest);
  }
}

// ---- Plans

Plan Heap::plan_extension(uint32_t lines) const {
  // The home view's free end: what is free of its last page, vacant pages, then pages yet to be created.
  Plan plan;
  plan.kind = Plan::Kind::kExtend;
  PageId end = store_.home_end();
  while (end > 0 && !store_.backed(end - 1)) --end;
  PageId first = end;
  while (first > 0 && vacant_.test(first - 1)) --first;
  uint32_t head = 0;
  const bool takes_edge = unit_ == BlockUnit::kLine || lines < kPageLines;
  if (takes_edge && first > 0 && owns(store_.page(first - 1)) && !vacant_.test(first - 1)) {
    head = std::min(store_.page(first - 1).free_lines.suffix(), lines);
  }
  const uint32_t pages = (lines - head + kPageLines - 1) / kPageLines;
  const uint32_t vacant = end - first;
  if (pages <= vacant || uint64_t{first} + pages > store_.id_capacity()) return {};
  plan.new_pages = pages - vacant;
  plan.full_pages = pages;
  plan.first_page = first;
  plan.first_new = end;
  if (head > 0) {
    plan.head_page = first - 1;
    plan.head_lines = head;
  } else {
    leave_scarcer_end(plan, lines);
  }
  return plan;
}

void Heap::leave_scarcer_end(Plan& plan, uint32_t lines) const {
  // A block that breaks a page leaves the kind of fragment the heap has less of: pairs need one of each.
  const uint32_t rest = lines % kPageLines;
  if (rest == 0 || fragments_.count(kPrefix) >= fragments_.count(kSuffix)) return;
  plan.head_page = plan.first_page++;
  plan.head_lines = rest;
}

Plan Heap::plan_view(const Request& request) const {
  const uint32_t lines = request.lines;
  const uint32_t whole = lines / kPageLines;
  const uint32_t rest = lines % kPageLines;
  Plan best;
  uint64_t best_score = ~uint64_t{0};
  const auto offer = [&](PageId head_page, uint32_t head_lines, PageId tail_page, uint32_t tail_lines,
                         uint32_t full) SPW_REQUIRES(mutex) {
    const uint32_t created = full > vacant_count_ ? full - vacant_count_ : 0;
    const uint32_t calls = full + (head_page != kNoPage) + (tail_page != kNoPage) + created;
    const uint32_t left = (head_page != kNoPage ? fragments_.size_of(kSuffix, head_page) - head_lines : 0) +
                          (tail_page != kNoPage ? fragments_.size_of(kPrefix, tail_page) - tail_lines : 0);
    const uint64_t score =
        (created * kCallsPerCreatedPage + full * kCallsPerVacantPage + calls) * kLinesPerCall + left;
    if (score >= best_score) return;
    best_score = score;
    best = {Plan::Kind::kView, created, head_page, head_lines, tail_page, tail_lines, full, kNoPage, kNoPage};
  };
  // The searches below look at some fragments only; where no page can be created, the largest are tried.
  const auto has_no_room = [&] {
    return best.new_pages > store_.room_pages() || (best.new_pages > 0 && store_.device_is_full());
  };
  const auto offer_largest_ends = [&]() SPW_REQUIRES(mutex) {
    const auto any = [](PageId) { return true; };
    const PageEnds ends =
        largest_ends(fragments_.largest_two(kSuffix, any), fragments_.largest_two(kPrefix, any));
    const uint32_t full = (lines - std::min(lines, ends.lines()) + kPageLines - 1) / kPageLines;
    if (full * kPageLines >= lines) return;
    const uint32_t in_ends = lines - full * kPageLines;
    const uint32_t head = std::min(in_ends, ends.head.lines);
    offer(head > 0 ? ends.head.page : kNoPage, head, in_ends > head ? ends.tail.page : kNoPage,
          in_ends - head, full);
  };
  offer(kNoPage, 0, kNoPage, 0, whole + (rest > 0));
  if (!may_take_edges(request)) return best;
  if (rest == 0) {
    if (has_no_room()) offer_largest_ends();
    return best;
  }
  if (const PageId page = fragments_.find(kPrefix, rest); page != kNoPage)
    offer(kNoPage, 0, page, rest, whole);
  if (const PageId page = fragments_.find(kSuffix, rest); page != kNoPage)
    offer(page, rest, kNoPage, 0, whole);
  // Two fragments together: one of the largest suffixes, and a prefix of another page that completes the
  // rest, or the rest and a page more.
  const auto pair = [&](uint32_t together, uint32_t full) SPW_REQUIRES(mutex) {
    int suffixes = 0;
    fragments_.for_each_from_largest(kSuffix, [&](PageId head) {
      mutex.assert_held();  // by this function
      const uint32_t suffix = fragments_.size_of(kSuffix, head);
      if (suffix < together && together - suffix < kPageLines) {
        const uint32_t needed = together - suffix;
        int tries = 0;
        fragments_.for_each(kPrefix, needed, [&](PageId tail) {
          mutex.assert_held();  // by this function
          if (tail != head) offer(head, suffix, tail, needed, full);
          return ++tries < kMostPrefixes;
        });
      }
      return ++suffixes < kMostPairs;
    });
  };
  pair(rest, whole);
  if (whole > 0) pair(rest + kPageLines, whole - 1);
  if (has_no_room()) offer_largest_ends();
  return best;
}

Plan Heap::plan(const Request& request, uint32_t spare_pages) {
  reindex();
  if (!store_.uses_vmm()) {
    Plan segment;
    segment.kind = Plan::Kind::kSegment;
    segment.new_pages = (request.lines + kPageLines - 1) / kPageLines;
    return segment;
  }
  const Plan view = plan_view(request);
  if (request.align_lines > 1) return view;
  Plan extension = plan_extension(request.lines);
  if (extension.kind == Plan::Kind::kNone || extension.new_pages > view.new_pages + spare_pages) return view;
  extension.spare_pages = extension.new_pages - std::min(extension.new_pages, view.new_pages);
  return extension;
}

Result<Place*> Heap::take_planned(const Request& request, const Plan& plan) {
  Plan done = plan;
  std::vector<PageId> pages;
  if (plan.kind == Plan::Kind::kSegment) {
    PageId first = kNoPage;
    Status status = store_.create_segment(plan.new_pages, this, &first);
    if (!status.ok()) return status;
    add_vacant(first, plan.new_pages);
    done.first_page = first;
  } else if (plan.new_pages > 0) {
    const PageId first =
        plan.kind == Plan::Kind::kExtend ? plan.first_new : store_.find_unbacked(plan.new_pages);
    if (first == kNoPage) return Status::out_of_memory("no address left for new pages");
    uint32_t created = 0;
    Status status = store_.create_pages(first, plan.new_pages, this, &created);
    if (created > 0) add_vacant(first, created);
    if (!status.ok()) return status;
    if (plan.kind == Plan::Kind::kView && plan.full_pages == plan.new_pages && plan.head_page == kNoPage &&
        plan.tail_page == kNoPage) {
      done.kind = Plan::Kind::kExtend;  // all new and in a row: the home view serves
      done.first_page = first;
      if (request.align_lines == 1) leave_scarcer_end(done, request.lines);
    }
  }
  if (done.kind != Plan::Kind::kView) {
    const uint64_t va = done.head_page != kNoPage ? va_of(done.head_page, kPageLines - done.head_lines)
                                                  : va_of(done.first_page, 0);
    Place* place = new_place(request.lines, va, nullptr);
    lay_out(*place, done.head_page, done.head_lines, done.first_page);
    take(*place);
    return placed(request, place);
  }

  if (plan.head_page != kNoPage) pages.push_back(plan.head_page);
  choose_vacant(plan.full_pages, pages);
  if (plan.tail_page != kNoPage) pages.push_back(plan.tail_page);
  Result<View*> view = store_.map_view(pages);
  if (!view.ok()) return view.take_status();
  const uint64_t offset = plan.head_page != kNoPage ? (kPageLines - plan.head_lines) * kLineBytes : 0;
  Place* place = new_place(request.lines, view.value()->va + offset, view.value());
  lay_out_in_view(*place, plan.head_lines, pages.data());
  take(*place);
  return placed(request, place);
}

void Heap::lay_out_in_view(Place& place, uint32_t head_lines, const PageId* slots) {
  uint32_t rest = place.lines - head_lines;
  if (head_lines > 0) {
    place.head_page = *slots++;
    place.head_begin = static_cast<uint16_t>(kPageLines - head_lines);
    place.head_end = kPageLines;
  }
  std::vector<PageRun> runs;
  for (; rest >= kPageLines; rest -= kPageLines, ++slots) {
    if (!runs.empty() && runs.back().first + runs.back().count == *slots) {
      ++runs.back().count;
    } else {
      runs.push_back({*slots, 1});
    }
  }
  place.runs.assign(runs);
  if (rest > 0) {
    place.tail_page = *slots;
    place.tail_end = static_cast<uint16_t>(rest);
  }
}

}  // namespace spillway
