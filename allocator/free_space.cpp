#include "allocator/free_space.h"

#include <algorithm>
#include <vector>

#include "allocator/free_pages.h"

namespace spillway {

uint64_t largest_request_bytes(const FreeSpace& space, uint64_t other_pages, const RequestLimits& limits) {
  const uint64_t pages = limits.views ? space.vacant_pages + other_pages : space.run_pages;
  const uint64_t shared = limits.views ? pages * kPageLines + space.end_lines : space.run_lines;
  uint64_t lines = std::max<uint64_t>(space.piece_lines, shared);
  // Without shared edges a block takes whole pages, or lies beside others and is smaller than one.
  if (!limits.share_edges) lines = pages > 0 ? pages * kPageLines : std::min<uint64_t>(lines, kPageLines - 1);
  const bool is_large = lines * kLineBytes >= kUnitBytes && lines * kLineBytes > limits.small_limit_bytes;
  return is_large ? lines * kLineBytes : std::min(space.slot_bytes, limits.small_limit_bytes);
}

namespace {

// What would be free of a page on which slabs without live slots lie.
struct EmptiedPage {
  PageId id = kNoPage;
  std::vector<LineInterval> free_lines = {};

  // Joins neighbours, once all are there.
  void join() {
    std::sort(free_lines.begin(), free_lines.end(),
              [](const LineInterval& a, const LineInterval& b) { return a.begin < b.begin; });
    size_t last = 0;
    for (size_t i = 1; i < free_lines.size(); ++i) {
      if (free_lines[i].begin == free_lines[last].end) {
        free_lines[last].end = free_lines[i].end;
      } else {
        free_lines[++last] = free_lines[i];
      }
    }
    free_lines.resize(last + 1);
  }
  bool is_vacant() const { return free_lines.front().lines() == kPageLines; }
  uint32_t prefix() const { return free_lines.front().begin == 0 ? free_lines.front().lines() : 0; }
  uint32_t suffix() const { return free_lines.back().end == kPageLines ? free_lines.back().lines() : 0; }
  uint32_t largest() const {
    uint32_t lines = 0;
    for (const LineInterval& interval : free_lines) lines = std::max(lines, interval.lines());
    return lines;
  }
};

std::vector<EmptiedPage> emptied_pages(const PageStore& store, const std::vector<const Place*>& slabs) {
  std::vector<EmptiedPage> pages;
  for (const Place* slab : slabs) {
    for_each_piece(*slab, [&](PageId id, uint32_t begin, uint32_t end) {
      auto page = std::find_if(pages.begin(), pages.end(), [&](const auto& each) { return each.id == id; });
      if (page == pages.end()) {
        const LineSet& lines = store.page(id).free_lines;
        page = pages.insert(page, {id, std::vector<LineInterval>(lines.begin(), lines.end())});
      }
      page->free_lines.push_back({static_cast<uint16_t>(begin), static_cast<uint16_t>(end)});
    });
  }
  for (EmptiedPage& page : pages) page.join();
  return pages;
}

}  // namespace

FreeSpace FreePages::space_without(const std::vector<const Place*>& empty_slabs) {
  reindex();
  FreeSpace space;
  const std::vector<EmptiedPage> emptied = emptied_pages(store_, empty_slabs);
  const auto find_emptied = [&](PageId id) {
    return std::find_if(emptied.begin(), emptied.end(), [&](const auto& page) { return page.id == id; });
  };
  const auto is_as_it_was = [&](PageId id) { return find_emptied(id) == emptied.end(); };

  space.vacant_pages = vacant_count_;
  LargestTwo prefixes = fragments_.largest_two(kPrefix, is_as_it_was);
  LargestTwo suffixes = fragments_.largest_two(kSuffix, is_as_it_was);
  space.piece_lines = std::max({prefixes.first.lines, suffixes.first.lines,
                                fragments_.largest_two(kMiddle, is_as_it_was).first.lines});
  for (const EmptiedPage& page : emptied) {
    if (page.is_vacant()) {
      ++space.vacant_pages;
      continue;
    }
    prefixes.add({page.id, page.prefix()});
    suffixes.add({page.id, page.suffix()});
    space.piece_lines = std::max(space.piece_lines, page.largest());
  }
  space.end_lines = largest_ends(suffixes, prefixes).lines();
  if (store_.uses_vmm()) return space;

  uint64_t run = 0;
  uint64_t pages = 0;
  for (PageId id = 0; id < vacant_.end(); ++id) {
    const auto page = find_emptied(id);
    const LineSet& lines = store_.page(id).free_lines;
    const bool is_vacant = vacant_.test(id) || (page != emptied.end() && page->is_vacant());
    pages = is_vacant ? pages + 1 : 0;
    space.run_pages = std::max(space.run_pages, pages);
    if (is_vacant) {
      run += kPageLines;
    } else if (!owns(store_.page(id))) {
      run = 0;
    } else {
      space.run_lines =
          std::max(space.run_lines, run + (page != emptied.end() ? page->prefix() : lines.prefix()));
      run = page != emptied.end() ? page->suffix() : lines.suffix();
    }
    space.run_lines = std::max(space.run_lines, run);
  }
  return space;
}

}  // namespace spillway
