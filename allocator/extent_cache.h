// The places that a heap's blocks have had, by size: each is remembered until another takes its object, so
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

#include "allocator/place.h"
#include "allocator/request.h"

namespace spillway {

class ExtentCache {
 public:
  ~ExtentCache();

  // A place in the heap for `lines` at the layout, free. With `keeps_views`, those that lie in views, or that
  // are saved, are not recycled for it: graphs of an open pool may use the views, and saved states name them.
  Place& make(Heap& heap, uint32_t lines, Layout layout, bool keeps_views);
  // Best is a place of the size that nobody expects to take soon, of these the one used last: in a program
  // that repeats itself it is wanted again last. Else the one expected last, so that few others are displaced
  // in turn. Of those that `serves(place)`; null if there is none. What was marked as expected at a position
  // from `marked` on is expected now.
  template <typename Serves>
  Place* best_of_size(uint32_t lines, uint64_t marked, Serves serves) const;

  template <typename Visit>
  void for_each(Visit visit) const {
    for (const std::unique_ptr<Place>& place : places_) visit(*place);
  }

  // The heap serves another pool from this position of the journal on: places taken since are those that the
  // pool has used.
  void serve_pool_since(uint64_t position) { pool_since_ = position; }
  // The pages under those; false where that is not known any more.
  bool list_pages_of_pool(std::unordered_set<PageId>& pages) const;

  uint64_t metadata_bytes() const {
    return places_.size() * (sizeof(Place) + sizeof(std::unique_ptr<Place>)) + newest_by_size_.size() * 32;
  }

 private:
  static constexpr int kMostTries = 512;

  Place* oldest_dead(bool keeps_views);
  void index_by_size(Place& place);
  void unindex_by_size(Place& place);
  static bool is_expected(const Place& place, uint64_t marked);

  std::vector<std::unique_ptr<Place>> places_;
  std::unordered_map<uint32_t, Place*> newest_by_size_;
  size_t recycle_hand_ = 0;
  uint64_t pool_since_ = 0;  // 0: not known
};

template <typename Serves>
Place* ExtentCache::best_of_size(uint32_t lines, uint64_t marked, Serves serves) const {
  const auto found = newest_by_size_.find(lines);
  if (found == newest_by_size_.end()) return nullptr;
  const auto rank = [&](const Place& place) {
    const bool expected = is_expected(place, marked);
    return std::pair<bool, uint64_t>(!expected, expected ? place.expected_at : place.last_use);
  };
  // The best of those that `may` be it.
  const auto best_where = [&](const auto& may) {
    Place* best = nullptr;
    std::pair<bool, uint64_t> highest;
    int tries = 0;
    for (Place* place = found->second; place != nullptr && tries < kMostTries;
         place = place->older_same_size, ++tries) {
      if (place->state != BlockState::kFree) continue;
      const std::pair<bool, uint64_t> here = rank(*place);
      if ((best != nullptr && here <= highest) || !may(*place)) continue;
      best = place;
      highest = here;
    }
    return best;
  };
  // A place that nobody has is free as a rule, its bytes too: the best is looked at first, and all of them
  // only where others have its bytes.
  Place* best = best_where([](const Place&) { return true; });
  return best == nullptr || serves(*best) ? best : best_where(serves);
}

}  // namespace spillway
