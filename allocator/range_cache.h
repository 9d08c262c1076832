// The ranges that a heap's blocks have had, by size: each is remembered until another takes its object, so
// that a request of the same size finds it without a search for bytes.
//
// Guarded by the heap's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "allocator/cached_range.h"
#include "allocator/request.h"

namespace spillway {

class RangeCache {
 public:
  ~RangeCache();

  // A range in the heap for `quanta` at the layout, free. With `keeps_views`, those that lie in views, or
  // that are saved, are not recycled for it: graphs of an open pool may use the views, and saved states name
  // them.
  CachedRange& make(Heap& heap, uint32_t quanta, Layout layout, bool keeps_views);
  // Best is a range of the size that nobody expects to take soon, of these the one used last: in a program
  // that repeats itself it is wanted again last. Else the one expected last, so that few others are displaced
  // in turn. Of those that `serves(range)`; null if there is none. What was marked as expected at a position
  // from `marked` on is expected now.
  template <typename Serves>
  CachedRange* best_of_size(uint32_t quanta, uint64_t marked, Serves serves) const;

  template <typename Visit>
  void for_each(Visit visit) const {
    for (const std::unique_ptr<CachedRange>& range : ranges_) visit(*range);
  }

  // The heap serves another pool from this position of the sequence on: ranges taken since are those that the
  // pool has used.
  void serve_pool_since(uint64_t position) { pool_since_ = position; }
  // The pages under those; false where that is not known any more.
  bool list_pages_of_pool(std::unordered_set<PageId>& pages) const;

  uint64_t metadata_bytes() const {
    return ranges_.size() * (sizeof(CachedRange) + sizeof(std::unique_ptr<CachedRange>)) +
           newest_by_size_.size() * 32;
  }

 private:
  static constexpr int kMostTries = 512;

  CachedRange* oldest_dead(bool keeps_views);
  void index_by_size(CachedRange& range);
  void unindex_by_size(CachedRange& range);
  static bool is_expected(const CachedRange& range, uint64_t marked);

  std::vector<std::unique_ptr<CachedRange>> ranges_;
  std::unordered_map<uint32_t, CachedRange*> newest_by_size_;
  size_t recycle_hand_ = 0;
  uint64_t pool_since_ = 0;  // 0: not known
};

template <typename Serves>
CachedRange* RangeCache::best_of_size(uint32_t quanta, uint64_t marked, Serves serves) const {
  const auto found = newest_by_size_.find(quanta);
  if (found == newest_by_size_.end()) return nullptr;
  const auto rank = [&](const CachedRange& range) {
    const bool expected = is_expected(range, marked);
    return std::pair<bool, uint64_t>(!expected, expected ? range.expected_at : range.last_use);
  };
  // The best of those that `may` be it.
  const auto best_where = [&](const auto& may) {
    CachedRange* best = nullptr;
    std::pair<bool, uint64_t> highest;
    int tries = 0;
    for (CachedRange* range = found->second; range != nullptr && tries < kMostTries;
         range = range->older_same_size, ++tries) {
      if (range->state != BlockState::kFree) continue;
      const std::pair<bool, uint64_t> here = rank(*range);
      if ((best != nullptr && here <= highest) || !may(*range)) continue;
      best = range;
      highest = here;
    }
    return best;
  };
  // A range that nobody has is free as a rule, its bytes too: the best is looked at first, and all of them
  // only where others have its bytes.
  CachedRange* best = best_where([](const CachedRange&) { return true; });
  return best == nullptr || serves(*best) ? best : best_where(serves);
}

}  // namespace spillway
