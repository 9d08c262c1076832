// The sequence: which range served each request of a heap, in order. A program that repeats itself asks for
// the same sizes in the same order, so the entry after the one followed last names the range that will be
// free now: a hit costs a comparison and makes no driver call.
//
// When the guess names another size, the sequence is searched for where the program is. Every earlier
// position at which the same three sizes were asked for in a row is a candidate; programs of many equal
// layers have many. The one before which the most requests in a row were as they are now is the best, of
// equals the latest: the same range one period ago agrees for the whole period, another layer only to its
// first difference. A guess that has named the right size for a while is followed even where its range is
// taken: the program is there, only its memory is not yet.
//
// A stream that asks for few sizes does not tell where the program is: then the sequence of the busiest heap,
// the *leader*, does. Each entry notes how far the leader was, and the entry wanted is the one noted where
// the leader's guess is now.
//
// A ring of the last entries, a power of two of them, which grows up to kMostEntries while requests keep
// coming. Guarded by the heap's lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "allocator/cached_range.h"
#include "allocator/zeroed_array.h"

namespace spillway {

class SequencePredictor {
 public:
  static constexpr uint32_t kFewestEntries = 1u << 10;
  static constexpr uint32_t kMostEntries = 1u << 18;
  static constexpr uint64_t kNever = ~uint64_t{0};

  // The range that followed last time, if it served this size; null otherwise.
  CachedRange* guess(uint32_t key) const {
    const uint64_t next = then();
    if (!holds(next)) return nullptr;
    const Entry& entry = at(next);
    return entry.key == key && entry.range->generation == entry.generation ? entry.range : nullptr;
  }

  // Looks for where the program is: the best candidate becomes the position after which append() reads on.
  // Answers its range, free or not; null if there is none, or if the guess is to be trusted. It looks once
  // for each request, and remembers the answer until something is noted here or by the leader. `leader` may
  // be null, or this sequence.
  CachedRange* search(uint32_t key, const SequencePredictor* leader);
  // Returns how often it had to look.
  uint64_t searches() const { return searches_; }
  // The range of the best candidate of the last search(); null if there was none.
  CachedRange* best_candidate() const { return holds(found_) ? at(found_).range : nullptr; }

  // Marks the ranges that the next kHorizon requests are expected to take; answers the position from which on
  // marks are of now.
  uint64_t mark_expected();
  static constexpr uint64_t kHorizon = 256;

  // Requests in a row that asked for the size the guess named.
  uint32_t followed() const { return followed_; }
  // Requests since as many in a row were as guessed as it takes to tell a repetition from chance.
  uint64_t unrepeated() const { return followed_ >= kContext ? 0 : now() - repeated_until_; }
  // Tells whether the last search() found more than a chance likeness.
  bool is_sure() const { return found_agreed_ >= kContext; }

  // Begins to fetch what append() of this key will write: it lies far from what was written last. Worth it
  // where something else is done meanwhile. (Always inlined: GCC drops calls of what only prefetches.)
  [[gnu::always_inline]] void prefetch(uint32_t key) const {
    if (size_ != 0) __builtin_prefetch(&seen_[slot(key, previous_, before_previous_)], 1);
  }
  // Notes that `key` was served by `range`, and moves the guess on.
  void append(uint32_t key, CachedRange* range, const SequencePredictor* leader) {
    const uint64_t end = now();
    range->last_use = end;
    uint64_t next = then();
    if (end - first_ >= size_) [[unlikely]] {
      if (size_ >= kMostEntries || !grow()) {
        if (size_ == 0) return;
        ++first_;
      }
    }
    if (found_ != kNever) {
      next = found_ + 1;
      note_break(end);
      followed_ = found_agreed_ + 1;
      found_ = kNever;
    } else if (holds(next) && at(next).key == key) {
      ++next;
      ++followed_;
    } else {
      next = kNever;
      note_break(end);
      followed_ = 0;
    }
    next_.store(next, std::memory_order_relaxed);
    uint32_t& seen = seen_[slot(key, previous_, before_previous_)];
    const uint32_t mark = mark_of(end);
    entries_[end & (size_ - 1)] = {
        range, key, range->generation, seen == kUnseen ? 0 : mark - seen,
        leader == nullptr || leader == this ? 0 : static_cast<uint32_t>(leader->now())};
    seen = mark;
    end_.store(end + 1, std::memory_order_relaxed);
    before_previous_ = previous_;
    previous_ = key;
  }

