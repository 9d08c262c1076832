#include "estimator/estimate.h"

#include <algorithm>
#include <cmath>

#include "estimator/timeline.h"

namespace spillway::estimator {

Result<Estimate> estimate(const TrainingRun& run) {
  if (std::string found = contradiction(run); !found.empty()) return Status::invalid_argument(found);
  Estimate out;
  out.parameters = total_parameters(run.model);
  const int64_t stages = run.parallel.pipeline;
  for (int64_t rank = run.last_rank_only ? stages - 1 : 0; rank < stages; ++rank) {
    out.ranks.push_back(rank_class(run, pipeline_stage(run, rank)));
  }
  const auto highest = std::max_element(
      out.ranks.begin(), out.ranks.end(),
      [](const RankClass& a, const RankClass& b) { return a.held_bytes() < b.held_bytes(); });
  out.peak_rank = static_cast<size_t>(highest - out.ranks.begin());
  if (!std::all_of(out.ranks.begin(), out.ranks.end(),
                   [](const RankClass& rank) { return std::isfinite(rank.peak_bytes); }))
    return Status::invalid_argument("model: its sizes give no figure; allowed: sizes that a model can have");
  return out;
}

}  // namespace spillway::estimator
