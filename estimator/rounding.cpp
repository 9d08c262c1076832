#include "estimator/rounding.h"

#include <algorithm>
#include <map>
#include <utility>

#include "estimator/torch_allocator.h"

namespace spillway::estimator {
namespace {

// With more tensors than this, what is left of blocks is small beside them, and playing them would take long.
constexpr double kMostPlayed = 1 << 18;

// The weights an optimizer shard holds, dense ones before experts'. A rank owns one end of each gradient
// buffer, which is laid out in the order gradients come: the last rank has the weights that were made first.
std::vector<double> optimizer_shard(const TrainingRun& run, const std::vector<RankWeight>& weights) {
  const bool sharded = run.parallel.sharding >= DataSharding::kOptimizer;
  std::map<std::pair<bool, int64_t>, double> left;  // of each buffer, for this rank
  for (const RankWeight& weight : weights)
    left[{weight.expert, weight.buffer}] += static_cast<double>(weight.elements * weight.count);
  for (auto& [buffer, elements] : left) {
    if (!sharded) continue;
    elements /= buffer.first ? expert_optimizer_ranks(run.parallel) : dense_optimizer_ranks(run.parallel);
  }
  std::vector<double> out;
  for (const bool expert : {false, true}) {
    for (const RankWeight& weight : weights) {
      if (weight.expert != expert) continue;
      double& rest = left[{expert, weight.buffer}];
      for (int64_t i = 0; i < weight.count && rest >= 1; ++i) {
        const double own = std::min(rest, static_cast<double>(weight.elements));
        if (own >= 1) out.push_back(own);
        rest -= own;
      }
    }
  }
  return out;
}

class Player {
 public:
  Player(const TrainingRun& run, const std::vector<RankWeight>& weights)
      : bytes_(element_bytes(run.training, run.framework)), shard_(optimizer_shard(run, weights)) {
    const RankParameters all = rank_parameters(weights);
    const bool buffers = run.parallel.sharding >= DataSharding::kOptimizer;
    if (buffers) {
      contiguous(bytes_.weight, all);
    } else {
      for (const RankWeight& weight : weights) {
        for (int64_t i = 0; i < weight.count; ++i)
          allocator_.allocate(bytes_.weight * static_cast<double>(weight.elements));
      }
    }
    contiguous(bytes_.gradient, all);
    if (bytes_.master > 0) {
      for (const double elements : shard_) allocator_.allocate(bytes_.master * elements);
    }
  }

  // The forward and backward pass; what the allocator had added at the end of the forward pass.
  double step(const std::vector<double>& activations) {
    std::vector<TorchAllocator::Block> held;
    for (const double bytes : activations) {
      if (bytes >= 1) held.push_back(allocator_.allocate(bytes));
    }
    const double peak = allocator_.excess_bytes();
    for (auto block = held.rbegin(); block != held.rend(); ++block) allocator_.free(*block);
    return peak;
  }

  void create_moments() {
    if (bytes_.moments <= 0) return;
    for (const double elements : shard_) {
      allocator_.allocate(bytes_.moments / 2 * elements);
      allocator_.allocate(bytes_.moments / 2 * elements);
    }
  }

  double excess_bytes() const { return allocator_.excess_bytes(); }

 private:
  void contiguous(double bytes, const RankParameters& all) {
    if (all.dense > 0) allocator_.allocate(bytes * static_cast<double>(all.dense));
    if (all.expert > 0) allocator_.allocate(bytes * static_cast<double>(all.expert));
  }

  ElementBytes bytes_;
  std::vector<double> shard_;
  TorchAllocator allocator_;
};

}  // namespace

RoundingBytes allocator_rounding(const TrainingRun& run, const std::vector<RankWeight>& weights,
                                 const std::vector<double>& activations) {
  if (run.parallel.sharding == DataSharding::kParameters) return {};
  double played = static_cast<double>(activations.size());
  for (const RankWeight& weight : weights) played += static_cast<double>(weight.count);
  if (played > kMostPlayed) return {};
  Player player(run, weights);
  player.step(activations);
  player.create_moments();
  const double peak = player.step(activations);
  return {player.excess_bytes(), peak};
}

}  // namespace spillway::estimator
