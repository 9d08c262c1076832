// Everything that one view says, worked out: what text, JSON, page and trace show of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/fits.h"
#include "cli/report/growth.h"
#include "cli/report/tables.h"
#include "cli/report/timeline.h"
#include "cli/report/view.h"
#include "estimator/advice/diagnosis.h"
#include "estimator/calibration/measurement.h"

namespace spillway {

// Memory at one moment, whole.
struct Moment {
  std::string name;     // "reserved peak", "live peak", "end"; "now" of a dump
  int64_t event = -1;   // after which; -1: before the first, or none were recorded
  int64_t time_us = 0;  // 0: not known
  Parts parts;
  Tables tables;
  std::vector<SegmentView> segments;
};

struct RankReport {
  MemoryView view;
  bool records_segments = true;  // else what is reserved is what is active
  std::vector<Moment> moments;   // the first is the one that matters: the reserved peak, or now
  Fits fits;
  uint64_t largest_free_bytes = 0;
  Growth growth;
  std::vector<Timeline> timelines;
  std::vector<estimator::Finding> findings;
  std::vector<std::string> verdict;  // sentences: what is the case, and what to do

  const Moment& main() const { return moments.front(); }
  // Returns where the program held the most: the live peak, or now.
  const Moment& live() const { return moments.size() > 1 ? moments[1] : moments.front(); }
};

RankReport rank_report(MemoryView view);

// Raises the peaks of `view` to those that its events show, and gives the parts at the reserved peak; of a
// view without events, or with events that do not fit (noted in the view), those of now.
Parts find_peaks(MemoryView& view);

// The counters as the rules of diagnosis take them: those of the reserved peak, or now.
estimator::Measurement measurement_of(const MemoryView& view, const Parts& parts);

}  // namespace spillway
