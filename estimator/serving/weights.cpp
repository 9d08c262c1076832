#include <algorithm>

#include "estimator/serving/serving.h"

namespace spillway::estimator {
namespace {

constexpr int64_t kVocabularyMultiple = 64;  // vLLM, vocab_parallel_embedding.py
constexpr int64_t kExpertMultiple = 256;     // vLLM, quantization/mxfp4.py

double share(int64_t elements, int64_t ranks) {
  return static_cast<double>(elements) / static_cast<double>(ranks);
}

int64_t rounded_up(int64_t number, int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

// Weights of a block on one rank, by bytes of an element.
class BlockWeights {
 public:
  explicit BlockWeights(const ServingRun& run) : run_(run), hidden_(run.model.hidden) {}

  double operator()(const Attention& block) const {
    const int64_t input = input_width(block, hidden_);
    const double adapters = block.shared ? 3 * beside(input, block.shared->rank, input) : 0;
    if (has_earlier_weights(block)) return adapters;
    double bytes = adapters +
                   whole(block.norm_parameters + block.head_norm_parameters + block.extra_parameters) +
                   whole(block.output_bias ? hidden_ : 0);
    if (block.latent.has_value()) return bytes + latent(block, *block.latent);
    const int64_t ranks = run_.settings.tensor;
    // Where there are fewer heads of keys and values than ranks, each rank has one.
    // Both matrices are made where layers share keys, or keys are values (gemma4.py), too.
    const double keys = 2 * std::max(1.0, share(block.key_value_heads, ranks));
    const double projected = static_cast<double>(block.head_dim) * (share(query_heads(block), ranks) + keys);
    bytes += matrix(static_cast<double>(input) * projected);
    if (block.query_key_value_bias) bytes += projected * run_.settings.element_bytes;
    return bytes + matrix(share(block.heads * block.head_dim * hidden_, ranks));
  }

  double operator()(const Mlp& block) const {
    const int64_t widths = block.gated ? 3 : 2;
    const double adapters = block.shared ? beside(hidden_, block.shared->rank, (widths - 1) * block.ffn) : 0;
    if (has_earlier_weights(block)) return adapters;
    return adapters + whole(block.norm_parameters) +
           matrix(share(widths * hidden_ * block.ffn, run_.settings.tensor)) +
           (block.bias ? whole(hidden_) + share(block.ffn * (widths - 1), run_.settings.tensor) *
                                              run_.settings.element_bytes
                       : 0);
  }

  double operator()(const Experts& block) const {
    const int64_t widths = block.gated ? 3 : 2;
    const ServingSettings& settings = run_.settings;
    // Tensor-parallel ranks share each expert; expert-parallel ones, with all data-parallel ranks, share them
    // out.
    const int64_t ranks = settings.tensor * (settings.expert_parallel ? settings.data : 1);
    const int64_t ffn = run_.padded_experts ? rounded_up(block.ffn, kExpertMultiple) : block.ffn;
    double expert = static_cast<double>(widths * hidden_ * ffn) * expert_bytes();
    if (block.bias) expert += static_cast<double>((widths - 1) * ffn + hidden_) * settings.element_bytes;
    return whole(block.norm_parameters + hidden_ * block.count + (block.router_bias ? block.count : 0) +
                 (block.shared_gate ? hidden_ : 0)) +
           expert * share(block.count, ranks) +
           matrix(share(widths * hidden_ * block.shared_ffn, settings.tensor));
  }

  double operator()(const Mamba& block) const {
    const int64_t inner = block.heads * block.head_dim;
    const int64_t states = 2 * block.groups * block.state;
    return whole(block.norm_parameters) +
           matrix(share(hidden_ * (3 * inner + states + block.heads), run_.settings.tensor)) +
           share((inner + states) * (block.convolution + 1) + 3 * block.heads + inner, run_.settings.tensor) *
               run_.settings.element_bytes;
  }

  double operator()(const Mixer& block) const {
    return whole(block.norm_parameters) + matrix(share(block.matrix_parameters, run_.settings.tensor)) +
           share(block.other_parameters, run_.settings.tensor) * run_.settings.element_bytes;
  }

  double operator()(const PredictionInput&) const { return 0; }

 private:
  // Beside the projections vLLM keeps what it multiplies queries and results with, in 16 bits
  // (attention/mla: W_UK, W_UV).
  double latent(const Attention& block, const LatentAttention& latent) const {
    const int64_t ranks = run_.settings.tensor;
    const int64_t query_width = block.heads * (latent.head_dim + latent.rotary_dim);
    double bytes = 0;
    if (latent.query_rank > 0) {
      bytes += matrix(static_cast<double>(latent.query_rank * hidden_)) +
               matrix(share(latent.query_rank * query_width, ranks));
    } else {
      bytes += matrix(share(hidden_ * query_width, ranks));
    }
    const double up =
        share(latent.key_value_rank * block.heads * (latent.head_dim + latent.value_dim), ranks);
    return bytes + matrix(static_cast<double>(hidden_ * (latent.key_value_rank + latent.rotary_dim))) +
           matrix(up) + up * run_.settings.element_bytes +
           matrix(share(block.heads * latent.value_dim * hidden_, ranks));
  }

  // Two narrow matrices beside a product.
  double beside(int64_t in, int64_t rank, int64_t out) const {
    return matrix(static_cast<double>(rank * (in + out)));
  }

  double whole(int64_t elements) const { return static_cast<double>(elements) * run_.settings.element_bytes; }
  double matrix(double elements) const {
    const bool quantised = run_.frozen.on() && !run_.frozen.only_experts;
    return elements * (quantised ? run_.frozen.bytes : run_.settings.element_bytes);
  }
  double expert_bytes() const { return run_.frozen.on() ? run_.frozen.bytes : run_.settings.element_bytes; }

  const ServingRun& run_;
  int64_t hidden_;
};

// A tower of images, in 16 bits whatever the language part has.
double vision_bytes(const ServingRun& run, const Tower& tower) {
  std::vector<WeightTensors> weights;
  for (const Layer& layer : tower.layers) {
    for (const Block& block : layer) append_weights(block, tower_width(run.model, tower), weights);
  }
  double elements = static_cast<double>(tower.input_parameters + tower.final_norm_parameters +
                                        connector_parameters(*tower.connector));
  for (const WeightTensors& tensors : weights)
    elements += share(tensors.elements * tensors.count,
                      tensors.placement == Placement::kTensorSharded ? run.settings.tensor : 1);
  return elements * run.settings.element_bytes;
}

}  // namespace

StageSpan serving_stage(const ServingRun& run, int64_t stage) {
  const size_t layers = run.caches.size();
  const auto stages = static_cast<size_t>(run.settings.pipeline);
  const auto index = static_cast<size_t>(stage);
  const size_t each = layers / stages;
  const size_t more = layers % stages;
  // What is left over goes to the stages before the last one (vLLM, distributed/utils.py, get_pp_indices).
  std::vector<size_t> counts(stages, each);
  for (size_t i = 0; i < more; ++i) ++counts[stages >= i + 2 ? stages - 2 - i : stages - 1];
  StageSpan out;
  for (size_t i = 0; i < index; ++i) out.first += counts[i];
  out.end = out.first + counts[index];
  return out;
}

double serving_weight_bytes(const ServingRun& run, int64_t stage) {
  const Model& model = run.model;
  const double element = run.settings.element_bytes;
  const Tower& tower = model.towers.back();
  const StageSpan span = serving_stage(run, stage);
  const BlockWeights weights(run);
  double bytes = run.rotary_bytes;
  for (size_t layer = span.first; layer < span.end; ++layer) {
    for (const Block& block : tower.layers[layer]) bytes += std::visit(weights, block);
  }
  const double table =
      share(rounded_up(model.vocabulary, kVocabularyMultiple) * table_width(model), run.settings.tensor) *
      element;
  const bool first = stage == 0;
  if (first && model.towers.front().connector) bytes += vision_bytes(run, model.towers.front());
  const bool last = stage + 1 == run.settings.pipeline;
  if (first)
    bytes += table +
             static_cast<double>((model.positions + model.token_types) * table_width(model) +
                                 tower.input_parameters) *
                 element +
             share(tower.sharded_input_parameters, run.settings.tensor) * element;
  if (last && !(model.tied && first)) bytes += table;
  if (last) bytes += static_cast<double>(tower.final_norm_parameters + model.head_parameters) * element;
  return bytes;
}

}  // namespace spillway::estimator
