#include "allocator/range_cache.h"

#include <algorithm>
#include <utility>

#include "allocator/address_map.h"
#include "allocator/page_store.h"
#include "allocator/sequence_predictor.h"

namespace spillway {
namespace {

// Dead ranges that a heap remembers before it recycles the least recently used.
constexpr size_t kMostRanges = 1u << 15;
// One that was last used so many requests ago is as good.
constexpr uint64_t kLongAgo = 2 * kMostRanges;
constexpr uint64_t kLongAgoAsleep = kMostRanges / 2;
// Ranges that one search for that looks at: one turn of a clock over all of them is good enough.
constexpr int kMostLooks = 64;
// The same where any dead one will do.
constexpr int kMostShortLooks = 8;

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
  std::vector<CachedRange*>& ranges = by_size_[range.quanta];
  if (ranges.size() == 2 * kMostTries) {
    // Nobody looks at them any more; what is erased later has few behind it.
    const auto looked_at = ranges.begin() + kMostTries;
    std::for_each(ranges.begin(), looked_at, [](CachedRange* old) { old->is_indexed = false; });
    ranges.erase(ranges.begin(), looked_at);
  }
  ranges.push_back(&range);
  range.is_indexed = true;
}

void RangeCache::unindex_by_size(CachedRange& range) {
  // Not so either where host memory had run out when it was to be indexed.
  if (!std::exchange(range.is_indexed, false)) return;
  const auto found = by_size_.find(range.quanta);
  std::vector<CachedRange*>& ranges = found->second;
  ranges.erase(std::find(ranges.begin(), ranges.end(), &range));
  if (ranges.empty()) by_size_.erase(found);
}

bool RangeCache::is_expected(const CachedRange& range, uint64_t marked) {
  return range.expected_at >= marked && range.expected_at - marked < SequencePredictor::kHorizon;
}

bool RangeCache::may_recycle(const CachedRange& range, bool keeps_views) {
  if (range.state != BlockState::kFree) return false;
  return !keeps_views || (range.view == nullptr && !range.is_saved);
}

CachedRange* RangeCache::next_dead(bool keeps_views) {
  for (;;) {
    const size_t count = std::min(short_ranges_, ranges_.size());
    for (int looks = 0; looks < kMostShortLooks && count > 0; ++looks) {
      if (++short_hand_ >= count) short_hand_ = 0;
      if (may_recycle(*ranges_[short_hand_], keeps_views)) return ranges_[short_hand_].get();
    }
    if (count < short_ranges_) return nullptr;
    short_ranges_ *= 2;
  }
}

CachedRange* RangeCache::oldest_dead(const Terms& terms) {
  const uint64_t long_ago = terms.is_asleep ? kLongAgoAsleep : kLongAgo;
  CachedRange* oldest = nullptr;
  for (int looks = 0; looks < kMostLooks; ++looks) {
    CachedRange& range = *ranges_[recycle_hand_++ % ranges_.size()];
    if (!may_recycle(range, terms.keeps_views)) continue;
    if (oldest == nullptr || range.last_use < oldest->last_use) oldest = &range;
    if (is_lost(range) || terms.now > range.last_use + long_ago) {
      oldest = &range;
      break;
    }
  }
  // Nothing has read the next ones for long, nor where they are entered.
  const auto next = [this](size_t ahead) { return ranges_[(recycle_hand_ + ahead) % ranges_.size()].get(); };
  AddressMap::instance().prefetch(next(0)->va);
  __builtin_prefetch(next(1));
  return oldest;
}

CachedRange* RangeCache::dead_at(const Heap& heap, uint64_t va, bool keeps_views) {
  CachedRange* range = AddressMap::instance().find(va);
  if (range == nullptr || range->heap != &heap || !may_recycle(*range, keeps_views)) return nullptr;
  // A slab is entered at more than one address.
  return range->quanta == kSlabQuanta ? nullptr : range;
}

CachedRange& RangeCache::make(Heap& heap, uint32_t quanta, Layout layout, const Terms& terms) {
  const bool is_short = terms.memory == Memory::kNone;
  CachedRange* range = is_short ? dead_at(heap, layout.va, terms.keeps_views) : nullptr;
  const bool is_entered = range != nullptr;
  if (range == nullptr && is_short) range = next_dead(terms.keeps_views);
  if (range == nullptr && ranges_.size() >= kMostRanges) range = oldest_dead(terms);
  if (range != nullptr) {
    if (!is_entered) leave_address_map(*range);
    unindex_by_size(*range);
    if (terms.keeps_views) pool_since_ = 0;  // what the range was used for is not known any more
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
  if (terms.memory == Memory::kSize) index_by_size(*range);
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
