// Says how the counters of pinned memory move.
#pragma once

#include <algorithm>
#include <cstdint>

#include "include/spillway/stats.h"

namespace spillway {

inline void count(spw_stat& stat, int64_t change) {
  stat.current += change;
  stat.peak = std::max(stat.peak, stat.current);
  (change > 0 ? stat.allocated : stat.freed) += change > 0 ? change : -change;
}

inline void count(spw_duration& duration, int64_t time_us) {
  duration.shortest_us = duration.longest_us == 0 ? time_us : std::min(duration.shortest_us, time_us);
  duration.longest_us = std::max(duration.longest_us, time_us);
  duration.total_us += time_us;
  ++duration.count;
}

inline void reset_peak(spw_stat& stat) {
  stat.peak = stat.current;
}
inline void reset_peak(spw_duration& duration) {
  duration.longest_us = duration.shortest_us = 0;
}

inline void reset_accumulated(spw_stat& stat) {
  stat.allocated = stat.freed = 0;
}
inline void reset_accumulated(spw_duration& duration) {
  duration.count = duration.total_us = 0;
}

}  // namespace spillway
