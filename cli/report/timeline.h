// Memory over time, thinned for a picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/report/history.h"
#include "cli/report/view.h"

namespace spillway {

struct TimelinePoint {
  int64_t at = 0;  // microseconds since the first point, or the event's number
  std::vector<uint64_t> bytes;
};

// Series that are stacked: at every point they sum to what there is.
struct Timeline {
  std::string title;
  bool in_events = false;  // the file has no times
  std::vector<std::string> series;
  std::vector<TimelinePoint> points;  // ascending
};

inline constexpr size_t kMostTimelinePoints = 2000;

// By what reserved bytes are, by size class, and by call site (the largest at the live peak, and the rest).
// Of events that lie between two points the one with the most live bytes is kept, so peaks stay.
std::vector<Timeline> timelines_of(const MemoryView& view, History& history,
                                   const std::vector<std::string>& largest_sites);

// Draws several dumps of one process, in order of time: device memory by what it is, and the tiers beside it.
Timeline timeline_of_dumps(const std::vector<const MemoryView*>& dumps);

}  // namespace spillway
