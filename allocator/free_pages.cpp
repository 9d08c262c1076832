#include "allocator/free_pages.h"

#include <utility>

namespace spillway {
namespace {

// A heap has hardly freed anything when no more pages came free than this part of those it has: 1 of 1024.
constexpr uint64_t kFreshDivisor = 1024;
// It may have so much more than it was asked for, so that a run ends in an extent: 1 page of 64.
constexpr uint32_t kSpareDivisor = 64;

}  // namespace

FreePages::FreePages(PageStore& store, const Heap& owner, BlockGrain grain)
    : store_(store),
      owner_(owner),
      grain_(grain),
      free_(store.id_capacity()),
      epochs_(store.id_capacity() / kEpochPages + 1, 0),
      fragments_(store.pages()),
      holes_(store.pages(), free_, owner, grain == BlockGrain::kQuantum) {}

// ---- Bytes of ranges

bool FreePages::piece_is_free(PageId id, uint32_t begin, uint32_t end) const {
  if (free_.test(id)) return true;
  const Page& page = store_.page(id);
  return owns(page) && page.free_quanta.contains(begin, end);
}

bool FreePages::has_moved(const CachedRange& range) const {
  if (range.head_page != kNoPage) return va_of(range.head_page, range.head_begin) != range.va;
  const PageId first = range.runs.begin() != range.runs.end() ? range.runs.begin()->first : range.tail_page;
  return va_of(first, 0) != range.va;
}

bool FreePages::ends_fit(const CachedRange& range) const {
  if (range.state != BlockState::kFree) return false;
  if (is_lost(range)) return false;                          // mutant: range-lost
  if (!store_.uses_vmm() && has_moved(range)) return false;  // mutant: range-moved
  if (range.head_page != kNoPage && !piece_is_free(range.head_page, range.head_begin, range.head_end))
    return false;
  return range.tail_page == kNoPage || piece_is_free(range.tail_page, 0, range.tail_end);
}

bool FreePages::fits(const CachedRange& range) const {
  // Whole pages first: the bitmap is small, and most ranges that others have bytes of are told by it.
  for (const PageRun& run : range.runs) {
    if (!free_.all_set(run.first, run.count)) return false;
  }
  return ends_fit(range);
}

void FreePages::take_piece(PageId id, uint32_t begin, uint32_t end) {
  QuantumSet& free_quanta = store_.page(id).free_quanta;
  const uint32_t pieces = free_quanta.size();
  if (free_.test(id)) {
    free_.clear(id);
    note_changed(id, 1);
    ++taken_.pages;
    free_quanta.fill_outside(begin, end);
  } else {
    free_quanta.take(begin, end);
  }
  taken_.fragments += static_cast<int64_t>(free_quanta.size()) - pieces;
  mark_dirty(id);
}

void FreePages::give_piece(PageId id, uint32_t begin, uint32_t end, uint64_t epoch, Change& change) {
  Page& page = store_.page(id);
  const uint32_t pieces = page.free_quanta.size();
  if (page.free_quanta.is_all_outside(begin, end)) {
    page.free_quanta.clear();
    free_.set(id);
    note_changed(id, 1);
    ++change.pages;
    stamp(id, 1, epoch);  // mutant: stamp-edge
  } else {
    page.free_quanta.give(begin, end);
  }
  change.fragments += static_cast<int64_t>(page.free_quanta.size()) - pieces;
  mark_dirty(id);
}

bool FreePages::take(CachedRange& range) {
  if (!ends_fit(range)) return false;
  int64_t pages = 0;
  for (const PageRun& run : range.runs) {
    if (!free_.clear_if_all_set(run.first, run.count)) {
      for (const PageRun* taken = range.runs.begin(); taken != &run; ++taken)
        free_.set(taken->first, taken->count);
      return false;
    }
    pages += run.count;
  }
  // Written where they stay: a copy of both numbers at once would wait until the two stores have reached the
  // cache, a tenth of a hit.
  taken_.pages = pages;
  taken_.fragments = 0;
  note_changed(range);
  if (range.head_page != kNoPage) take_piece(range.head_page, range.head_begin, range.head_end);
  if (range.tail_page != kNoPage) take_piece(range.tail_page, 0, range.tail_end);
  free_count_ -= static_cast<uint32_t>(taken_.pages);
  range.state = BlockState::kLive;
  return true;
}

FreePages::Change FreePages::give(CachedRange& range, uint64_t epoch) {
  Change change;
  for (const PageRun& run : range.runs) {
    free_.set(run.first, run.count);
    change.pages += run.count;
    stamp(run.first, run.count, epoch);  // mutant: stamp-runs
  }
  note_changed(range);
  if (range.head_page != kNoPage)
    give_piece(range.head_page, range.head_begin, range.head_end, epoch, change);
  if (range.tail_page != kNoPage) give_piece(range.tail_page, 0, range.tail_end, epoch, change);
  free_count_ += static_cast<uint32_t>(change.pages);
  given_count_ += static_cast<uint64_t>(change.pages);
  range.state = BlockState::kFree;
  return change;
}

void FreePages::reindex() {
  if (holes_.is_built()) [[unlikely]]
    reindex_holes();
  const auto update = [this](PageId id) {
    Page& page = store_.page(id);
    page.dirty = page.lacks_fragments = false;
    fragments_.update(id);
  };
  if (std::exchange(dirty_is_short_, false)) [[unlikely]] {
    for (PageId id = 0; id < store_.home_end(); ++id) {
      const Page& page = store_.page(id);
      if (owns(page) && (page.dirty || page.lacks_fragments)) update(id);
    }
  }
  for (std::vector<PageId>* list : {&lacking_fragments_, &dirty_}) {
    for (const PageId id : *list) update(id);
    list->clear();
  }
}

void FreePages::reindex_holes() {
  if (dirty_is_short_ || !holes_.is_built()) {
    holes_.forget();
    reindex();
    return holes_.build();
  }
  holes_.update(dirty_);
  for (const PageId id : dirty_) {
    Page& page = store_.page(id);
    page.dirty = false;
    if (page.lacks_fragments) continue;
    page.lacks_fragments = true;
    try {
      lacking_fragments_.push_back(id);
    } catch (const std::bad_alloc&) {
      dirty_is_short_ = true;
    }
  }
  dirty_.clear();
}

void FreePages::list_missing(const CachedRange& range, std::vector<PageId>& missing) const {
  missing.clear();
  if (range.state != BlockState::kFree || is_lost(range)) return;
  if (!store_.uses_vmm() && has_moved(range)) return;
  const auto add = [&](PageId id) {
    if (!free_.test(id)) missing.push_back(id);
  };
  for (const PageRun& run : range.runs) {
    for (uint32_t i = 0; i < run.count; ++i) add(run.first + i);
  }
  if (range.head_page != kNoPage && !piece_is_free(range.head_page, range.head_begin, range.head_end)) {
    missing.push_back(range.head_page);
  }
  if (range.tail_page != kNoPage && !piece_is_free(range.tail_page, 0, range.tail_end)) {
    missing.push_back(range.tail_page);
  }
}

// ---- Pages

ExtentRoom FreePages::extent_room(bool spends) const {
  const bool is_fresh = given_count_ * kFreshDivisor <= owned_count_;
  if (!is_fresh && !spends) return ExtentRoom::kQuarter;
  return store_.page_count() == owned_count_ ? ExtentRoom::kMost : ExtentRoom::kHalf;
}

ExtentTerms FreePages::extent_terms(const Plan& plan, bool spends) const {
  // A view between two ends has no room for what an extent has more.
  return {extent_room(spends), plan.is_at_home() ? owned_count_ / kSpareDivisor : 0};
}

FreeUnits FreePages::list_units() const {
  return list_free_units(store_.pages(), store_.in_extents(), free_.end(), [this](PageId from, PageId* end) {
    const PageId first = free_.next_set(from);
    *end = free_.next_clear(first);
    return first;
  });
}

void FreePages::choose_free(uint32_t most, std::vector<PageId>& out) const {
  FreeUnits units = list_units();
  const auto choose = [&](const PageRun& run) {
    for (uint32_t k = 0; k < run.count; ++k) out.push_back(run.first + k);
    most -= std::min(run.count, most);
  };
  size_t extent = 0;
  while (extent < units.extents.size() && most >= kExtentPages)
    choose({units.extents[extent++], kExtentPages});
  std::vector<PageRun>& runs = units.singles;
  std::sort(runs.begin(), runs.end(), [](const PageRun& a, const PageRun& b) {
    return a.count != b.count ? a.count > b.count : a.first < b.first;
  });
  // Longest runs first, so that few remain in pieces; the last one is the shortest that still suffices.
  for (size_t i = 0; i < runs.size() && most > 0; ++i) {
    size_t pick = i;
    if (runs[i].count > most) {
      while (pick + 1 < runs.size() && runs[pick + 1].count >= most) ++pick;
    }
    choose({runs[pick].first, std::min(runs[pick].count, most)});
  }
  if (most > 0 && extent < units.extents.size()) choose({units.extents[extent], kExtentPages});
}

void FreePages::add(PageId first, uint32_t count) {
  free_.set(first, count);
  note_changed(first, count);
  free_count_ += count;
  owned_count_ += count;
}

void FreePages::drop(PageId first, uint32_t count) {
  reindex();
  free_.clear(first, count);
  note_changed(first, count);
  free_count_ -= count;
  owned_count_ -= count;
  if (owned_count_ == 0) given_count_ = 0;
}

void FreePages::receive(FreePages& from, const std::vector<PageId>& pages, uint64_t epoch) {
  from.reindex();
  for (const PageId id : pages) {
    from.free_.clear(id);
    from.note_changed(id, 1);
    free_.set(id);
    note_changed(id, 1);
    stamp(id, 1, epoch);  // mutant: stamp-received
  }
  const auto count = static_cast<uint32_t>(pages.size());
  from.free_count_ -= count;
  free_count_ += count;
  from.owned_count_ -= count;
  owned_count_ += count;
}

}  // namespace spillway
