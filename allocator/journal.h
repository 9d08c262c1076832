// The journal: which place served each request of a heap, in order. A program that repeats itself asks for
// the same sizes in the same order, so the entry after the last match names the place that will be free now:
// a hit costs a comparison and makes no driver call. Three guesses, in this order:
//   1. the entry after the one followed last;
//   2. what followed the last time the previous request's place was used: programs of many equal layers ask
//   for the same
//      sizes again and again, but each layer's blocks lie at places of their own;
//   3. what followed the last time the same three sizes were asked for in a row.
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

  static constexpr int kGuesses = 3;

  // The place that guess `which` (0 to kGuesses - 1) names for a request of this size; null if it has none.
  Place* guess(int which, uint32_t key) const {
    const uint64_t position = position_of(which, key);
    if (!holds(position)) return nullptr;
    const Entry& entry = at(position);
    return entry.key == key && entry.place->generation == entry.generation ? entry.place : nullptr;
  }

  // Notes that `key` was served by `place`, and moves the first guess on.
  void append(uint32_t key, Place* place) {
    if (end_ - first_ >= entries_.size()) make_room();
    next_ = successor(key, place);
    seen_[slot(key, previous_, before_previous_)] = end_;
    previous_use_ = place->journal_position;
    place->journal_position = end_;
    entries_[end_ & (entries_.size() - 1)] = {place, key, place->generation};
    ++end_;
    before_previous_ = previous_;
    previous_ = key;
  }

  uint64_t metadata_bytes() const { return entries_.capacity() * sizeof(Entry) + seen_.capacity() * 8; }

 private:
  struct Entry {
    Place* place;
    uint32_t key;
    uint32_t generation;
  };
  static constexpr uint64_t kNever = Place::kNeverUsed;

  bool holds(uint64_t position) const { return position >= first_ && position < end_; }
  uint64_t position_of(int which, uint32_t key) const {
    if (which == 0) return next_;
    if (which == 1) return previous_use_ == kNever ? kNever : previous_use_ + 1;
    return seen_.empty() ? kNever : seen_[slot(key, previous_, before_previous_)];
  }
  // Where to read on after this request: behind the guess that named its place, else behind one that named
  // its size.
  uint64_t successor(uint32_t key, const Place* place) const {
    uint64_t same_size = kNever;
    for (int which = 0; which < kGuesses; ++which) {
      const uint64_t position = position_of(which, key);
      if (!holds(position) || at(position).key != key) continue;
      if (at(position).place == place) return position + 1;
      if (same_size == kNever) same_size = position + 1;
    }
    return same_size;
  }
  const Entry& at(uint64_t position) const { return entries_[position & (entries_.size() - 1)]; }
  size_t slot(uint32_t a, uint32_t b, uint32_t c) const {
    uint64_t hash = a * 0x9E3779B97F4A7C15u;
    hash = (hash ^ b) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ c) * 0x94D049BB133111EBu;
    return static_cast<size_t>(hash >> 32) & (seen_.size() - 1);
  }
  void make_room();

  std::vector<Entry> entries_;
  std::vector<uint64_t> seen_;  // hash of three sizes in a row -> position of the last of them
  uint64_t first_ = 0;          // oldest position kept
  uint64_t end_ = 0;
  uint64_t next_ = kNever;          // the first guess
  uint64_t previous_use_ = kNever;  // where the previous request's place was used before
  uint32_t previous_ = 0;
  uint32_t before_previous_ = 0;
};

}  // namespace spillway
