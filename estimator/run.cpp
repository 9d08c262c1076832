#include "estimator/run.h"

#include <numeric>

#include <fmt/format.h>

namespace spillway::estimator {
namespace {

std::string not_divisible(std::string_view what, int64_t value, std::string_view by, int64_t divisor) {
  return fmt::format("{} {} is not divisible by {} {}", what, value, by, divisor);
}

std::string block_contradiction(const Block& block, const Parallel& parallel) {
  if (const auto* attention = std::get_if<Attention>(&block)) {
    if (attention->heads % parallel.tensor != 0)
      return not_divisible("attention heads", attention->heads, "tensor-parallel size", parallel.tensor);
    if (attention->heads % attention->key_value_heads != 0)
      return not_divisible("attention heads", attention->heads, "key-value heads",
                           attention->key_value_heads);
  } else if (const auto* mlp = std::get_if<Mlp>(&block)) {
    if (mlp->ffn % parallel.tensor != 0)
      return not_divisible("feed-forward width", mlp->ffn, "tensor-parallel size", parallel.tensor);
  } else if (const auto* experts = std::get_if<Experts>(&block)) {
    if (experts->count % parallel.expert != 0)
      return not_divisible("experts", experts->count, "expert-parallel size", parallel.expert);
    if (experts->top_k > experts->count)
      return fmt::format("{} experts for each token are more than the {} there are", experts->top_k,
                         experts->count);
  } else if (const auto* mamba = std::get_if<Mamba>(&block)) {
    if (mamba->heads % parallel.tensor != 0 || mamba->groups % parallel.tensor != 0)
      return not_divisible("Mamba heads or groups", mamba->heads, "tensor-parallel size", parallel.tensor);
  }
  return {};
}

constexpr double kMostParameters = 1e15;

// As total_parameters(), where that would overflow.
double approximate_parameters(const Model& model) {
  double total = 0;
  std::vector<WeightTensors> weights;
  for (const Tower& tower : model.towers) {
    for (const Layer& layer : tower.layers) {
      weights.clear();
      for (const Block& block : layer) append_weights(block, model.hidden, weights);
      for (const WeightTensors& tensors : weights)
        total += static_cast<double>(tensors.elements) * static_cast<double>(tensors.count);
    }
  }
  return total;
}

}  // namespace

int64_t vocabulary_shard(const TrainingRun& run) {
  const int64_t multiple = run.model.vocabulary_multiple * run.parallel.tensor;
  return (run.model.vocabulary + multiple - 1) / multiple * multiple / run.parallel.tensor;
}

std::string contradiction(const TrainingRun& run) {
  if (const double parameters = approximate_parameters(run.model); parameters > kMostParameters)
    return fmt::format("{:.1e} parameters are more than any machine holds; allowed: up to {:.0e}", parameters,
                       kMostParameters);
  const Parallel& parallel = run.parallel;
  const int64_t model_parallel = parallel.tensor * parallel.pipeline * parallel.context;
  if (parallel.world % model_parallel != 0) {
    return fmt::format("{} GPUs are not divisible by tensor {} x pipeline {} x context {}", parallel.world,
                       parallel.tensor, parallel.pipeline, parallel.context);
  }
  const int64_t expert_parallel = parallel.expert_tensor * parallel.expert * parallel.pipeline;
  if (parallel.world % expert_parallel != 0) {
    return fmt::format("{} GPUs are not divisible by expert tensor {} x expert {} x pipeline {}",
                       parallel.world, parallel.expert_tensor, parallel.expert, parallel.pipeline);
  }
  if (parallel.data() % parallel.optimizer_instances != 0) {
    return not_divisible("data-parallel size", parallel.data(), "optimizer instances",
                         parallel.optimizer_instances);
  }
  for (const Tower& tower : run.model.towers) {
    if (tower.divided && tower.sequence % parallel.context != 0)
      return not_divisible("sequence length", tower.sequence, "context-parallel size", parallel.context);
    for (const Layer& layer : tower.layers) {
      for (const Block& block : layer) {
        if (std::string found = block_contradiction(block, parallel); !found.empty()) return found;
      }
    }
  }
  const auto layers = static_cast<int64_t>(run.model.towers.back().layers.size());
  const int64_t stages = parallel.pipeline * parallel.virtual_stages;
  if (parallel.pipeline > 1 && run.model.towers.size() > 1)
    return fmt::format("pipeline-parallel size {} with {} towers is not modelled; allowed: 1",
                       parallel.pipeline, run.model.towers.size());
  if (!parallel.stage_layers.empty()) {
    const int64_t placed =
        std::accumulate(parallel.stage_layers.begin(), parallel.stage_layers.end(), int64_t{0});
    if (placed != layers)
      return fmt::format("{} layers are placed on stages, the model has {}", placed, layers);
  } else if (layers % stages != 0) {
    return not_divisible("number of layers", layers, "pipeline stages", stages);
  }
  return {};
}

}  // namespace spillway::estimator
