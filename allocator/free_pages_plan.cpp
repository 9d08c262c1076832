// Plans for requests that no free range serves: views over own pages, and pages to be created. Every choice
// is first by pages to be created, then by vacant pages consumed, then by driver calls.

#include <algorithm>

#include "allocator/free_pages.h"

namespace spillway {
namespace {

constexpr int kMostPairs = 32;
constexpr int kMostPrefixes = 4;
// What a view costs: lines left over in the middle of a page, where only small requests find them, against
// driver calls, these against vacant pages, and all of it against pages to be created.
constexpr uint64_t kLinesPerCall = 128;
constexpr uint64_t kCallsPerVacantPage = 8;
constexpr uint64_t kCallsPerCreatedPage = 10'000;

}  // namespace

Plan FreePages::plan_extension(uint32_t lines) const {
  // The home view's free end: what is free of its last page, vacant pages, then pages yet to be created.
  Plan plan;
  plan.kind = Plan::Kind::kExtend;
  PageId end = store_.home_end();
  while (end > 0 && !store_.backed(end - 1)) --end;
  PageId first = end;
  while (first > 0 && vacant_.test(first - 1)) --first;
  uint32_t head = 0;
  const bool takes_edge = unit_ == BlockUnit::kLine || lines < kPageLines;
  if (takes_edge && first > 0 && is_partly_used(first - 1)) {
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

void FreePages::leave_scarcer_end(Plan& plan, uint32_t lines) const {
  // A block that breaks a page leaves the kind of fragment the heap has less of: pairs need one of each.
  const uint32_t rest = lines % kPageLines;
  if (rest == 0 || !has_few_prefixes()) return;
  plan.head_page = plan.first_page++;
  plan.head_lines = rest;
}

Plan FreePages::plan_view(const Request& request) const {
  const uint32_t lines = request.lines;
  const uint32_t whole = lines / kPageLines;
  const uint32_t rest = lines % kPageLines;
  Plan best;
  uint64_t best_score = ~uint64_t{0};
  const auto offer = [&](PageId head_page, uint32_t head_lines, PageId tail_page, uint32_t tail_lines,
                         uint32_t full) {
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
  const auto offer_largest_ends = [&]() {
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
  const auto pair = [&](uint32_t together, uint32_t full) {
    int suffixes = 0;
    fragments_.for_each_from_largest(kSuffix, [&](PageId head) {
      const uint32_t suffix = fragments_.size_of(kSuffix, head);
      if (suffix < together && together - suffix < kPageLines) {
        const uint32_t needed = together - suffix;
        int tries = 0;
        fragments_.for_each(kPrefix, needed, [&](PageId tail) {
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

Plan FreePages::plan(const Request& request, uint32_t spare_pages) {
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

Result<Layout> FreePages::lay_out(const Request& request, const Plan& plan, PageId first_new) {
  const bool is_all_new = plan.kind == Plan::Kind::kView && plan.full_pages == plan.new_pages &&
                          plan.head_page == kNoPage && plan.tail_page == kNoPage;
  if (plan.kind != Plan::Kind::kView || is_all_new) {
    Plan home = plan;
    if (plan.kind != Plan::Kind::kExtend) home.first_page = first_new;
    // All new and in a row: the home view serves.
    if (is_all_new && request.align_lines == 1) leave_scarcer_end(home, request.lines);
    return lay_out_at_home(request.lines, home.head_page, home.head_lines, home.first_page);
  }
  std::vector<PageId> pages;
  if (plan.head_page != kNoPage) pages.push_back(plan.head_page);
  choose_vacant(plan.full_pages, pages);
  if (plan.tail_page != kNoPage) pages.push_back(plan.tail_page);
  Result<View*> view = store_.map_view(pages);
  if (!view.ok()) return view.take_status();
  return lay_out_in_view(request.lines, *view.value(), plan.head_lines, 0);
}

Layout FreePages::lay_out_at_home(uint32_t lines, PageId head_page, uint32_t head_lines, PageId first) const {
  Layout layout;
  uint32_t rest = lines - head_lines;
  if (head_page != kNoPage) {
    layout.va = va_of(head_page, kPageLines - head_lines);
    layout.head_page = head_page;
    layout.head_begin = static_cast<uint16_t>(kPageLines - head_lines);
    layout.head_end = kPageLines;
  } else {
    layout.va = va_of(first, 0);
  }
  if (const uint32_t whole = rest / kPageLines; whole > 0) {
    layout.runs = RunList(PageRun{first, whole});
    first += whole;
    rest -= whole * kPageLines;
  }
  if (rest > 0) {
    layout.tail_page = first;
    layout.tail_end = static_cast<uint16_t>(rest);
  }
  return layout;
}

Layout FreePages::lay_out_in_view(uint32_t lines, View& view, uint32_t head_lines, uint32_t first_slot) {
  Layout layout;
  layout.view = &view;
  const PageId* slots = view.pages.data() + first_slot;
  layout.va = view.va + first_slot * kPageBytes;
  uint32_t rest = lines - head_lines;
  if (head_lines > 0) {
    layout.va += (kPageLines - head_lines) * kLineBytes;
    layout.head_page = *slots++;
    layout.head_begin = static_cast<uint16_t>(kPageLines - head_lines);
    layout.head_end = kPageLines;
  }
  std::vector<PageRun> runs;
  for (; rest >= kPageLines; rest -= kPageLines, ++slots) {
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
