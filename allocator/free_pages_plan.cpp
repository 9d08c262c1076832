// Plans for requests that no free range serves: views over own pages, and pages to be created. Every choice
// is first by pages to be created, then by free pages consumed, then by driver calls.

#include <algorithm>

#include "allocator/free_pages.h"

namespace spillway {
namespace {

constexpr int kMostPairs = 32;
constexpr int kMostPrefixes = 4;
// These weigh what a view costs: quanta left over in the middle of a page, where only small requests find
// them, against driver calls, these against free pages, and all of it against pages to be created.
constexpr uint64_t kQuantaPerCall = 128;
constexpr uint64_t kCallsPerFreePage = 8;
constexpr uint64_t kCallsPerCreatedPage = 10'000;

// Compares ways to lay a request over own pages in a view, and keeps the cheapest.
class ViewSearch {
 public:
  // Of the free pages so many are in extents, which are shown whole.
  ViewSearch(const Page* pages, const FragmentIndex& fragments, uint32_t singles, uint32_t in_extents)
      : pages_(pages), fragments_(fragments), singles_(singles), in_extents_(in_extents) {}

  const Plan& best() const { return best_; }

  void offer(PageId head_page, uint32_t head_quanta, PageId tail_page, uint32_t tail_quanta, uint32_t full) {
    // Between two ends there is no room for what an extent has more.
    const bool is_exact = head_page != kNoPage && tail_page != kNoPage;
    const uint32_t shown =
        singles_ + std::min(in_extents_, is_exact ? full / kExtentPages * kExtentPages : in_extents_);
    const uint32_t created = full > shown ? full - shown : 0;
    const uint32_t calls = full + (head_page != kNoPage) + (tail_page != kNoPage) + created;
    const uint32_t left =
        left_in_page(kSuffix, head_page, head_quanta) + left_in_page(kPrefix, tail_page, tail_quanta);
    const uint64_t score =
        (created * kCallsPerCreatedPage + full * kCallsPerFreePage + calls) * kQuantaPerCall + left;
    if (score >= score_) return;
    score_ = score;
    best_ = {Plan::Kind::kView, created, head_page, head_quanta, tail_page,
             tail_quanta,       full,    kNoPage,   kNoPage};
  }

  // The end or the beginning of one partly used page holds `rest`.
  void offer_one_fragment(uint32_t rest, uint32_t full) {
    if (const PageId page = find_single(kPrefix, rest); page != kNoPage) offer(kNoPage, 0, page, rest, full);
    if (const PageId page = find_single(kSuffix, rest); page != kNoPage) offer(page, rest, kNoPage, 0, full);
  }

  // Two fragments together hold `together`: one of the largest suffixes, and a prefix of another page.
  void offer_pairs(uint32_t together, uint32_t full) {
    int suffixes = 0;
    fragments_.for_each_from_largest(kSuffix, [&](PageId head) {
      if (!is_single(head)) return true;
      const uint32_t suffix = fragments_.size_of(kSuffix, head);
      if (suffix < together && together - suffix < kPageQuanta) {
        const uint32_t needed = together - suffix;
        int tries = 0;
        fragments_.for_each(kPrefix, needed, [&](PageId tail) {
          if (!is_single(tail)) return true;
          if (tail != head) offer(head, suffix, tail, needed, full);
          return ++tries < kMostPrefixes;
        });
      }
      return ++suffixes < kMostPairs;
    });
  }

  // Offers what is free at the end of one extent and at the beginning of another. Little of either is left
  // for another view, so that no page is spared.
  void offer_extents(const FreeUnits& units, uint32_t quanta) {
    const uint32_t rest = quanta % kPageQuanta;
    const PageFragment head = largest_below(units.suffixes, quanta, kNoPage);
    const PageFragment tail = largest_below(units.prefixes, quanta, kNoPage);
    const uint32_t in_head = whole_and(rest, head.quanta);
    const uint32_t in_tail = whole_and(rest, tail.quanta);
    if (head.page != kNoPage) offer(head.page, in_head, kNoPage, 0, pages_for(quanta - in_head));
    if (tail.page != kNoPage) offer(kNoPage, 0, tail.page, in_tail, pages_for(quanta - in_tail));
    if (head.page == kNoPage) return;
    const uint32_t whole = head.quanta / kPageQuanta * kPageQuanta;
    const PageFragment other = largest_below(units.prefixes, quanta - whole, head.page);
    const uint32_t in_other = whole_and(rest, other.quanta);
    if (other.page != kNoPage)
      offer(head.page, whole, other.page, in_other, pages_for(quanta - whole - in_other));
  }

