// Where and when the slabs of one class were opened. When: at which position of the heap's journal, whose
// guess says where in its earlier run the program is now, so that the slab opened there then is the one to
// open again. A class opens few slabs, too few for a history of its own to be recognised by.
//
// A ring of the last kMost openings. Guarded by the heap's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "allocator/journal.h"
#include "allocator/place.h"

namespace spillway {

class Openings {
 public:
  static constexpr uint32_t kMost = 1u << 12;

  // The place opened when the program was last where it is now; null when that is not known.
  Place* guess(const Journal& journal) const {
    const uint64_t then = journal.then();
    if (then == Journal::kNever || ring_.empty()) return nullptr;
    // Several may have been opened between two large requests: as many as were opened since the last one now.
    uint64_t since = 0;
    while (since < count() && at(end_ - 1 - since).when == journal.now()) ++since;
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
    return opening.place->generation == opening.generation ? opening.place : nullptr;
  }

  // Whether the last opening noted is this place, and no large request came since.
  bool opened_now(const Journal& journal, const Place* place) const {
    return end_ > 0 && at(end_ - 1).place == place && at(end_ - 1).when == journal.now();
  }

  void append(const Journal& journal, Place* place) {
    const Opening opening{place, place->generation, journal.now()};
    place->last_use = journal.now();
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
    Place* place;
    uint32_t generation;
    uint64_t when;
  };

  uint64_t count() const { return std::min<uint64_t>(end_, kMost); }
  const Opening& at(uint64_t position) const { return ring_[position % kMost]; }

  std::vector<Opening> ring_;
  uint64_t end_ = 0;
};

}  // namespace spillway
