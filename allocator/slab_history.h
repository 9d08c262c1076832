// Remembers where and when the slabs of one class were opened. When: at which position of the heap's
// sequence, whose guess says where in its earlier run the program is now, so that the slab opened there then
// is the one to open again. A class opens few slabs, too few for a history of its own to be recognised by.
//
// A ring of the last kMost openings. Guarded by the heap's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "allocator/cached_range.h"
#include "allocator/sequence_predictor.h"

namespace spillway {

class SlabHistory {
 public:
  static constexpr uint32_t kMost = 1u << 12;

  // The range opened when the program was last where it is now; null when that is not known.
  CachedRange* guess(const SequencePredictor& sequence) const {
    const uint64_t then = sequence.then();
    if (then == SequencePredictor::kNever || ring_.empty()) return nullptr;
    // Several may have been opened between two large requests: as many as were opened since the last one now.
    uint64_t since = 0;
    while (since < count() && at(end_ - 1 - since).when == sequence.now()) ++since;
    uint64_t low = end_ - count();
    for (uint64_t high = end_; low < high;) {
      const uint64_t middle = low + (high - low) / 2;
      if (at(middle).when < then) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low + since >= end_) return nullptr;
    const Opening& opening = at(low + since);
    return opening.range->generation == opening.generation ? opening.range : nullptr;
  }

  // Tells whether the last opening noted is this range, and no large request came since.
  bool opened_now(const SequencePredictor& sequence, const CachedRange* range) const {
    return end_ > 0 && at(end_ - 1).range == range && at(end_ - 1).when == sequence.now();
  }

  void append(const SequencePredictor& sequence, CachedRange* range) {
    const Opening opening{range, range->generation, sequence.now()};
    range->last_use = sequence.now();
    if (ring_.size() < kMost) {
      try {
        ring_.push_back(opening);
      } catch (const std::bad_alloc&) {
        return;  // it is only not remembered
      }
    } else {
      ring_[end_ % kMost] = opening;
    }
    ++end_;
  }

  uint64_t metadata_bytes() const { return ring_.capacity() * sizeof(Opening); }

 private:
  struct Opening {
    CachedRange* range;
    uint32_t generation;
    uint64_t when;
  };

  uint64_t count() const { return std::min<uint64_t>(end_, kMost); }
  const Opening& at(uint64_t position) const { return ring_[position % kMost]; }

  std::vector<Opening> ring_;
  uint64_t end_ = 0;
};

}  // namespace spillway
