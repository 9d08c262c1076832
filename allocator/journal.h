// The journal: which place served each request of a heap, in order. A program that repeats itself asks for
// the same sizes in the same order, so the entry after the one followed last names the place that will be
// free now: a hit costs a comparison and makes no driver call.
//
// When that guess fails, the journal is searched for where the program is. Every earlier position at which
// the same three sizes were asked for in a row is a candidate; programs of many equal layers have many. The
// candidate whose last kContext requests were served by the same places as the last kContext requests now is
// the best: equal layers ask for the same sizes, but their blocks lie at places of their own.
//
// A ring of the last entries, a power of two of them, which grows up to kMostEntries while requests keep
// coming. Guarded by the heap's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/place.h"

namespace spillway {

class Journal {
 public:
  static constexpr uint32_t kFewestEntries = 1u << 10;
  static constexpr uint32_t kMostEntries = 1u << 18;
  static constexpr uint64_t kNever = ~uint64_t{0};

  // The place that followed last time, if it served this size; null otherwise.
  Place* guess(uint32_t key) const {
    if (!holds(next_)) return nullptr;
    const Entry& entry = at(next_);
    return entry.key == key && entry.place->generation == entry.generation ? entry.place : nullptr;
  }

  // Looks for where the program is. Answers the place of the best candidate that `fits(place)` accepts, null
  // if none does; the best candidate of all becomes the position after which append() reads on. Looks at
  // kMostCandidates at most.
  template <typename Fits>
  Place* search(uint32_t key, Fits fits);
  // The place of the best candidate of the last search(), whether it fitted or not; null if there was none.
  Place* best_candidate() const { return holds(found_) ? at(found_).place : nullptr; }

  // Notes that `key` was served by `place`, and moves the guess on.
  void append(uint32_t key, Place* place) {
    if (end_ - first_ >= size_) [[unlikely]] {
      if (size_ < kMostEntries)
        grow();
      else
        ++first_;
    }
    if (found_ != kNever) {
      next_ = found_ + 1;
      found_ = kNever;
    } else {
      next_ = holds(next_) && at(next_).key == key ? next_ + 1 : kNever;
    }
    uint64_t& seen = seen_[slot(key, previous_, before_previous_)];
    const uint64_t back = seen == kNever ? 0 : end_ - seen;
    seen = end_;
    entries_[end_ & (size_ - 1)] = {place, key, place->generation,
                                    back > UINT32_MAX ? 0 : static_cast<uint32_t>(back)};
    place->last_use = end_++;
    before_previous_ = previous_;
    previous_ = key;
  }

  // Requests noted since the beginning, and which of them the guess names; kNever without one.
  uint64_t end() const { return end_; }
  uint64_t position_of_guess() const { return holds(next_) ? next_ : kNever; }

  uint64_t metadata_bytes() const { return entries_.capacity() * sizeof(Entry) + seen_.capacity() * 8; }

 private:
  struct Entry {
    Place* place;
    uint32_t key;
    uint32_t generation;
    uint32_t back;  // to the last entry before with the same three sizes (or hash of them); 0 for none
  };
  static constexpr uint32_t kContext = 8;
  static constexpr int kMostCandidates = 256;

  bool holds(uint64_t position) const { return position >= first_ && position < end_; }
  // How many of the requests before `position` were served as the latest requests were.
  uint32_t agreement(uint64_t position) const {
    uint32_t agreed = 0;
    for (uint32_t i = 1; i <= kContext && position >= first_ + i; ++i) {
      const Entry& then = at(position - i);
      const Entry& now = at(end_ - i);
      if (then.key != now.key) break;
      agreed += then.place == now.place;
    }
    return agreed;
  }
  const Entry& at(uint64_t position) const { return entries_[position & (size_ - 1)]; }
  size_t slot(uint32_t a, uint32_t b, uint32_t c) const {
    uint64_t hash = a * 0x9E3779B97F4A7C15u;
    hash = (hash ^ b) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ c) * 0x94D049BB133111EBu;
    return static_cast<size_t>(hash >> 32) & (size_ - 1);
  }
  void grow();

  std::vector<Entry> entries_;
  std::vector<uint64_t> seen_;  // hash of three sizes in a row -> position of the last of them
  size_t size_ = 0;             // of both: zero, or a power of two
  uint64_t first_ = 0;          // oldest position kept
  uint64_t end_ = 0;
  uint64_t next_ = kNever;   // the guess
  uint64_t found_ = kNever;  // the best candidate of a search since the last append
  uint32_t previous_ = 0;
  uint32_t before_previous_ = 0;
};

template <typename Fits>
Place* Journal::search(uint32_t key, Fits fits) {
  found_ = kNever;
  if (seen_.empty()) return nullptr;
  Place* fitting = nullptr;
  int fitting_agreement = -1;
  int best_agreement = -1;
  if (holds(next_) && at(next_).key == key) {
    // The program is where it was expected, only the place is taken: no other position is better without
    // agreeing more.
    found_ = next_;
    best_agreement = fitting_agreement = static_cast<int>(agreement(next_));
  }
  uint64_t position = seen_[slot(key, previous_, before_previous_)];
  for (int tries = 0; tries < kMostCandidates && holds(position); ++tries) {
    const Entry& entry = at(position);
    if (entry.key == key) {
      const int agreed = static_cast<int>(agreement(position));
      if (agreed > best_agreement) {
        best_agreement = agreed;
        found_ = position;
      }
      if (agreed > fitting_agreement && entry.place->generation == entry.generation && fits(*entry.place)) {
        fitting_agreement = agreed;
        fitting = entry.place;
      }
      if (fitting_agreement == static_cast<int>(kContext)) break;
    }
    if (entry.back == 0 || entry.back > position) break;
    position -= entry.back;
  }
  return fitting;
}

}  // namespace spillway