  // The searches above look at some fragments only; this one finds the largest.
  void offer_largest_ends(const FreeUnits& units, uint32_t quanta) {
    const auto counts = [this](PageId page) { return is_single(page); };
    LargestTwo suffixes = fragments_.largest_two(kSuffix, counts);
    LargestTwo prefixes = fragments_.largest_two(kPrefix, counts);
    for (const PageFragment& suffix : units.suffixes) suffixes.add(suffix);
    for (const PageFragment& prefix : units.prefixes) prefixes.add(prefix);
    const PageEnds ends = largest_ends(suffixes, prefixes);
    const uint32_t full = (quanta - std::min(quanta, ends.quanta()) + kPageQuanta - 1) / kPageQuanta;
    if (full * kPageQuanta >= quanta) return;
    const uint32_t in_ends = quanta - full * kPageQuanta;
    const uint32_t head = std::min(in_ends, ends.head.quanta);
    offer(head > 0 ? ends.head.page : kNoPage, head, in_ends > head ? ends.tail.page : kNoPage,
          in_ends - head, full);
  }

 private:
  static uint32_t pages_for(uint32_t quanta) { return (quanta + kPageQuanta - 1) / kPageQuanta; }
  // The most of `quanta` that leaves no page in pieces: whole pages, and the rest of the request if it fits.
  static uint32_t whole_and(uint32_t rest, uint32_t quanta) {
    return quanta < rest ? 0 : (quanta - rest) / kPageQuanta * kPageQuanta + rest;
  }
  static PageFragment largest_below(const std::vector<PageFragment>& fragments, uint32_t quanta, PageId but) {
    PageFragment largest;
    for (const PageFragment& fragment : fragments) {
      if (fragment.quanta <= quanta && fragment.page != but && fragment.quanta > largest.quanta)
        largest = fragment;
    }
    return largest;
  }
  uint32_t left_in_page(Fragment kind, PageId page, uint32_t quanta) const {
    return page != kNoPage && is_single(page) ? fragments_.size_of(kind, page) - quanta : 0;
  }
  bool is_single(PageId page) const { return pages_[page].extent_index == 0; }
  // No view begins or ends in the middle of an extent.
  PageId find_single(Fragment kind, uint32_t quanta) const {
    PageId found = fragments_.find(kind, quanta);
    if (found == kNoPage || is_single(found)) return found;
    found = kNoPage;
    fragments_.for_each(kind, quanta, [&](PageId page) {
      if (is_single(page)) found = page;
      return found == kNoPage;
    });
    return found;
  }

