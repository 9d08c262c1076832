// Vector clocks: for every timeline (the work of one stream, in order), the position up to which something is
// known to come before. One point of work is (timeline, position); it happened before a clock that has
// reached it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace spillway::sim {

using TimelineId = uint32_t;
constexpr TimelineId kNoTimeline = UINT32_MAX;

class VectorClock {
 public:
  uint64_t at(TimelineId id) const { return id < at_.size() ? at_[id] : 0; }
  void raise(TimelineId id, uint64_t position) {
    if (id >= at_.size()) at_.resize(id + 1, 0);
    at_[id] = std::max(at_[id], position);
  }
  // True if anything was learnt.
  bool join(const VectorClock& other) {
    if (other.at_.size() > at_.size()) at_.resize(other.at_.size(), 0);
    bool learnt = false;
    for (size_t id = 0; id < other.at_.size(); ++id) {
      if (other.at_[id] <= at_[id]) continue;
      at_[id] = other.at_[id];
      learnt = true;
    }
    return learnt;
  }
  bool reached(TimelineId id, uint64_t position) const { return at(id) >= position; }
  void clear() { at_.clear(); }

 private:
  std::vector<uint64_t> at_;
};

}  // namespace spillway::sim
