#include "estimator/stages.h"

#include <algorithm>

namespace spillway::estimator {

Stage pipeline_stage(const TrainingRun& run, int64_t rank) {
  const Parallel& parallel = run.parallel;
  const int64_t stages = parallel.pipeline * parallel.virtual_stages;
  const auto layers = static_cast<int64_t>(run.model.towers.back().layers.size());
  const auto layers_of = [&](int64_t stage) {
    return parallel.stage_layers.empty() ? layers / stages
                                         : parallel.stage_layers[static_cast<size_t>(stage)];
  };
  Stage out{rank, rank == 0, rank == parallel.pipeline - 1};
  int64_t next = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    if (stage % parallel.pipeline == rank) out.chunks.push_back({next, layers_of(stage), 0});
    next += layers_of(stage);
  }
  const int64_t later = parallel.pipeline - rank - 1;
  const int64_t microbatches = run.training.microbatches;
  if (parallel.virtual_stages == 1) {
    out.chunks.front().in_flight = std::min(microbatches, later + 1);
    return out;
  }
  const int64_t group = parallel.microbatch_group > 0 ? parallel.microbatch_group : parallel.pipeline;
  const int64_t held =
      std::min(microbatches * parallel.virtual_stages, 2 * later + (parallel.virtual_stages - 1) * group + 1);
  // Microbatches go through the chunks a group at a time.
  const int64_t round = group * parallel.virtual_stages;
  for (int64_t i = 0; i < parallel.virtual_stages; ++i) {
    const int64_t rest = std::clamp<int64_t>(held % round - i * group, 0, group);
    out.chunks[static_cast<size_t>(i)].in_flight = held / round * group + rest;
  }
  return out;
}

}  // namespace spillway::estimator