  const Page* pages_;
  const FragmentIndex& fragments_;
  const uint32_t singles_;
  const uint32_t in_extents_;
  Plan best_;
  uint64_t score_ = ~uint64_t{0};
};

}  // namespace

Plan FreePages::plan_extension(uint32_t quanta) const {
  // The home view's free end: what is free of its last page, free pages, then pages yet to be created.
  Plan plan;
  plan.kind = Plan::Kind::kExtend;
  PageId end = store_.home_end();
  while (end > 0 && !store_.backed(end - 1)) --end;
  PageId first = end;
  while (first > 0 && free_.test(first - 1)) --first;
  uint32_t head = 0;
  const bool takes_edge = grain_ == BlockGrain::kQuantum || quanta < kPageQuanta;
  if (takes_edge && first > 0 && is_partly_used(first - 1)) {
    head = std::min(store_.page(first - 1).free_quanta.suffix(), quanta);
  }
  const uint32_t pages = (quanta - head + kPageQuanta - 1) / kPageQuanta;
  const uint32_t free = end - first;
  if (pages <= free || uint64_t{first} + pages > store_.id_capacity()) return {};
  plan.new_pages = pages - free;
  plan.full_pages = pages;
  plan.first_page = first;
  plan.first_new = end;
  if (head > 0) {
    plan.head_page = first - 1;
    plan.head_quanta = head;
  } else {
    leave_scarcer_end(plan, quanta);
  }
  return plan;
}

void FreePages::leave_scarcer_end(Plan& plan, uint32_t quanta) const {
  // A block that breaks a page leaves the kind of fragment the heap has less of: pairs need one of each.
  const uint32_t rest = quanta % kPageQuanta;
  if (rest == 0 || !has_few_prefixes()) return;
  plan.head_page = plan.first_page++;
  plan.head_quanta = rest;
}

Plan FreePages::plan_view(const Request& request) const {
  const uint32_t whole = request.quanta / kPageQuanta;
  const uint32_t rest = request.quanta % kPageQuanta;
  uint32_t singles = free_count_;
  FreeUnits units;
  if (store_.has_extents()) {
    units = list_units();
    singles = units.single_pages();
  }
  ViewSearch search(store_.pages(), fragments_, singles, units.extent_pages());
  search.offer(kNoPage, 0, kNoPage, 0, whole + (rest > 0));
  if (!may_take_edges(request)) return search.best();
  search.offer_extents(units, request.quanta);
  if (rest != 0) {
    search.offer_one_fragment(rest, whole);
    search.offer_pairs(rest, whole);
    if (whole > 0) search.offer_pairs(rest + kPageQuanta, whole - 1);
  }
  const uint32_t created = search.best().new_pages;
  if (created > store_.room_pages() || (created > 0 && store_.device_is_full()))
    search.offer_largest_ends(units, request.quanta);
  return search.best();
}

Plan FreePages::plan(const Request& request, uint32_t spare_pages) {
  reindex();
  if (!store_.uses_vmm()) {
    Plan segment;
    segment.kind = Plan::Kind::kSegment;
    segment.new_pages = (request.quanta + kPageQuanta - 1) / kPageQuanta;
    return segment;
  }
  const Plan view = plan_view(request);
  if (request.align_quanta > 1) return view;
  Plan extension = plan_extension(request.quanta);
  if (extension.kind == Plan::Kind::kNone || extension.new_pages > view.new_pages + spare_pages) return view;
  extension.spare_pages = extension.new_pages - std::min(extension.new_pages, view.new_pages);
  return extension;
}

Result<Layout> FreePages::lay_out(const Request& request, const Plan& plan, PageId first_new) {
  if (plan.is_at_home()) {
    Plan home = plan;
    if (plan.kind != Plan::Kind::kExtend) home.first_page = first_new;
    if (plan.kind == Plan::Kind::kView && request.align_quanta == 1) leave_scarcer_end(home, request.quanta);
    return lay_out_at_home(request.quanta, home.head_page, home.head_quanta, home.first_page);
  }
  return lay_out_in_new_view(request, plan);
}

Result<Layout> FreePages::lay_out_in_new_view(const Request& request, const Plan& plan) {
  std::vector<PageId> pages;
  const auto add_unit_of = [&](PageId page) {
    const PageRun unit = page == kNoPage ? PageRun{0, 0} : store_.unit_of(page);
    for (uint32_t i = 0; i < unit.count; ++i) pages.push_back(unit.first + i);
    return unit.count;
  };
  const uint32_t head_pages = add_unit_of(plan.head_page);
  choose_free(plan.full_pages, pages);
  // The last extent may have more pages than are wanted: they lie at the view's other end, beyond the range.
  const auto spare = static_cast<uint32_t>(pages.size()) - plan.full_pages - head_pages;
  if (plan.tail_page != kNoPage) {
    if (spare > 0) std::rotate(pages.begin(), pages.end() - kExtentPages, pages.end());
    add_unit_of(plan.tail_page);
  }
  Result<View*> view = store_.map_view(pages);
  if (!view.ok()) return view.take_status();
  const uint32_t in_head = (plan.head_quanta + kPageQuanta - 1) / kPageQuanta;
  const uint32_t first_slot = head_pages - in_head + (plan.tail_page != kNoPage ? spare : 0);
  return lay_out_in_view(request.quanta, *view.value(), plan.head_quanta, first_slot);
}

Layout FreePages::lay_out_at_home(uint32_t quanta, PageId head_page, uint32_t head_quanta,
                                  PageId first) const {
  Layout layout;
  uint32_t rest = quanta - head_quanta;
  if (head_page != kNoPage) {
    layout.va = va_of(head_page, kPageQuanta - head_quanta);
    layout.head_page = head_page;
    layout.head_begin = static_cast<uint16_t>(kPageQuanta - head_quanta);
    layout.head_end = kPageQuanta;
  } else {
    layout.va = va_of(first, 0);
  }
  if (const uint32_t whole = rest / kPageQuanta; whole > 0) {
    layout.runs = RunList(PageRun{first, whole});
    first += whole;
    rest -= whole * kPageQuanta;
  }
  if (rest > 0) {
    layout.tail_page = first;
    layout.tail_end = static_cast<uint16_t>(rest);
  }
  return layout;
}

Layout FreePages::lay_out_from(PageId page, uint32_t quantum, uint32_t quanta) const {
  if (quantum + quanta >= kPageQuanta) {
    const uint32_t head = quantum == 0 ? 0 : kPageQuanta - quantum;
    return lay_out_at_home(quanta, head == 0 ? kNoPage : page, head, head == 0 ? page : page + 1);
  }
  Layout layout;
  layout.va = va_of(page, quantum);
  layout.head_page = page;
  layout.head_begin = static_cast<uint16_t>(quantum);
  layout.head_end = static_cast<uint16_t>(quantum + quanta);
  return layout;
}

Layout FreePages::lay_out_in_view(uint32_t quanta, View& view, uint32_t head_quanta, uint32_t first_slot) {
  Layout layout;
  layout.view = &view;
  const PageId* slots = view.pages.data() + first_slot;
  layout.va = view.va + first_slot * kPageBytes;
  const uint32_t in_page = head_quanta % kPageQuanta;
  uint32_t rest = quanta - in_page;
  if (in_page > 0) {
    layout.va += (kPageQuanta - in_page) * kQuantumBytes;
    layout.head_page = *slots++;
    layout.head_begin = static_cast<uint16_t>(kPageQuanta - in_page);
    layout.head_end = kPageQuanta;
  }
  std::vector<PageRun> runs;
  for (; rest >= kPageQuanta; rest -= kPageQuanta, ++slots) {
    if (!runs.empty() && runs.back().first + runs.back().count == *slots) {
      ++runs.back().count;
    } else {
      runs.push_back({*slots, 1});
    }
  }
  layout.runs.assign(runs);
  if (rest > 0) {
    layout.tail_page = *slots;
    layout.tail_end = static_cast<uint16_t>(rest);
  }
  return layout;
}

}  // namespace spillway
