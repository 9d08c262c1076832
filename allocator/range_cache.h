// The ranges that a heap's blocks have had, by size: each is remembered until another takes its object, so
// that a request of the same size finds it without a search for bytes.
//
// Guarded by the heap's lock.
#pragma once

#include <algorithm>
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

  // Says what a range is remembered for: requests of its size and those that the sequence predicts; the
  // latter alone; or nothing, so that it is recycled as soon as it is dead.
  enum class Memory : uint8_t { kSize, kSequence, kNone };
  struct Terms {
    // Ranges that lie in views, or that are saved, are not recycled: graphs of an open pool may use the
    // views, and saved states name them.
    bool keeps_views = false;
    Memory memory = Memory::kSize;
    // What was used when says little: the program is not known to repeat itself.
    bool is_asleep = false;
    uint64_t now = 0;  // the position in the heap's sequence
  };
  // A range in the heap for `quanta` at the layout, free. Another is recycled for it where there are many.
  CachedRange& make(Heap& heap, uint32_t quanta, Layout layout, const Terms& terms);
  // Best is a range of the size that nobody expects to take soon, of these the one used last: in a program
  // that repeats itself it is wanted again last. Else the one expected last, so that few others are displaced
  // in turn. Of those that `serves(range)`; null if there is none. `mark` marks what is expected, and answers
  // the position from which on marks are of now; it is asked where there is a choice.
  template <typename Mark, typename Serves>
  CachedRange* best_of_size(uint32_t quanta, Mark mark, Serves serves) const;

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
           by_size_.size() * (32 + sizeof(std::vector<void*>)) + ranges_.size() * sizeof(void*);
  }

 private:
  static constexpr size_t kMostTries = 512;

  static bool may_recycle(const CachedRange& range, bool keeps_views);
  // A range that nobody has and that is entered in the address map where one at `va` will be: it spares
  // writing there.
  static CachedRange* dead_at(const Heap& heap, uint64_t va, bool keeps_views);
  CachedRange* oldest_dead(const Terms& terms);
  CachedRange* next_dead(bool keeps_views);
  void index_by_size(CachedRange& range);
  void unindex_by_size(CachedRange& range);
  static bool is_expected(const CachedRange& range, uint64_t marked);

  std::vector<std::unique_ptr<CachedRange>> ranges_;
  std::unordered_map<uint32_t, std::vector<CachedRange*>> by_size_;  // the newest last
  size_t recycle_hand_ = 0;
  // Those that are not remembered are the first so many of all: about twice as many as are in use, so that
  // one of the next few is dead.
  size_t short_hand_ = 0;
  size_t short_ranges_ = 64;
  uint64_t pool_since_ = 0;  // 0: not known
};

template <typename Mark, typename Serves>
CachedRange* RangeCache::best_of_size(uint32_t quanta, Mark mark, Serves serves) const {
  const auto found = by_size_.find(quanta);
  if (found == by_size_.end()) return nullptr;
  const std::vector<CachedRange*>& ranges = found->second;
  const size_t end = ranges.size() - std::min(ranges.size(), kMostTries);
  CachedRange* only = nullptr;
  size_t i = ranges.size();
  while (i > end && only == nullptr) {
    if (ranges[--i]->state == BlockState::kFree) only = ranges[i];
  }
  if (only == nullptr) return nullptr;
  while (i > end && ranges[i - 1]->state != BlockState::kFree) --i;
  if (i == end) return serves(*only) ? only : nullptr;

  const uint64_t marked = mark();
  const auto rank = [&](const CachedRange& range) {
    const bool expected = is_expected(range, marked);
    return std::pair<bool, uint64_t>(!expected, expected ? range.expected_at : range.last_use);
  };
  // The best of those that `may` be it.
  const auto best_where = [&](const auto& may) {
    CachedRange* best = nullptr;
    std::pair<bool, uint64_t> highest;
    for (size_t at = ranges.size(); at-- > end;) {
      CachedRange& range = *ranges[at];
      if (range.state != BlockState::kFree) continue;
      const std::pair<bool, uint64_t> here = rank(range);
      if ((best != nullptr && here <= highest) || !may(range)) continue;
      best = &range;
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
