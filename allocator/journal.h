// The journal: which place served each request of a heap, in order. A program that repeats itself asks for
// the same sizes in the same order, so the entry after the last match names the place that will be free now:
// a hit costs a comparison and makes no driver call. When the prediction fails, the latest position at which
// the same three sizes were asked for in a row becomes the new one.
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

  // The place that followed last time, if the size agrees; null otherwise.
  Place* predict(uint32_t key) const {
    if (next_ >= end_ || end_ - next_ > entries_.size()) return nullptr;
    const Entry& entry = at(next_);
    return entry.key == key && entry.place->generation == entry.generation ? entry.place : nullptr;
  }
  // Another place that served `key` after the same two requests before it; null if there is none.
  Place* predict_by_context(uint32_t key) const {
    const uint64_t position = seen_.empty() ? kNever : seen_[slot(key, previous_, before_previous_)];
    if (position == kNever || end_ - position > entries_.size() || position == next_) return nullptr;
    const Entry& entry = at(position);
    return entry.key == key && entry.place->generation == entry.generation ? entry.place : nullptr;
  }

  // Notes that `key` was served by `place`, and moves the prediction on.
  void append(uint32_t key, Place* place) {
    if (end_ - first_ >= entries_.size()) make_room();
    const bool followed = next_ < end_ && end_ - next_ <= entries_.size() && at(next_).key == key;
    uint64_t& seen = seen_[slot(key, previous_, before_previous_)];
    if (followed) {
      ++next_;
    } else {
      next_ = seen == kNever || end_ - seen > entries_.size() ? kNever : seen + 1;
    }
    seen = end_;
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
  static constexpr uint64_t kNever = ~uint64_t{0};

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
  uint64_t next_ = kNever;  // position whose entry is the prediction
  uint32_t previous_ = 0;
  uint32_t before_previous_ = 0;
};

}  // namespace spillway
