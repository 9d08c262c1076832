#include "estimator/buckets/states.h"

#include <algorithm>

#include "estimator/buckets/activations.h"

namespace spillway::estimator {
namespace {

// The weights of one layer as a rank holds them.
void append_layer(const TrainingRun& run, const Tower& tower, const Layer& layer, int64_t buffer,
                  std::vector<RankWeight>& out) {
  std::vector<WeightTensors> weights;
  for (const Block& block : layer) append_weights(block, tower_width(run.model, tower), weights);
  for (const WeightTensors& tensors : weights) {
    switch (tensors.placement) {
      case Placement::kTensorSharded:
        out.push_back({tensors.elements / run.parallel.tensor, false, 1, 0, tensors.product});
        break;
      case Placement::kReplicated:
        out.push_back({tensors.elements, false, 1, 0, tensors.product});
        break;
      case Placement::kExpert: {
        out.push_back({tensors.elements / run.parallel.expert_tensor, true,
                       tensors.count / run.parallel.expert, buffer, tensors.product});
        break;
      }
    }
  }
}

// With tied tables the first and the last stage each hold one (Megatron-LM, language_module.py).
int64_t vocabulary_tables(const Model& model, const Stage& stage) {
  if (stage.first && stage.last) return model.tied ? 1 : 2;
  // Prediction layers embed tokens again.
  if (stage.last && model.prediction_layers > 0 && !model.tied) return 2;
  return stage.first || stage.last ? 1 : 0;
}

double moment_bytes(OptimizerKind kind, double state_bytes) {
  switch (kind) {
    case OptimizerKind::kAdam:
      return 2 * state_bytes;
    // Two bytes and an fp32 scale for each block of 256 (bitsandbytes, optimizer.py).
    case OptimizerKind::kAdam8bit:
      return 2 * (1 + 4.0 / 256);
    // torchao, optim/subclass_4bit.py: half a byte and an fp32 scale for each block of 128.
    case OptimizerKind::kAdam4bit:
      return 2 * (0.5 + 4.0 / 128);
    case OptimizerKind::kAdamMini:
    case OptimizerKind::kLion:
    case OptimizerKind::kMuon:
    case OptimizerKind::kSgdMomentum:
      return state_bytes;
    case OptimizerKind::kAdafactor:  // one row and one column of each matrix
    case OptimizerKind::kSgd:
      return 0;
  }
  return 0;
}

// Copies of matrices; with delayed scaling the history, scale and inverse of five tensors for each matrix:
// input, weight, output and the gradients of both (Transformer Engine, module/base.py, set_meta_tensor).
double fp8_bytes(const Fp8& fp8, const RankParameters& parameters) {
  const double scaled = fp8.amax_history > 0 ? 5 * static_cast<double>(parameters.product_tensors) : 0;
  return fp8.weight_copies_bytes * static_cast<double>(parameters.products) +
         4 * scaled * static_cast<double>(fp8.amax_history + 2);
}

// Muon has one state for each element of a layer's matrix; all else has Adam's two.
double muon_share(const RankParameters& parameters) {
  const auto all = static_cast<double>(parameters.dense + parameters.expert - parameters.frozen);
  return all <= 0 ? 1 : 2 - static_cast<double>(parameters.products - parameters.frozen_products) / all;
}

// Of the matrices whose gradients are projected: their elements; and their states, whose shorter side has
// `projection_rank` rows, with what projects, in the gradients' type (galore_torch, galore_projector.py;
// apollo_torch, random_projector.py).
struct Projected {
  double elements = 0;
  double bytes = 0;
};

Projected projected(const TrainingRun& run, const ElementBytes& bytes) {
  Projected out;
  for (const MatrixShape& matrix : trained_matrices(run)) {
    const int64_t shorter = std::min(matrix.rows, matrix.columns);
    const int64_t longer = std::max(matrix.rows, matrix.columns);
    const auto rank = static_cast<double>(std::min(run.training.projection_rank, shorter));
    const auto count = static_cast<double>(matrix.count);
    out.elements += count * static_cast<double>(matrix.rows) * static_cast<double>(matrix.columns);
    out.bytes +=
        count * rank *
        (bytes.moments * static_cast<double>(longer) + bytes.gradient * static_cast<double>(shorter));
  }
  return out;
}

// For `elements` of a shard. Where gradients are projected there are no shards.
double moments_of(const TrainingRun& run, const RankParameters& parameters, const ElementBytes& bytes,
                  double elements) {
  if (run.training.projection_rank > 0) {
    const Projected matrices = projected(run, bytes);
    return bytes.moments * (elements - matrices.elements) + matrices.bytes;
  }
  const bool muon = run.training.optimizer == OptimizerKind::kMuon;
  return bytes.moments * elements * (muon ? muon_share(parameters) : 1);
}

// Returns what matrices of few bits take less than those of `weight` bytes, of an unsharded rank.
double frozen_saving(const FrozenWeights& frozen, double weight, const RankParameters& parameters) {
  if (!frozen.on()) return 0;
  const int64_t quantised = frozen.only_experts ? parameters.expert_products : parameters.products;
  return (weight - frozen.bytes) * static_cast<double>(quantised);
}

}  // namespace

std::vector<MatrixShape> trained_matrices(const TrainingRun& run) {
  const bool known = run.framework == Framework::kTransformers;
  std::vector<MatrixShape> out;
  for (const Tower& tower : run.model.towers) {
    const ModelCode& code = tower.connector ? run.vision_code : run.code;
    if (tower.frozen || (known && code.transposed_matrices)) continue;
    const JoinedMatrices joined = {known && code.projection != ProjectionCode::kSeparate,
                                   known && code.joined_feed_forward,
                                   known && code.experts == ExpertsCode::kGrouped};
    for (const Layer& layer : tower.layers) {
      for (const Block& block : layer) append_matrices(block, tower_width(run.model, tower), joined, out);
    }
  }
  return out;
}

std::vector<RankWeight> rank_weights(const TrainingRun& run, const Stage& stage) {
  const Model& model = run.model;
  const int64_t rows = vocabulary_shard(run);
  std::vector<RankWeight> out;
  int64_t buffer = 0;
  const auto add = [&](int64_t elements, bool frozen = false) {
    if (elements > 0) out.push_back({elements, false, 1, buffer, false, frozen});
  };
  // A table that two stages share has a buffer of its own (Megatron-LM, param_and_grad_buffer.py).
  constexpr int64_t kSharedTable = -1;
  const bool shared = model.tied && run.parallel.pipeline > 1;
  const auto add_table = [&] {
    out.push_back({rows * table_width(model), false, 1, shared ? kSharedTable : buffer});
  };
  if (stage.first) {
    add_table();
    add(model.positions * table_width(model));
    add(model.token_types * table_width(model));
  }
  for (const Tower& tower : model.towers) {
    if (stage.first) {
      add(tower.input_parameters, tower.frozen);
      add(tower.sharded_input_parameters / run.parallel.tensor, tower.frozen);
    }
    if (&tower == &model.towers.back()) break;
    const size_t before = out.size();
    for (const Layer& layer : tower.layers) append_layer(run, tower, layer, 0, out);
    for (size_t i = before; i < out.size(); ++i) out[i].frozen = tower.frozen;
    add(tower.final_norm_parameters, tower.frozen);
    if (tower.connector) add(connector_parameters(*tower.connector));
  }
  const Tower& decoder = model.towers.back();
  const std::vector<Layer>& layers = decoder.layers;
  for (const Chunk& chunk : stage.chunks) {
    buffer = &chunk - stage.chunks.data();
    for (int64_t i = 0; i < chunk.layers; ++i) {
      const auto layer = static_cast<size_t>(chunk.first_layer + i);
      if (has_own_weights(model, layer)) append_layer(run, decoder, layers[layer], buffer, out);
    }
  }
  if (!stage.last) return out;
  add(decoder.final_norm_parameters);
  add(model.head_parameters);
  for (int64_t i = stage.first ? 1 : 0; i < vocabulary_tables(model, stage); ++i) add_table();
  if (model.output_bias) add(rows);
  return out;
}

RankParameters rank_parameters(const std::vector<RankWeight>& weights) {
  RankParameters out;
  for (const RankWeight& weight : weights) {
    (weight.expert ? out.expert : out.dense) += weight.elements * weight.count;
    if (weight.frozen) out.frozen += weight.elements * weight.count;
    if (!weight.product) continue;
    out.products += weight.elements * weight.count;
    if (weight.frozen) out.frozen_products += weight.elements * weight.count;
    if (weight.expert) out.expert_products += weight.elements * weight.count;
    out.product_tensors += weight.count;
  }
  return out;
}

double dense_optimizer_ranks(const Parallel& parallel) {
  return static_cast<double>(parallel.data() * parallel.context) /
         static_cast<double>(parallel.optimizer_instances);
}

double expert_optimizer_ranks(const Parallel& parallel) {
  return std::max(
      1.0, static_cast<double>(parallel.expert_data()) / static_cast<double>(parallel.optimizer_instances));
}

ElementBytes element_bytes(const Training& training, Framework framework) {
  ElementBytes out;
  if (training.frozen.on()) {
    out.weight = training.precision == Precision::kFp32 ? 4 : 2;
    return out;
  }
  const bool half = training.precision != Precision::kFp32 && !training.autocast;
  out.weight = half ? 2 : 4;
  out.gradient = !half || training.fp32_gradients ? 4 : 2;
  out.master = half && training.mixed ? (training.half_master ? 2 : 4) : 0;
  // Optimizers keep states in the dtype of the parameters they update.
  out.moments = moment_bytes(training.optimizer, half && (!training.mixed || training.half_states) ? 2 : 4);
  // Megatron-LM, optimizer.py: 16-bit gradients are copied to fp32 ones, freed by zero_grad.
  if (framework == Framework::kMegatron && out.master > 0 && out.gradient < 4) out.master_gradient = 4;
  return out;
}

StateBytes state_bytes(const TrainingRun& run, const RankParameters& parameters) {
  const Parallel& parallel = run.parallel;
  const ElementBytes bytes = element_bytes(run.training, run.framework);
  const double dense_ranks = dense_optimizer_ranks(parallel);
  const double expert_ranks = expert_optimizer_ranks(parallel);
  const auto dense = static_cast<double>(parameters.dense);
  const auto expert = static_cast<double>(parameters.expert);
  const auto held = [&](DataSharding from, double of_dense) {
    return parallel.sharding >= from ? of_dense / dense_ranks + expert / expert_ranks : of_dense + expert;
  };
  const double trained = dense - static_cast<double>(parameters.frozen);
  const double optimizer = held(DataSharding::kOptimizer, trained);
  const double all = held(DataSharding::kParameters, dense);
  const double in_8_bits = run.training.fp8.primary ? static_cast<double>(parameters.products) : 0;
  return {bytes.weight * (all - in_8_bits) -
              frozen_saving(run.training.frozen, bytes.weight, parameters) * all / (dense + expert),
          bytes.gradient * held(DataSharding::kGradients, trained),
          bytes.master * optimizer,
          moments_of(run, parameters, bytes, optimizer),
          bytes.master_gradient * optimizer,
          fp8_bytes(run.training.fp8, parameters)};
}

double gathered_root_bytes(const TrainingRun& run) {
  const Model& model = run.model;
  const double bytes = activation_element_bytes(run);
  const int64_t tables = model.tied ? 1 : 2;
  return bytes * static_cast<double>((vocabulary_shard(run) * tables + model.positions + model.token_types) *
                                     table_width(model));
}

double gathered_layer_bytes(const TrainingRun& run) {
  const double bytes = activation_element_bytes(run);
  int64_t largest = 0;
  const Tower& decoder = run.model.towers.back();
  for (const Layer& layer : decoder.layers) {
    std::vector<RankWeight> weights;
    append_layer(run, decoder, layer, 0, weights);
    const RankParameters count = rank_parameters(weights);
    largest = std::max(largest, count.dense + count.expert);
  }
  return bytes * static_cast<double>(largest);
}

}  // namespace spillway::estimator
