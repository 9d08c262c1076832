#include "estimator/advice/step_cost.h"

#include <algorithm>
#include <array>

#include "estimator/measured.h"

namespace spillway::estimator {
namespace {

// Data sheets of NVIDIA and AMD: dense bf16 with sums in fp32, memory, and NVLink or Infinity Fabric in one
// direction. Cards without a link of their own talk over PCIe 4.0 x16.
constexpr double kPcie = 25e9;
constexpr std::array<Machine, 14> kMachines = {{{"a100", 312e12, 2.0e12, 300e9},
                                                {"h100", 989e12, 3.35e12, 450e9},
                                                {"h200", 989e12, 4.8e12, 450e9},
                                                {"gh200", 989e12, 4.0e12, 450e9},
                                                {"h20", 148e12, 4.0e12, 450e9},
                                                {"b200", 2250e12, 8.0e12, 900e9},
                                                {"gb200", 2500e12, 8.0e12, 900e9},
                                                {"mi300x", 1307e12, 5.3e12, 448e9},
                                                {"l40s", 362e12, 0.864e12, kPcie},
                                                {"l4", 121e12, 0.3e12, kPcie},
                                                {"a10g", 70e12, 0.6e12, kPcie},
                                                {"rtx3090", 71e12, 0.936e12, kPcie},
                                                {"rtx4090", 165e12, 1.008e12, kPcie},
                                                {"rtx5090", 210e12, 1.792e12, kPcie}}};

// Training reaches this part of the published rate: 38 to 43 % in "The Llama 3 Herd of Models", table 4.
constexpr double kReached = 0.4;
// Between machines: one adapter of 400 Gb/s for each GPU, as in a DGX H100.
constexpr double kNetwork = 50e9;
constexpr int64_t kGpusOfMachine = 8;

double share_sent(int64_t ranks) {
  return ranks > 1 ? static_cast<double>(ranks - 1) / static_cast<double>(ranks) : 0;
}

double tokens_of(const ModelWork& model, const StepShape& shape) {
  return static_cast<double>(shape.training.micro_batch) * model.sequence /
         static_cast<double>(shape.parallel.context);
}

// Parameters of one tensor- and pipeline-parallel rank.
double rank_parameters(const ModelWork& model, const StepShape& shape) {
  return model.parameters / static_cast<double>(shape.parallel.tensor * shape.parallel.pipeline *
                                                std::max<int64_t>(1, shape.parallel.expert));
}

// Reduction of gradients and gathers of weights. Rajbhandari et al., "ZeRO", section 7: an all-reduce and
// stages 1 and 2 send twice the parameters, stage 3 a gather for each pass over the layers beside it.
double data_parallel_bytes(const ModelWork& model, const StepShape& shape, double element) {
  const Parallel& parallel = shape.parallel;
  const Training& training = shape.training;
  const int64_t ranks = parallel.data() * parallel.context;
  const double parameters = training.adapter.on() ? 0 : rank_parameters(model, shape);
  const auto passes = static_cast<double>(training.microbatches);
  const double once = element * share_sent(ranks) * parameters;
  if (parallel.sharding != DataSharding::kParameters) {
    // With sharded gradients each microbatch is reduced on its own.
    const double reductions = parallel.sharding == DataSharding::kGradients ? passes : 1;
    return once * (reductions + 1);
  }
  const double frozen = element * share_sent(ranks) * rank_parameters(model, shape);
  const double gathers = training.recompute == Recompute::kFull ? 3 : 2;
  return passes * (gathers * frozen + once);
}

// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", section 3.2: two
// all-reduces of the hidden state forward and two backward in each layer; a recomputed forward has its own.
double tensor_parallel_bytes(const ModelWork& model, const StepShape& shape, double element) {
  const double reductions = shape.training.recompute == Recompute::kFull ? 6 : 4;
  return static_cast<double>(shape.training.microbatches) * reductions * 2 *
         share_sent(shape.parallel.tensor) * element * tokens_of(model, shape) * model.hidden * model.layers /
         static_cast<double>(shape.parallel.pipeline);
}

double pipeline_bytes(const ModelWork& model, const StepShape& shape, double element) {
  if (shape.parallel.pipeline == 1) return 0;
  return 2 * static_cast<double>(shape.training.microbatches * shape.parallel.virtual_stages) * element *
         tokens_of(model, shape) * model.hidden / static_cast<double>(shape.parallel.sequence_shards());
}

// Liu et al., "Ring Attention": keys and values of the others pass by, and their gradients come back.
double context_bytes(const ModelWork& model, const StepShape& shape, double element) {
  const double passes = shape.training.recompute == Recompute::kFull ? 4 : 3;
  const auto ranks = static_cast<double>(shape.parallel.context);
  return static_cast<double>(shape.training.microbatches) * passes * (ranks - 1) * element *
         tokens_of(model, shape) * model.key_value_width /
         static_cast<double>(shape.parallel.tensor * shape.parallel.pipeline);
}

// Tokens go to their experts and come back, forward and backward.
double expert_bytes(const ModelWork& model, const StepShape& shape, double element) {
  const double exchanges = shape.training.recompute == Recompute::kFull ? 6 : 4;
  return static_cast<double>(shape.training.microbatches) * exchanges * share_sent(shape.parallel.expert) *
         element * tokens_of(model, shape) * model.hidden * model.expert_tokens /
         static_cast<double>(shape.parallel.pipeline * shape.parallel.sequence_shards());
}

// As buckets/offload.cpp moves them. What layers keep is 34 bytes for each token and hidden element
// (Korthikanti et al., "Reducing Activation Recomputation", section 4), or their input.
double host_bytes(const ModelWork& model, const StepShape& shape, double element) {
  const auto passes = static_cast<double>(shape.training.microbatches);
  const Parallel& parallel = shape.parallel;
  const double weights = element * rank_parameters(model, shape);
  const auto ranks = static_cast<double>(std::max<int64_t>(1, parallel.data() * parallel.context));
  const double shard = parallel.sharding == DataSharding::kNone ? weights : weights / ranks;
  double out = 0;
  if (shape.offload.optimizer != Tier::kDevice) out += shard * (1 + passes);
  const bool full = shape.training.recompute == Recompute::kFull;
  if (shape.offload.parameters != Tier::kDevice)
    out += (parallel.sharding == DataSharding::kParameters ? shard : weights) * passes * (full ? 3 : 2);
  if (shape.offload.activations != Tier::kDevice)
    out += 2 * passes * (full ? element : 34) * tokens_of(model, shape) * model.hidden * model.layers /
           static_cast<double>(parallel.tensor * parallel.pipeline);
  return out;
}

// The block with weights to multiply with, whichever layer has them.
Block with_weights(Block block) {
  if (auto* attention = std::get_if<Attention>(&block); attention != nullptr && attention->shared)
    attention->shared->first = true;
  if (auto* mlp = std::get_if<Mlp>(&block); mlp != nullptr && mlp->shared) mlp->shared->first = true;
  return block;
}

void count(const Block& block, double hidden, ModelWork& out) {
  std::vector<WeightTensors> weights;
  append_weights(with_weights(block), static_cast<int64_t>(hidden), weights);
  double share = 1;
  if (const auto* experts = std::get_if<Experts>(&block)) {
    out.expert_tokens += static_cast<double>(experts->top_k);
    share = static_cast<double>(experts->top_k) / static_cast<double>(std::max<int64_t>(1, experts->count));
  }
  for (const WeightTensors& tensors : weights) {
    const double elements = static_cast<double>(tensors.elements) * static_cast<double>(tensors.count);
    if (tensors.product)
      out.active_parameters += elements * (tensors.placement == Placement::kExpert ? share : 1);
  }
  if (const auto* attention = std::get_if<Attention>(&block)) {
    out.attention_width += static_cast<double>(attention->heads * attention->head_dim);
    out.key_value_width += 2 * static_cast<double>(attention->key_value_heads * attention->head_dim);
  }
}

}  // namespace

const Machine& machine_of(const std::string& gpu) {
  const Machine* longest = nullptr;
  for (const Machine& machine : kMachines) {
    const std::string_view name = machine.name;
    if (gpu.rfind(name, 0) != 0) continue;
    if (longest == nullptr || name.size() > std::string_view(longest->name).size()) longest = &machine;
  }
  return longest == nullptr ? kMachines.front() : *longest;
}

ModelWork model_work(const Model& model) {
  ModelWork out;
  out.hidden = static_cast<double>(model.hidden);
  out.parameters = static_cast<double>(total_parameters(model));
  for (const Tower& tower : model.towers) {
    const auto width = static_cast<double>(tower_width(model, tower));
    // As layers of the model's width that have as many tokens as a sample.
    const double share = tower.hidden == 0
                             ? 1
                             : width * static_cast<double>(tower.sequence * tower.sequences) / out.hidden /
                                   static_cast<double>(model.towers.back().sequence);
    out.layers += share * static_cast<double>(tower.layers.size());
    for (const Layer& layer : tower.layers) {
      for (const Block& block : layer) count(block, width, out);
    }
  }
  out.sequence = static_cast<double>(model.towers.back().sequence);
  if (model.vocabulary_head)
    out.active_parameters += static_cast<double>(model.vocabulary) * static_cast<double>(table_width(model));
  return out;
}

StepWork step_work(const ModelWork& model, const StepShape& shape) {
  const Parallel& parallel = shape.parallel;
  const Training& training = shape.training;
  const double element = training.precision == Precision::kFp32 ? 4 : 2;
  const auto passes = static_cast<double>(training.microbatches);
  const double tokens = passes * tokens_of(model, shape);
  const auto divided = static_cast<double>(parallel.tensor * parallel.pipeline);
  // Two operations for each weight, and for each score of half the square of a causal mask four.
  const double products = 2 * tokens * model.active_parameters / divided;
  const double scores = 2 * tokens * model.sequence * model.attention_width / divided;
  StepWork out;
  // Hu et al., "LoRA": a frozen weight has no gradient of its own, a third of the arithmetic less.
  const double passes_over = training.adapter.on() ? 2 : 3;
  if (training.recompute == Recompute::kFull) out.recomputed_flops = products + scores;
  if (training.recompute == Recompute::kOperators) out.recomputed_flops = products / 2;
  if (training.recompute == Recompute::kSelective && training.modules.attention_core)
    out.recomputed_flops = scores;
  out.flops = passes_over * products + 3 * scores + out.recomputed_flops;
  out.link_bytes = data_parallel_bytes(model, shape, element) + tensor_parallel_bytes(model, shape, element) +
                   pipeline_bytes(model, shape, element) + context_bytes(model, shape, element) +
                   expert_bytes(model, shape, element);
  out.host_bytes = host_bytes(model, shape, element);
  const double gradient = training.fp32_gradients ? 4 : element;
  out.memory_bytes = passes * rank_parameters(model, shape) * (3 * element + 2 * gradient);
  // Narayanan et al., section 2.2: p - 1 of the microbatches' time is idle, divided by the virtual stages.
  if (parallel.pipeline > 1)
    out.idle_share =
        static_cast<double>(parallel.pipeline - 1) / (passes * static_cast<double>(parallel.virtual_stages));
  return out;
}

double step_seconds(const StepWork& work, const StepShape& shape, const Machine& machine) {
  const double arithmetic = work.flops / (kReached * machine.flops);
  const double link =
      shape.parallel.world > kGpusOfMachine ? std::min(kNetwork, machine.link_bytes) : machine.link_bytes;
  const double host = shape.offload.host_bandwidth > 0 ? shape.offload.host_bandwidth : kHostBandwidth.value;
  return arithmetic * (1 + work.idle_share) + work.link_bytes / link + work.host_bytes / host +
         work.memory_bytes / machine.memory_bytes;
}

}  // namespace spillway::estimator
