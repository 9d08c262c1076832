// Shows how far estimates of recorded runs are from what was measured, in tables.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/inputs/megatron_files.h"

namespace spillway {

struct Comparison {
  estimator::RecordedRun recorded;
  std::optional<estimator::Estimate> estimate = {};
  bool has_experts = false;
  std::string refused = {};
};

// A few lines for a person: errors, coverage, intervals.
std::string accuracy_summary(const std::vector<Comparison>& comparisons);

// Markdown: the bars, the same by feature and by family of cases, what no estimate can meet, and what was
// refused.
std::string accuracy_markdown(const std::vector<Comparison>& comparisons);

}  // namespace spillway
