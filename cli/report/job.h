// The files of all ranks of a job, in one pass: each is read, reduced to a row and let go.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/rank_report.h"
#include "cli/report/tables.h"
#include "cli/report/view.h"

namespace spillway {

// One process on one device.
struct RankRow {
  std::string source;
  std::string label;
  std::optional<int64_t> rank;
  int64_t device = 0;
  int64_t time_us = 0;
  Parts parts;  // at the reserved peak, or now
  TierView tiers;
  uint64_t reserved_peak_bytes = 0;
  uint64_t live_peak_bytes = 0;
  int64_t retries = 0;
  int64_t ooms = 0;
  double deviation = 0;  // of the reserved peak from the median, in robust standard deviations
};

// Ranks that differ in an option from what most of them have.
struct Difference {
  std::string option;
  std::string most;   // what most ranks have
  std::string other;  // what these have
  std::vector<std::string> ranks;
};

// A rule of diagnosis that spoke for one or more ranks; the one with the most to save stands for all.
struct JobFinding {
  estimator::Finding finding;
  size_t ranks = 0;
};

struct Spread {
  uint64_t least = 0, median = 0, mean = 0, most = 0;
  double imbalance() const { return mean > 0 ? static_cast<double>(most) / static_cast<double>(mean) : 0; }
};

struct JobReport {
  size_t files = 0;
  std::vector<std::string> complaints;  // one line for each file that could not be read
  std::vector<RankRow> rows;            // by rank and device; of several dumps of one, the last
  size_t earlier_dumps = 0;             // the others, which are no rows
  std::vector<size_t> outliers;         // of rows, the farthest first
  Parts total;                          // over rows
  Spread reserved_peak, live_peak, live;
  std::vector<Difference> differences;
  std::vector<ClassRow> classes;
  std::vector<SiteRow> sites;
  std::vector<JobFinding> findings;
  std::optional<RankReport> shown;  // the rank that is reported in full

  bool is_one() const { return rows.size() == 1; }
};

struct JobOptions {
  std::optional<int64_t> rank;  // to be reported in full; else the one with the highest reserved peak
  std::function<void(size_t done, size_t all)> progress = [](size_t, size_t) {};
};

// Reads in as many threads as there are processors, at most 8. Memory: a few KiB for each file, and what the
// files being read take. Errors are lines of `complaints`.
JobReport report_job(const std::vector<std::string>& paths, const JobOptions& options);

}  // namespace spillway
