// Two dumps or snapshots side by side: what changed, by part, by size class and by call site.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/rank_report.h"

namespace spillway {

struct ChangedRow {
  std::string name;
  uint64_t before = 0;
  uint64_t after = 0;

  // Differences fit: no figure of a view exceeds 2^48.
  int64_t change() const { return static_cast<int64_t>(after) - static_cast<int64_t>(before); }
};

struct Diff {
  std::string before, after;        // the files
  std::vector<ChangedRow> peaks;    // reserved, live
  std::vector<ChangedRow> parts;    // at the reserved peak, or now; the last is their sum
  std::vector<ChangedRow> classes;  // at the live peak, or now; only what changed, the most first
  std::vector<ChangedRow> sites;    // likewise
};

Diff diff_of(const RankReport& before, const RankReport& after);

// Says what a change of a program may cost, for continuous integration.
struct DiffGate {
  std::optional<uint64_t> max_peak_bytes;
  std::optional<double> max_ratio;  // of the second file's peak to the first one's
  bool of_live = false;             // the live peak instead of the reserved one
};

// Sentences that say which bounds are exceeded; none where all hold.
std::vector<std::string> exceeded(const Diff& diff, const DiffGate& gate);

std::string diff_text(const Diff& diff, const std::vector<std::string>& exceeded, size_t most_rows);
nlohmann::ordered_json diff_json(const Diff& diff, const std::vector<std::string>& exceeded);

}  // namespace spillway
