// Keeps what the ladder did lately: the last requests that own free memory and new pages did not serve, with
// the rungs tried for each, for dumps and for the text of an out-of-memory error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stats/counters.h"
#include "stats/lock.h"

namespace spillway {

// One request on its way up the ladder.
struct SlowPath {
  static constexpr size_t kRungs = static_cast<size_t>(Rung::kCount);

  uint64_t requested_bytes = 0;
  uint64_t stream = 0;  // the handle's value
  int64_t time_us = 0;  // since 1970, when it ended
  // Time spent on each rung; 0 for one that was not tried, 1 at least for one that was.
  std::array<int64_t, kRungs> rung_ns{};
  Rung outcome = Rung::kCount;  // the last rung that served, or out_of_memory; kCount: none yet

  void note(Rung rung, bool served, int64_t time_ns);
  // Tells whether more was tried than completed frees, views and new pages, or nothing helped.
  bool is_notable() const;
};

// Thread-safe. Holds kKept climbs and allocates nothing after its construction.
class SlowPathLog {
 public:
  static constexpr size_t kKept = 64;

  // Keeps the climb if it is notable, with the time. A system call at most, and a lock for a copy.
  void add(SlowPath climb);
  // Oldest first.
  std::vector<SlowPath> list() const;

 private:
  mutable BlockingMutex mutex_;
  std::array<SlowPath, kKept> climbs_ SPW_GUARDED_BY(mutex_){};
  size_t added_ SPW_GUARDED_BY(mutex_) = 0;
};

}  // namespace spillway
