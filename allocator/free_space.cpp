#include "allocator/free_space.h"

#include <algorithm>
#include <vector>

#include "allocator/free_pages.h"

namespace spillway {

uint64_t largest_request_bytes(const FreeSpace& space, uint64_t other_pages, const RequestLimits& limits) {
  const uint64_t pages = limits.views ? space.free_pages + other_pages : space.run_pages;
  // With views, runs count for what no view shows: parts of extents.
  const uint64_t joined = limits.views ? pages * kPageQuanta + space.end_quanta : 0;
  const uint64_t shared = std::max(joined, space.run_quanta);
  uint64_t quanta = std::max<uint64_t>(space.piece_quanta, shared);
  const uint64_t whole = std::max(pages, space.run_pages);
  // Without shared edges a block takes whole pages, or lies beside others and is smaller than one.
  if (!limits.share_edges)
    quanta = whole > 0 ? whole * kPageQuanta : std::min<uint64_t>(quanta, kPageQuanta - 1);
  const bool is_large =
      quanta * kQuantumBytes >= kGranuleBytes && quanta * kQuantumBytes > limits.small_limit_bytes;
  return is_large ? quanta * kQuantumBytes : std::min(space.slot_bytes, limits.small_limit_bytes);
}

// Holds what would be free of a page on which slabs without live slots lie.
struct EmptiedPage {
  PageId id = kNoPage;
  std::vector<QuantumInterval> free_quanta = {};

  // Joins neighbours, once all are there.
  void join() {
    std::sort(free_quanta.begin(), free_quanta.end(),
              [](const QuantumInterval& a, const QuantumInterval& b) { return a.begin < b.begin; });
    size_t last = 0;
    for (size_t i = 1; i < free_quanta.size(); ++i) {
      if (free_quanta[i].begin == free_quanta[last].end) {
        free_quanta[last].end = free_quanta[i].end;
      } else {
        free_quanta[++last] = free_quanta[i];
      }
    }
    free_quanta.resize(last + 1);
  }
  bool is_free() const { return free_quanta.front().quanta() == kPageQuanta; }
  uint32_t prefix() const { return free_quanta.front().begin == 0 ? free_quanta.front().quanta() : 0; }
  uint32_t suffix() const { return free_quanta.back().end == kPageQuanta ? free_quanta.back().quanta() : 0; }
  uint32_t largest() const {
    uint32_t quanta = 0;
    for (const QuantumInterval& interval : free_quanta) quanta = std::max(quanta, interval.quanta());
    return quanta;
  }
};

namespace {

const EmptiedPage* find_emptied(const std::vector<EmptiedPage>& emptied, PageId id) {
  const auto found =
      std::find_if(emptied.begin(), emptied.end(), [&](const auto& page) { return page.id == id; });
  return found == emptied.end() ? nullptr : &*found;
}

std::vector<EmptiedPage> emptied_pages(const PageStore& store, const std::vector<const CachedRange*>& slabs) {
  std::vector<EmptiedPage> pages;
  for (const CachedRange* slab : slabs) {
    for_each_piece(*slab, [&](PageId id, uint32_t begin, uint32_t end) {
      auto page = std::find_if(pages.begin(), pages.end(), [&](const auto& each) { return each.id == id; });
      if (page == pages.end()) {
        const QuantumSet& quanta = store.page(id).free_quanta;
        page = pages.insert(page, {id, std::vector<QuantumInterval>(quanta.begin(), quanta.end())});
      }
      page->free_quanta.push_back({static_cast<uint16_t>(begin), static_cast<uint16_t>(end)});
    });
  }
  for (EmptiedPage& page : pages) page.join();
  return pages;
}

}  // namespace

FreeSpace FreePages::space_without(const std::vector<const CachedRange*>& empty_slabs) {
  reindex();
  FreeSpace space;
  const std::vector<EmptiedPage> emptied = emptied_pages(store_, empty_slabs);
  const auto is_as_it_was = [&](PageId id) { return find_emptied(emptied, id) == nullptr; };
  const auto is_end = [&](PageId id) { return is_single(id) && is_as_it_was(id); };

  space.free_pages = free_count_;
  FreeUnits units;
  if (store_.has_extents()) {
    units = list_units();
    space.free_pages = units.single_pages() + units.extent_pages();
  }
  LargestTwo prefixes = fragments_.largest_two(kPrefix, is_end);
  LargestTwo suffixes = fragments_.largest_two(kSuffix, is_end);
  for (const Fragment kind : {kPrefix, kSuffix, kMiddle})
    space.piece_quanta =
        std::max(space.piece_quanta, fragments_.largest_two(kind, is_as_it_was).first.quanta);
  for (const EmptiedPage& page : emptied) {
    if (!page.is_free()) space.piece_quanta = std::max(space.piece_quanta, page.largest());
    if (!is_single(page.id)) continue;
    if (page.is_free()) {
      ++space.free_pages;
      continue;
    }
    prefixes.add({page.id, page.prefix()});
    suffixes.add({page.id, page.suffix()});
  }
  for (const PageFragment& suffix : units.suffixes) suffixes.add(suffix);
  for (const PageFragment& prefix : units.prefixes) prefixes.add(prefix);
  space.end_quanta = largest_ends(suffixes, prefixes).quanta();
  if (!store_.uses_vmm() || store_.has_extents()) measure_runs(emptied, space);
  return space;
}

void FreePages::measure_runs(const std::vector<EmptiedPage>& emptied, FreeSpace& space) const {
  uint64_t run = 0;
  uint64_t pages = 0;
  for (PageId id = 0; id < free_.end(); ++id) {
    const EmptiedPage* page = find_emptied(emptied, id);
    const QuantumSet& quanta = store_.page(id).free_quanta;
    const bool is_free = free_.test(id) || (page != nullptr && page->is_free());
    pages = is_free ? pages + 1 : 0;
    space.run_pages = std::max(space.run_pages, pages);
    if (is_free) {
      run += kPageQuanta;
    } else if (!owns(store_.page(id))) {
      run = 0;
    } else {
      space.run_quanta =
          std::max(space.run_quanta, run + (page != nullptr ? page->prefix() : quanta.prefix()));
      run = page != nullptr ? page->suffix() : quanta.suffix();
    }
    space.run_quanta = std::max(space.run_quanta, run);
  }
}

}  // namespace spillway
