#include "estimator/run.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "estimator/diffusion/pipeline.h"

namespace spillway::estimator {
namespace {

std::string not_allowed(std::string_view key, int64_t value, const std::string& allowed) {
  return fmt::format("{}: '{}' is not allowed; allowed: {}", key, value, allowed);
}

// Empty where `divisor` divides `value`.
std::string divides(std::string_view key, int64_t divisor, std::string_view what, int64_t value) {
  if (value % divisor == 0) return {};
  return not_allowed(key, divisor, fmt::format("divisors of {} {}", value, what));
}

std::string experts_contradiction(const Experts& experts, const TrainingRun& run) {
  if (experts.top_k > experts.count)
    return not_allowed(run.keys.top_k, experts.top_k, fmt::format("up to {} experts", experts.count));
  return divides(run.keys.expert, run.parallel.expert, "experts", experts.count);
}

std::string block_contradiction(const Block& block, const TrainingRun& run) {
  const int64_t tensor = run.parallel.tensor;
  const char* key = run.keys.tensor;
  if (const auto* attention = std::get_if<Attention>(&block)) {
    std::string found =
        divides(run.keys.key_value_heads, attention->key_value_heads, "attention heads", attention->heads);
    return found.empty() ? divides(key, tensor, "attention heads", attention->heads) : found;
  }
  if (const auto* mlp = std::get_if<Mlp>(&block))
    return divides(key, tensor, "elements of the feed-forward width", mlp->ffn);
  if (const auto* experts = std::get_if<Experts>(&block)) return experts_contradiction(*experts, run);
  if (const auto* mamba = std::get_if<Mamba>(&block)) {
    std::string found = divides(key, tensor, "Mamba heads", mamba->heads);
    return found.empty() ? divides(key, tensor, "Mamba groups", mamba->groups) : found;
  }
  return {};
}

std::string model_contradiction(const TrainingRun& run) {
  bool has_experts = false;
  for (const Tower& tower : run.model.towers) {
    if (tower.divided) {
      std::string found =
          divides(run.keys.context, run.parallel.context, "tokens of a sequence", tower.sequence);
      if (!found.empty()) return found;
    }
    for (const Layer& layer : tower.layers) {
      for (const Block& block : layer) {
        has_experts = has_experts || std::holds_alternative<Experts>(block);
        if (std::string found = block_contradiction(block, run); !found.empty()) return found;
      }
    }
  }
  if (!has_experts && run.parallel.expert > 1)
    return not_allowed(run.keys.expert, run.parallel.expert, "1 for a model without experts");
  return {};
}

std::string gpus_contradiction(const TrainingRun& run) {
  const Parallel& parallel = run.parallel;
  const SizeKeys& keys = run.keys;
  if (parallel.world % (parallel.tensor * parallel.pipeline * parallel.context) != 0) {
    return not_allowed(keys.gpus, parallel.world,
                       fmt::format("multiples of {} {} x {} {} x {} {}", keys.tensor, parallel.tensor,
                                   keys.pipeline, parallel.pipeline, keys.context, parallel.context));
  }
  if (parallel.world % (parallel.expert_tensor * parallel.expert * parallel.pipeline) != 0) {
    return not_allowed(
        keys.gpus, parallel.world,
        fmt::format("multiples of {} {} x {} {} x {} {}", keys.expert_tensor, parallel.expert_tensor,
                    keys.expert, parallel.expert, keys.pipeline, parallel.pipeline));
  }
  return divides(keys.instances, parallel.optimizer_instances, "data-parallel ranks", parallel.data());
}

std::string stages_contradiction(const TrainingRun& run) {
  const Parallel& parallel = run.parallel;
  const SizeKeys& keys = run.keys;
  const auto layers = static_cast<int64_t>(run.model.towers.back().layers.size());
  const int64_t stages = parallel.pipeline * parallel.virtual_stages;
  if (parallel.pipeline > 1 && shares_weights(run.model))
    return not_allowed(keys.pipeline, parallel.pipeline, "1 for a model whose layers share weights");
  if (parallel.pipeline > 1 && run.model.towers.size() > 1)
    return fmt::format("{}: '{}' is not modelled for {} towers; allowed: 1", keys.pipeline, parallel.pipeline,
                       run.model.towers.size());
  if (!parallel.stage_layers.empty()) {
    const int64_t placed =
        std::accumulate(parallel.stage_layers.begin(), parallel.stage_layers.end(), int64_t{0});
    return placed == layers ? std::string()
                            : fmt::format("{} layers are placed on stages, the model has {}", placed, layers);
  }
  if (parallel.pipeline == 1 && parallel.virtual_stages > 1)
    return not_allowed(keys.virtual_stages, parallel.virtual_stages,
                       fmt::format("1 beside {} 1", keys.pipeline));
  if (parallel.virtual_stages == 1) return divides(keys.pipeline, parallel.pipeline, "layers", layers);
  return divides(fmt::format("{} {} x {} {}", keys.pipeline, parallel.pipeline, keys.virtual_stages,
                             parallel.virtual_stages),
                 stages, "layers", layers);
}

// What a search or an advice must not propose either.
std::string method_contradiction(const TrainingRun& run) {
  const Training& training = run.training;
  const bool is_full = training.recompute == Recompute::kFull;
  if (training.moved.on() && is_full)
    return "recompute-granularity: 'full' is not modelled beside fine-grained-activation-offloading; "
           "allowed: selective";
  if (!training.preference.on) return {};
  if (run.parallel.tensor > 1)
    return fmt::format("{}: '{}' is not modelled beside train.method; allowed: 1", run.keys.tensor,
                       run.parallel.tensor);
  const bool has_value_model = training.preference.has_value_model;
  if (has_value_model && training.recompute != Recompute::kNone)
    return fmt::format(
        "train.recompute: '{}' is not modelled beside train.method 'ppo', whose trainer "
        "recomputes nothing; allowed: none",
        is_full ? "full" : "selective");
  if (run.parallel.sharding >= (has_value_model ? DataSharding::kOptimizer : DataSharding::kParameters))
    return fmt::format("parallel.zero: '{}' is not modelled beside train.method; allowed: {}",
                       static_cast<int>(run.parallel.sharding), has_value_model ? "0" : "0 to 2");
  return {};
}

constexpr double kMostParameters = 1e15;

// As total_parameters(), where that would overflow.
double approximate_parameters(const Model& model) {
  double total = 0;
  if (model.pipeline) {
    total = static_cast<double>(denoiser_parameters(*model.pipeline));
    for (const TextEncoder& encoder : model.pipeline->encoders)
      total += approximate_parameters(encoder.model);
  }
  std::vector<WeightTensors> weights;
  for (const Tower& tower : model.towers) {
    for (const Layer& layer : tower.layers) {
      weights.clear();
      for (const Block& block : layer) append_weights(block, tower_width(model, tower), weights);
      for (const WeightTensors& tensors : weights)
        total += static_cast<double>(tensors.elements) * static_cast<double>(tensors.count);
    }
  }
  return total;
}

}  // namespace

bool Adapter::targets_module(std::string_view name) const {
  return on() && (all_linear || std::find(targets.begin(), targets.end(), name) != targets.end());
}

bool Adapter::scales_input(std::string_view name) const {
  return targets_module(name) &&
         std::find(scaled_inputs.begin(), scaled_inputs.end(), name) != scaled_inputs.end();
}

bool Adapter::trains(std::string_view name) const {
  return !on() || std::find(trained_modules.begin(), trained_modules.end(), name) != trained_modules.end();
}

int64_t vocabulary_shard(const TrainingRun& run) {
  const int64_t multiple = run.model.vocabulary_multiple * run.parallel.tensor;
  return (run.model.vocabulary + multiple - 1) / multiple * multiple / run.parallel.tensor;
}

std::string contradiction(const TrainingRun& run) {
  if (const double parameters = approximate_parameters(run.model); parameters > kMostParameters)
    return fmt::format("{:.1e} parameters are more than any machine holds; allowed: up to {:.0e}", parameters,
                       kMostParameters);
  if (std::string found = gpus_contradiction(run); !found.empty()) return found;
  if (std::string found = model_contradiction(run); !found.empty()) return found;
  if (std::string found = method_contradiction(run); !found.empty()) return found;
  return stages_contradiction(run);
}

}  // namespace spillway::estimator
