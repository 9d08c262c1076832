#include "estimator/model.h"

namespace spillway::estimator {
namespace {

class Lister {
 public:
  Lister(int64_t hidden, std::vector<WeightTensors>& out) : hidden_(hidden), out_(out) {}

  void operator()(const Attention& block) const {
    replicated(block.norm_parameters);
    if (block.latent.has_value()) {
      latent_projections(block, *block.latent);
    } else {
      const int64_t projected = block.head_dim * (block.heads + 2 * block.key_value_heads);
      sharded(hidden_ * projected);
      if (block.query_key_value_bias) sharded(projected);
      sharded(block.heads * block.head_dim * hidden_);
    }
    replicated(block.head_norm_parameters);
    replicated(block.extra_parameters);
    if (block.output_bias) replicated(hidden_);
  }

  void operator()(const Mlp& block) const {
    const int64_t widths = block.gated ? 2 : 1;
    replicated(block.norm_parameters);
    sharded(hidden_ * block.ffn * widths);
    if (block.bias) sharded(widths * block.ffn);
    sharded(hidden_ * block.ffn);
    if (block.bias) replicated(hidden_);
  }

  void operator()(const Experts& block) const {
    const int64_t widths = block.gated ? 2 : 1;
    replicated(block.norm_parameters);
    replicated(hidden_ * block.count);
    if (block.router_bias) replicated(block.count);
    const auto expert = [&](int64_t elements) {
      out_.push_back({Placement::kExpert, elements, block.count});
    };
    expert(hidden_ * block.ffn * widths);
    if (block.bias) expert(widths * block.ffn);
    expert(hidden_ * block.ffn);
    if (block.bias) expert(hidden_);
    sharded(hidden_ * block.shared_ffn * widths);
    sharded(hidden_ * block.shared_ffn);
    if (block.shared_gate) replicated(hidden_);
  }

  void operator()(const PredictionInput& block) const {
    replicated(block.norm_parameters);
    sharded(2 * hidden_ * hidden_);
  }

  void operator()(const Mamba& block) const {
    const int64_t inner = block.heads * block.head_dim;
    const int64_t states = 2 * block.groups * block.state;
    replicated(block.norm_parameters);
    sharded(hidden_ * (2 * inner + states + block.heads));
    sharded((inner + states) * (block.convolution + 1));
    sharded(3 * block.heads);
    sharded(inner);
    sharded(inner * hidden_);
  }

 private:
  void latent_projections(const Attention& block, const LatentAttention& latent) const {
    const int64_t query_width = block.heads * (latent.head_dim + latent.rotary_dim);
    if (latent.query_rank > 0) {
      replicated(latent.query_rank * hidden_);
      sharded(latent.query_rank * query_width);
    } else {
      sharded(hidden_ * query_width);
    }
    replicated(hidden_ * (latent.key_value_rank + latent.rotary_dim));
    sharded(latent.key_value_rank * block.heads * (latent.head_dim + latent.value_dim));
    sharded(block.heads * latent.value_dim * hidden_);
  }

  void sharded(int64_t elements) const { add(Placement::kTensorSharded, elements); }
  void replicated(int64_t elements) const { add(Placement::kReplicated, elements); }
  void add(Placement placement, int64_t elements) const {
    if (elements > 0) out_.push_back({placement, elements});
  }

  int64_t hidden_;
  std::vector<WeightTensors>& out_;
};

}  // namespace

void append_weights(const Block& block, int64_t hidden, std::vector<WeightTensors>& out) {
  std::visit(Lister(hidden, out), block);
}

int64_t total_parameters(const Model& model) {
  int64_t total = model.vocabulary * model.hidden * (model.tied ? 1 : 2) +
                  (model.positions + model.token_types) * model.hidden + model.head_parameters +
                  (model.output_bias ? model.vocabulary : 0);
  std::vector<WeightTensors> weights;
  for (const Tower& tower : model.towers) {
    total += tower.final_norm_parameters + tower.input_parameters;
    for (const Layer& layer : tower.layers) {
      weights.clear();
      for (const Block& block : layer) append_weights(block, model.hidden, weights);
      for (const WeightTensors& tensors : weights) total += tensors.elements * tensors.count;
    }
  }
  return total;
}

}  // namespace spillway::estimator
