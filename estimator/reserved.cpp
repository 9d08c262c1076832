#include "estimator/reserved.h"

#include <algorithm>

namespace spillway::estimator {

// As `bench/estimator/reserved.py shares` prints them.
const std::array<ReservedShare, 12> kReservedShares = {{
    {AllocatorModel::kPytorch, ReservedKind::kPlain, 20, 1.0129, 1.0779, 1.7473},
    {AllocatorModel::kPytorch, ReservedKind::kRecomputed, 6, 1.1259, 1.1756, 1.4979},
    {AllocatorModel::kPytorch, ReservedKind::kRoutedExperts, 2, 1.2677, 1.29, 1.3122},
    {AllocatorModel::kPytorch, ReservedKind::kSharded, 2, 1.4128, 1.4272, 1.4416},
    {AllocatorModel::kExpandable, ReservedKind::kPlain, 10, 1.0068, 1.0245, 1.081},
    {AllocatorModel::kExpandable, ReservedKind::kRecomputed, 4, 1.0205, 1.164, 1.2071},
    {AllocatorModel::kExpandable, ReservedKind::kRoutedExperts, 1, 1.0663, 1.0663, 1.0663},
    {AllocatorModel::kExpandable, ReservedKind::kSharded, 2, 1.2675, 1.2818, 1.2961},
    {AllocatorModel::kSpillway, ReservedKind::kPlain, 10, 1.0005, 1.0005, 1.0087},
    {AllocatorModel::kSpillway, ReservedKind::kRecomputed, 4, 1.0005, 1.0008, 1.003},
    {AllocatorModel::kSpillway, ReservedKind::kRoutedExperts, 1, 1.0015, 1.0015, 1.0015},
    {AllocatorModel::kSpillway, ReservedKind::kSharded, 2, 1.0005, 1.0015, 1.0025},
}};

ReservedKind reserved_kind(const TrainingRun& run) {
  if (run.parallel.sharding == DataSharding::kParameters && run.parallel.data() > 1)
    return ReservedKind::kSharded;
  for (const Tower& tower : run.model.towers) {
    for (const Layer& layer : tower.layers) {
      for (const Block& block : layer) {
        if (std::holds_alternative<Experts>(block)) return ReservedKind::kRoutedExperts;
      }
    }
  }
  const Recompute recompute = run.training.recompute;
  return recompute == Recompute::kFull || recompute == Recompute::kOperators ? ReservedKind::kRecomputed
                                                                             : ReservedKind::kPlain;
}

const char* allocator_name(AllocatorModel allocator) {
  switch (allocator) {
    case AllocatorModel::kPytorch:
      return "pytorch";
    case AllocatorModel::kExpandable:
      return "expandable";
    case AllocatorModel::kSpillway:
      return "spillway";
  }
  return "";
}

std::optional<AllocatorModel> find_allocator(std::string_view name) {
  for (const AllocatorModel allocator : kAllocators) {
    if (name == allocator_name(allocator)) return allocator;
  }
  return {};
}

ReservedBytes reserved_bytes(const TrainingRun& run, double peak_bytes, AllocatorModel allocator) {
  const ReservedKind kind = reserved_kind(run);
  const auto* const share =
      std::find_if(kReservedShares.begin(), kReservedShares.end(),
                   [&](const ReservedShare& row) { return row.allocator == allocator && row.kind == kind; });
  return {peak_bytes * share->lowest, peak_bytes * share->expected, peak_bytes * share->highest};
}

ReservedBytes reserved_bytes(const TrainingRun& run, double peak_bytes) {
  return reserved_bytes(run, peak_bytes, run.allocator);
}

}  // namespace spillway::estimator