  // The time as the leader tells it: requests noted since the beginning, and which of them the guess names,
  // kNever without one. From any thread; then they are a moment old.
  uint64_t now() const { return end_.load(std::memory_order_relaxed); }
  uint64_t then() const { return next_.load(std::memory_order_relaxed); }

  // Counts the host's pages that were written to.
  uint64_t metadata_bytes() const {
    constexpr uint64_t kHostPage = 4096;
    const uint64_t entries = std::min<uint64_t>(now() - first_, size_) * sizeof(Entry);
    return (entries + kHostPage - 1) / kHostPage * kHostPage + size_ * sizeof(uint32_t);
  }

 private:
  struct Entry {
    CachedRange* range;
    uint32_t key;
    uint32_t generation;
    uint32_t back;  // to the last entry before with the same three sizes (or hash of them); 0 for none
    uint32_t when;  // how far the leader was
  };
  static constexpr uint32_t kTrusted = 32;
  static constexpr uint32_t kMostAgreed = 4096;
  static constexpr uint32_t kContext = 8;
  static constexpr int kMostCandidates = 256;
  static constexpr uint64_t kMostNear = 64;
  static constexpr uint32_t kMostComparisons = 1u << 14;  // of one search: some microseconds

  void note_break(uint64_t end) {
    if (followed_ >= kContext) repeated_until_ = end;
  }
  bool holds(uint64_t position) const { return position >= first_ && position < now(); }
  // Says how the requests before `position` compare with the latest: how many in a row were for the same
  // sizes, kMostAgreed at most, and how many of the last kContext of those were served by the same ranges.
  struct Agreement {
    uint32_t keys = 0;
    uint32_t ranges = 0;
    // A long run is proof; of short ones ranges tell more, as long as requests are served where they were
    // before.
    std::pair<uint32_t, uint32_t> rank() const { return {keys < kTrusted ? 0 : keys, ranges}; }
  };
  Agreement agreement(uint64_t position) const {
    Agreement agreed;
    while (agreed.keys < kMostAgreed && position > first_ + agreed.keys) {
      const Entry& then = at(position - 1 - agreed.keys);
      const Entry& now = at(this->now() - 1 - agreed.keys);
      if (then.key != now.key) break;
      if (agreed.keys < kContext) agreed.ranges += then.range == now.range;
      ++agreed.keys;
    }
    return agreed;
  }
  // A position in 32 bits, which it outgrows after some billion requests: what was seen so long ago is taken
  // for another then, of which the sizes are compared like any other's.
  static constexpr uint32_t kUnseen = 0;
  static constexpr uint32_t mark_of(uint64_t position) { return static_cast<uint32_t>(position) + 1; }
  const Entry& at(uint64_t position) const { return entries_[position & (size_ - 1)]; }
  size_t slot(uint32_t a, uint32_t b, uint32_t c) const {
    uint64_t hash = a * 0x9E3779B97F4A7C15u;
    hash = (hash ^ b) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ c) * 0x94D049BB133111EBu;
    return static_cast<size_t>(hash >> 32) & (size_ - 1);
  }
  // Holds what a search depends on: with the same, it finds the same.
  struct Searched {
    uint64_t at = kNever;  // the sequence's end
    uint32_t key = 0;
    const SequencePredictor* leader = nullptr;
    uint64_t led_at = 0;  // the leader's end
    bool operator==(const Searched&) const = default;
  };
  // Sets found_ and found_agreed_. `leader` is another sequence, or null.
  void look_for(uint32_t key, const SequencePredictor* leader);
  // The entry for `key` noted nearest to where the leader's guess is now; kNever if none is near.
  uint64_t search_by_time(uint32_t key, const SequencePredictor& leader) const;
  // False without host memory: what is old is forgotten earlier then.
  bool grow() noexcept;

  ZeroedArray<Entry> entries_;
  ZeroedArray<uint32_t> seen_;  // hash of three sizes in a row -> mark of the position of the last of them
  size_t size_ = 0;             // of both, as far as they are in use: zero, or a power of two
  uint64_t first_ = 0;          // oldest position kept
  std::atomic<uint64_t> end_{0};
  std::atomic<uint64_t> next_{kNever};  // the guess
  uint32_t followed_ = 0;               // requests in a row that were as the guess said
  uint64_t repeated_until_ = 0;         // the last position with kContext of them before it
  uint64_t found_ = kNever;             // the best candidate of a search since the last append
  uint32_t found_agreed_ = 0;
  Searched searched_;  // the last time
  uint64_t searches_ = 0;
  uint32_t previous_ = 0;
  uint32_t before_previous_ = 0;
};

}  // namespace spillway
