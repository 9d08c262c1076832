// The race detector. It sees every access of device work (which stream, at what position, after what) and
// every change of what is mapped, and reports what would be a fatal fault or silent corruption on a device:
//   - an access to an address that is not mapped, not accessible, or freed by its owner
//   - two accesses of the same physical bytes, one a write, without an order between them
//   - one grid that touches the same bytes through two addresses, one a write (aliases are not coherent in a
//   launch)
//   - an unmap, or the host's own access, while work that uses the bytes may still run
// It works on order, not on time: a missing edge is reported whether or not the simulated run went wrong, in
// every completion mode. It never stops the program. Guarded by State's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/cuda/clock.h"
#include "sim/cuda/memory.h"

namespace spillway::sim {

struct RangeAccess {
  uint64_t start = 0;
  uint64_t bytes = 0;
  bool write = false;
  bool host_pageable = false;  // ordinary host memory: nothing is known of it
  int device = -1;             // the device that reaches it, where that is not the stream's
};

// Who does the access: work at this position of this timeline, on this device.
struct Actor {
  TimelineId timeline = kNoTimeline;
  uint64_t position = 0;
  int device = 0;
  uint64_t stream_id = 0;
  const char* what = "";
};

class Detector {
 public:
  // `host` is what the host knows to be over; it must outlive the detector.
  void reset(bool enabled, const VectorClock* host);
  bool enabled() const { return enabled_; }

  void grid(Memory& memory, const std::set<std::pair<int, int>>& peers,
            const std::vector<RangeAccess>& accesses, const Actor& actor, const VectorClock& clock);
  void before_unmap(const Mapping& mapping);
  void host_access(Memory& memory, uint64_t start, uint64_t bytes, bool write);

  void note_alloc(uint64_t start, uint64_t bytes, uint64_t stream_id);
  void note_free(uint64_t start);
  // The block that begins there is gone with its addresses.
  void forget(uint64_t start) { notes_.erase(start); }
  // Names the stream that runs on the timeline from now on.
  void name_timeline(TimelineId timeline, uint64_t stream_id) { names_[timeline] = stream_id; }

  void report(std::string text);
  size_t count() const { return count_; }
  const char* text(size_t index) const { return index < reports_.size() ? reports_[index].c_str() : nullptr; }
  void clear_reports();

 private:
  struct Note {
    uint64_t end = 0;
    uint64_t stream_id = 0;
    bool freed = false;
  };
  void check_notes(const RangeAccess& access, const Actor& actor);
  bool check_access(Memory& memory, const std::set<std::pair<int, int>>& peers, const RangeAccess& access,
                    const Actor& actor, const VectorClock& clock);
  std::string describe(const Access& access) const;

  bool enabled_ = true;
  const VectorClock* host_ = nullptr;
  size_t count_ = 0;
  std::deque<std::string> reports_;
  std::map<uint64_t, Note> notes_;
  std::map<TimelineId, uint64_t> names_;
};

}  // namespace spillway::sim
