#include "allocator/range_cache.h"

#include <utility>

#include "allocator/address_map.h"
#include "allocator/page_store.h"
#include "allocator/sequence_predictor.h"

namespace spillway {
namespace {

// Dead ranges that a heap remembers before it recycles the least recently used.
constexpr size_t kMostRanges = 1u << 15;
// Ranges that one search for that looks at: one turn of a clock over all of them is good enough.
constexpr int kMostLooks = 64;

// Entries of blocks that are gone stay until others replace them, so those of a range that goes are cleared.
void leave_address_map(const CachedRange& range) {
  AddressMap& map = AddressMap::instance();
  const uint64_t granules = range.quanta == kSlabQuanta ? kSlabBytes / kGranuleBytes : 1;
  for (uint64_t granule = 0; granule < granules; ++granule) {
    map.clear_if(range.va + granule * kGranuleBytes, &range);
  }
}

}  // namespace

RangeCache::~RangeCache() {
  for (const std::unique_ptr<CachedRange>& range : ranges_) leave_address_map(*range);
}

void RangeCache::index_by_size(CachedRange& range) {
  CachedRange*& newest = newest_by_size_[range.quanta];
  range.older_same_size = newest;
  range.newer_same_size = nullptr;
  if (newest != nullptr) newest->newer_same_size = &range;
  newest = &range;
}

void RangeCache::unindex_by_size(CachedRange& range) {
  CachedRange* const older = std::exchange(range.older_same_size, nullptr);
  CachedRange* const newer = std::exchange(range.newer_same_size, nullptr);
  if (newer == nullptr) {
    const auto newest = newest_by_size_.find(range.quanta);
    // Host memory had run out when it was to be indexed.
    if (newest == newest_by_size_.end() || newest->second != &range) return;
    if (older == nullptr) {
      newest_by_size_.erase(newest);
    } else {
      newest->second = older;
    }
  } else {
    newer->older_same_size = older;
  }
  if (older != nullptr) older->newer_same_size = newer;
}

bool RangeCache::is_expected(const CachedRange& range, uint64_t marked) {
  return range.expected_at >= marked && range.expected_at - marked < SequencePredictor::kHorizon;
}

CachedRange* RangeCache::oldest_dead(bool keeps_views) {
  CachedRange* oldest = nullptr;
  for (int looks = 0; looks < kMostLooks; ++looks) {
    CachedRange& range = *ranges_[recycle_hand_++ % ranges_.size()];
    if (range.state != BlockState::kFree) continue;
    if (keeps_views && (range.view != nullptr || range.is_saved)) continue;
    if (is_lost(range)) return &range;
    if (oldest == nullptr || range.last_use < oldest->last_use) oldest = &range;
  }
  return oldest;
}

CachedRange& RangeCache::make(Heap& heap, uint32_t quanta, Layout layout, bool keeps_views) {
  CachedRange* range = ranges_.size() < kMostRanges ? nullptr : oldest_dead(keeps_views);
  if (range != nullptr) {
    leave_address_map(*range);
    unindex_by_size(*range);
    if (keeps_views) pool_since_ = 0;  // what the range was used for is not known any more
    ++range->generation;
  } else {
    ranges_.push_back(std::make_unique<CachedRange>());
    range = ranges_.back().get();
    range->heap = &heap;
  }
  range->va = layout.va;
  range->quanta = quanta;
  range->view = layout.view;
  range->view_generation =
      layout.view == nullptr ? 0 : layout.view->generation.load(std::memory_order_relaxed);
  range->head_page = layout.head_page;
  range->head_begin = layout.head_begin;
  range->head_end = layout.head_end;
  range->runs = std::move(layout.runs);
  range->tail_page = layout.tail_page;
  range->tail_end = layout.tail_end;
  index_by_size(*range);
  return *range;
}

bool RangeCache::list_pages_of_pool(std::unordered_set<PageId>& pages) const {
  if (pool_since_ == 0) return false;
  for (const std::unique_ptr<CachedRange>& range : ranges_) {
    if (range->last_use < pool_since_) continue;
    // mutant: pool-pages
    for_each_piece(*range, [&](PageId page, uint32_t, uint32_t) { pages.insert(page); });
  }
  return true;
}

}  // namespace spillway
