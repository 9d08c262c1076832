// The last accesses of each byte of one piece of physical memory: who wrote it last, and who has read it
// since. Ranges with the same history are one span. Knows nothing of addresses: offsets are physical, so
// views of the same bytes meet.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/cuda/clock.h"

namespace spillway::sim {

// One access: a point of work, and the view it came through as (address - offset), which tells aliases apart.
struct Access {
  TimelineId timeline = kNoTimeline;
  uint64_t position = 0;
  uint64_t view = 0;

  bool same_grid(const Access& other) const {
    return timeline == other.timeline && position == other.position;
  }
  bool same(const Access& other) const { return same_grid(other) && view == other.view; }
};

// Says what is wrong with an access, and the earlier one it conflicts with.
struct Conflict {
  enum class Kind { kNone, kRace, kAlias } kind = Kind::kNone;
  bool earlier_wrote = false;
  Access earlier;
};

class Shadow {
 public:
  // Records the access and returns the first conflict with an earlier one. `clock` is what came before this
  // access, `host` what the host knows to be over: such accesses need not be remembered.
  Conflict access(uint64_t offset, uint64_t bytes, bool write, const Access& by, const VectorClock& clock,
                  const VectorClock& host);
  // The first access through this view that has not reached `clock`; timeline kNoTimeline if none.
  Access unfinished(uint64_t view, uint64_t offset, uint64_t bytes, const VectorClock& clock,
                    bool any_view = false) const;
  // As unfinished, of writes only when `writes_only`.
  Access unfinished_write(uint64_t offset, uint64_t bytes, const VectorClock& clock) const;
  bool empty() const { return spans_.empty(); }

 private:
  struct Span {
    uint64_t end = 0;
    Access write;
    std::vector<Access> reads;
    // Earlier accesses through other views, implied by those above in order, but not in time: the view they
    // came through may not be unmapped before the host knows that they are over.
    std::vector<Access> behind;
  };
  using Spans = std::map<uint64_t, Span>;
  void split_at(uint64_t offset);
  static void supersede(Span& span, const Access& earlier, const Access& by, const VectorClock& host);
  void merge(Spans::iterator first, uint64_t end);

  Spans spans_;
};

}  // namespace spillway::sim
