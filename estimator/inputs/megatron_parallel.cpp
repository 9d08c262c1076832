#include <algorithm>

#include <fmt/format.h>

#include "estimator/inputs/megatron.h"
#include "estimator/inputs/patterns.h"

namespace spillway::estimator {
namespace {

Status place_by_layout(KeyValues& values, Parallel& parallel) {
  Result<std::string> layout = expand_layout(values.text("pipeline-model-parallel-layout", ""));
  if (!layout.ok()) return layout.take_status();
  const std::vector<std::string> stages = split_stages(layout.value());
  const auto count = static_cast<int64_t>(stages.size());
  if (count % parallel.pipeline != 0) {
    return Status::invalid_argument(
        fmt::format("pipeline-model-parallel-layout: {} stages are not divisible by "
                    "pipeline-model-parallel-size {}",
                    count, parallel.pipeline));
  }
  parallel.virtual_stages = count / parallel.pipeline;
  for (const std::string& stage : stages)
    parallel.stage_layers.push_back(std::count(stage.begin(), stage.end(), 't'));
  return {};
}

// An embedding or a loss that counts as a layer takes one layer's place on the first or the last stage.
void place_with_ends(bool embedding, bool loss, int64_t layers, Parallel& parallel) {
  const int64_t stages = parallel.pipeline * parallel.virtual_stages;
  const int64_t places = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
  if (places % stages != 0) return;  // contradiction() says so
  parallel.stage_layers.assign(static_cast<size_t>(stages), places / stages);
  if (embedding) --parallel.stage_layers.front();
  if (loss) --parallel.stage_layers.back();
}

void place_uneven(int64_t first, int64_t last, int64_t layers, Parallel& parallel) {
  const int64_t virtual_stages = parallel.virtual_stages;
  const int64_t fixed = (first > 0 ? 1 : 0) + (last > 0 ? 1 : 0);
  const int64_t middle = parallel.pipeline - fixed;
  const int64_t each = middle > 0 ? (layers - first - last) / middle : 0;
  for (int64_t i = 0; i < parallel.pipeline * virtual_stages; ++i) {
    const int64_t rank = i % parallel.pipeline;
    const int64_t own = rank == 0 && first > 0                      ? first
                        : rank == parallel.pipeline - 1 && last > 0 ? last
                                                                    : each;
    parallel.stage_layers.push_back(own / virtual_stages);
  }
}

Status place_layers(KeyValues& values, int64_t layers, Parallel& parallel) {
  if (values.has("pipeline-model-parallel-layout")) return place_by_layout(values, parallel);
  if (values.has("num-virtual-stages-per-pipeline-rank")) {
    parallel.virtual_stages = values.required("num-virtual-stages-per-pipeline-rank", 1, 10000);
  } else if (values.has("num-layers-per-virtual-pipeline-stage")) {
    const int64_t each = values.required("num-layers-per-virtual-pipeline-stage", 1, layers);
    const int64_t divisor = each * parallel.pipeline;
    if (layers % divisor != 0) {
      return Status::invalid_argument(
          fmt::format("num-layers-per-virtual-pipeline-stage: '{}' is not allowed; allowed: divisors of {} "
                      "layers over {} stages",
                      each, layers, parallel.pipeline));
    }
    parallel.virtual_stages = layers / divisor;
  }
  const int64_t first = values.whole("decoder-first-pipeline-num-layers", 0, 0, layers);
  const int64_t last = values.whole("decoder-last-pipeline-num-layers", 0, 0, layers);
  const bool embedding = values.flag("account-for-embedding-in-pipeline-split");
  const bool loss = values.flag("account-for-loss-in-pipeline-split");
  if (first > 0 || last > 0) {
    place_uneven(first, last, layers, parallel);
  } else if (embedding || loss) {
    place_with_ends(embedding, loss, layers, parallel);
  }
  return {};
}

// Prediction layers stand on the last stage, beside its share of the others.
void place_predictions(int64_t layers, int64_t predictions, Parallel& parallel) {
  const int64_t stages = parallel.pipeline * parallel.virtual_stages;
  if (parallel.stage_layers.empty() && layers % stages == 0)
    parallel.stage_layers.assign(static_cast<size_t>(stages), layers / stages);
  if (!parallel.stage_layers.empty()) parallel.stage_layers.back() += predictions;
}

DataSharding data_sharding(KeyValues& values) {
  const std::string strategy = values.choice("data-parallel-sharding-strategy", "no_shard",
                                             {"no_shard", "optim", "optim_grads", "optim_grads_params"});
  const std::string optimizer = values.has("optimizer") ? values.peek("optimizer") : "adam";
  const bool muon = optimizer.find("muon") != std::string::npos;
  if (values.flag("use-megatron-fsdp") || values.flag("use-custom-fsdp")) {
    if (muon)
      values.complain(
          fmt::format("optimizer: '{}' is not allowed beside Megatron-FSDP; allowed: adam, sgd", optimizer));
    if (strategy == "optim_grads_params") return DataSharding::kParameters;
    if (strategy == "optim_grads") return DataSharding::kGradients;
    if (strategy == "optim") return DataSharding::kOptimizer;
    return DataSharding::kNone;
  }
  const bool distributed = values.flag("use-distributed-optimizer");
  if (distributed && muon)
    values.complain(fmt::format(
        "use-distributed-optimizer: not allowed beside optimizer '{}'; allowed: optimizer dist_muon "
        "without it, which divides states by whole weights",
        optimizer));
  return distributed || optimizer == "dist_muon" ? DataSharding::kOptimizer : DataSharding::kNone;
}

}  // namespace

Status read_megatron_parallel(KeyValues& values, const MegatronRun& given, TrainingRun& run) {
  run.keys = {.gpus = "gpus",
              .tensor = "tensor-model-parallel-size",
              .pipeline = "pipeline-model-parallel-size",
              .virtual_stages = "num-virtual-stages-per-pipeline-rank",
              .context = "context-parallel-size",
              .expert = "expert-model-parallel-size",
              .expert_tensor = "expert-tensor-parallel-size",
              .instances = "num-distributed-optimizer-instances",
              .key_value_heads = "num-query-groups",
              .top_k = "moe-router-topk"};
  Parallel& parallel = run.parallel;
  constexpr int64_t kMostRanks = int64_t{1} << 20;
  parallel.world = given.gpus;
  parallel.tensor = values.whole("tensor-model-parallel-size", 1, 1, kMostRanks);
  parallel.pipeline = values.whole("pipeline-model-parallel-size", 1, 1, kMostRanks);
  parallel.context = values.whole("context-parallel-size", 1, 1, kMostRanks);
  parallel.expert = values.whole("expert-model-parallel-size", 1, 1, kMostRanks);
  parallel.expert_tensor = values.whole("expert-tensor-parallel-size", parallel.tensor, 1, kMostRanks);
  if (!values.has("num-experts")) parallel.expert_tensor = 1;
  // Without tensor parallelism there is nothing to divide the sequence over.
  parallel.sequence = values.flag("sequence-parallel") && parallel.tensor > 1;
  parallel.optimizer_instances = values.whole("num-distributed-optimizer-instances", 1, 1, kMostRanks);
  parallel.microbatch_group = values.whole("microbatch-group-size-per-virtual-pipeline-stage", 0, 0);
  parallel.sharding = data_sharding(values);
  if (!parallel.stage_layers.empty()) {
    const auto stages = static_cast<int64_t>(parallel.stage_layers.size());
    if (stages % parallel.pipeline != 0) {
      return Status::invalid_argument(
          fmt::format("hybrid-layer-pattern: {} stages are not divisible by pipeline-model-parallel-size {}",
                      stages, parallel.pipeline));
    }
    parallel.virtual_stages = stages / parallel.pipeline;
    return values.status();
  }
  const int64_t predictions = run.model.prediction_layers;
  const int64_t layers = static_cast<int64_t>(run.model.towers.back().layers.size()) - predictions;
  if (Status status = place_layers(values, layers, parallel); !status.ok()) return status;
  if (predictions > 0) place_predictions(layers, predictions, parallel);
  return values.status();
}

}  // namespace spillway::estimator
