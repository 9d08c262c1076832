#include "allocator/free_pages.h"

#include <utility>

namespace spillway {

FreePages::FreePages(PageStore& store, const Heap& owner, BlockUnit unit)
    : store_(store),
      owner_(owner),
      unit_(unit),
      vacant_(store.id_capacity()),
      epochs_(store.id_capacity() / kEpochPages + 1, 0),
      fragments_(store.pages()) {}

// ---- Bytes of places

bool FreePages::piece_is_free(PageId id, uint32_t begin, uint32_t end) const {
  if (vacant_.test(id)) return true;
  const Page& page = store_.page(id);
  return owns(page) && page.free_lines.contains(begin, end);
}

bool FreePages::has_moved(const Place& place) const {
  if (place.head_page != kNoPage) return va_of(place.head_page, place.head_begin) != place.va;
  const PageId first = place.runs.begin() != place.runs.end() ? place.runs.begin()->first : place.tail_page;
  return va_of(first, 0) != place.va;
}

bool FreePages::ends_fit(const Place& place) const {
  if (place.state != BlockState::kFree) return false;
  if (is_lost(place)) return false;
  if (!store_.uses_vmm() && has_moved(place)) return false;
  if (place.head_page != kNoPage && !piece_is_free(place.head_page, place.head_begin, place.head_end))
    return false;
  return place.tail_page == kNoPage || piece_is_free(place.tail_page, 0, place.tail_end);
}

bool FreePages::fits(const Place& place) const {
  if (!ends_fit(place)) return false;
  for (const PageRun& run : place.runs) {
    if (!vacant_.all_set(run.first, run.count)) return false;
  }
  return true;
}

void FreePages::take_piece(PageId id, uint32_t begin, uint32_t end) {
  LineSet& free_lines = store_.page(id).free_lines;
  const uint32_t pieces = free_lines.size();
  if (vacant_.test(id)) {
    vacant_.clear(id);
    ++taken_.pages;
    free_lines.fill_outside(begin, end);
  } else {
    free_lines.take(begin, end);
  }
  taken_.fragments += static_cast<int64_t>(free_lines.size()) - pieces;
  mark_dirty(id);
}

void FreePages::give_piece(PageId id, uint32_t begin, uint32_t end, uint64_t epoch, Change& change) {
  Page& page = store_.page(id);
  const uint32_t pieces = page.free_lines.size();
  if (page.free_lines.is_all_outside(begin, end)) {
    page.free_lines.clear();
    vacant_.set(id);
    ++change.pages;
    stamp(id, 1, epoch);
  } else {
    page.free_lines.give(begin, end);
  }
  change.fragments += static_cast<int64_t>(page.free_lines.size()) - pieces;
  mark_dirty(id);
}

bool FreePages::take(Place& place) {
  if (!ends_fit(place)) return false;
  int64_t pages = 0;
  for (const PageRun& run : place.runs) {
    if (!vacant_.clear_if_all_set(run.first, run.count)) {
      for (const PageRun* taken = place.runs.begin(); taken != &run; ++taken)
        vacant_.set(taken->first, taken->count);
      return false;
    }
    pages += run.count;
  }
  // Written where they stay: a copy of both numbers at once would wait until the two stores have reached the
  // cache, a tenth of a hit.
  taken_.pages = pages;
  taken_.fragments = 0;
  if (place.head_page != kNoPage) take_piece(place.head_page, place.head_begin, place.head_end);
  if (place.tail_page != kNoPage) take_piece(place.tail_page, 0, place.tail_end);
  vacant_count_ -= static_cast<uint32_t>(taken_.pages);
  place.state = BlockState::kLive;
  return true;
}

FreePages::Change FreePages::give(Place& place, uint64_t epoch) {
  Change change;
  for (const PageRun& run : place.runs) {
    vacant_.set(run.first, run.count);
    change.pages += run.count;
    stamp(run.first, run.count, epoch);
  }
  if (place.head_page != kNoPage)
    give_piece(place.head_page, place.head_begin, place.head_end, epoch, change);
  if (place.tail_page != kNoPage) give_piece(place.tail_page, 0, place.tail_end, epoch, change);
  vacant_count_ += static_cast<uint32_t>(change.pages);
  place.state = BlockState::kFree;
  return change;
}

void FreePages::reindex() {
  if (std::exchange(dirty_is_short_, false)) [[unlikely]] {
    for (PageId id = 0; id < store_.home_end(); ++id) {
      Page& page = store_.page(id);
      if (owns(page) && std::exchange(page.dirty, false)) fragments_.update(id);
    }
  }
  for (const PageId id : dirty_) {
    Page& page = store_.page(id);
    page.dirty = false;
    fragments_.update(id);
  }
  dirty_.clear();
}

void FreePages::list_missing(const Place& place, std::vector<PageId>& missing) const {
  missing.clear();
  if (place.state != BlockState::kFree || is_lost(place)) return;
  const auto add = [&](PageId id) {
    if (!vacant_.test(id)) missing.push_back(id);
  };
  for (const PageRun& run : place.runs) {
    for (uint32_t i = 0; i < run.count; ++i) add(run.first + i);
  }
  if (place.head_page != kNoPage && !piece_is_free(place.head_page, place.head_begin, place.head_end)) {
    missing.push_back(place.head_page);
  }
  if (place.tail_page != kNoPage && !piece_is_free(place.tail_page, 0, place.tail_end)) {
    missing.push_back(place.tail_page);
  }
}

// ---- Pages

void FreePages::choose_vacant(uint32_t most, std::vector<PageId>& out) const {
  std::vector<PageRun> runs;
  for (PageId first = vacant_.next_set(0); first < vacant_.end();) {
    const PageId last = vacant_.next_clear(first);
    runs.push_back({first, last - first});
    first = vacant_.next_set(last);
  }
  std::sort(runs.begin(), runs.end(), [](const PageRun& a, const PageRun& b) {
    return a.count != b.count ? a.count > b.count : a.first < b.first;
  });
  // Longest runs first, so that few remain in pieces; the last one is the shortest that still suffices.
  for (size_t i = 0; i < runs.size() && most > 0; ++i) {
    size_t pick = i;
    if (runs[i].count > most) {
      while (pick + 1 < runs.size() && runs[pick + 1].count >= most) ++pick;
    }
    const uint32_t count = std::min(runs[pick].count, most);
    for (uint32_t k = 0; k < count; ++k) out.push_back(runs[pick].first + k);
    most -= count;
  }
}

void FreePages::add(PageId first, uint32_t count) {
  vacant_.set(first, count);
  vacant_count_ += count;
  owned_count_ += count;
}

void FreePages::drop(PageId first, uint32_t count) {
  reindex();
  vacant_.clear(first, count);
  vacant_count_ -= count;
  owned_count_ -= count;
}

void FreePages::receive(FreePages& from, const std::vector<PageId>& pages, uint64_t epoch) {
  from.reindex();
  for (const PageId id : pages) {
    from.vacant_.clear(id);
    vacant_.set(id);
    stamp(id, 1, epoch);
  }
  const auto count = static_cast<uint32_t>(pages.size());
  from.vacant_count_ -= count;
  vacant_count_ += count;
  from.owned_count_ -= count;
  owned_count_ += count;
}

}  // namespace spillway
