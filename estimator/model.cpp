#include "estimator/model.h"

#include <algorithm>

#include "estimator/diffusion/pipeline.h"

namespace spillway::estimator {
namespace {

class Lister {
 public:
  Lister(int64_t hidden, std::vector<WeightTensors>& out) : hidden_(hidden), out_(out) {}

  void operator()(const Attention& block) const {
    if (block.shared)
      adapters(3, input_width(block, hidden_), block.shared->rank, input_width(block, hidden_));
    if (has_earlier_weights(block)) return;
    replicated(block.norm_parameters);
    if (block.latent.has_value()) {
      latent_projections(block, *block.latent);
    } else {
      const int64_t projected =
          block.head_dim * (query_heads(block) + key_value_matrices(block) * block.key_value_heads);
      matrix(input_width(block, hidden_) * projected);
      if (block.query_key_value_bias) sharded(projected);
      matrix(block.heads * block.head_dim * hidden_);
    }
    replicated(block.head_norm_parameters);
    replicated(block.extra_parameters);
    if (block.output_bias) replicated(hidden_);
  }

  void operator()(const Mlp& block) const {
    const int64_t widths = block.gated ? 2 : 1;
    if (block.shared) adapters(1, hidden_, block.shared->rank, widths * block.ffn);
    if (has_earlier_weights(block)) return;
    replicated(block.norm_parameters);
    matrix(hidden_ * block.ffn * widths);
    if (block.bias) sharded(widths * block.ffn);
    matrix(hidden_ * block.ffn);
    if (block.bias) replicated(hidden_);
  }

  void operator()(const Experts& block) const {
    const int64_t widths = block.gated ? 2 : 1;
    replicated(block.norm_parameters);
    replicated(hidden_ * block.count);
    if (block.router_bias) replicated(block.count);
    const auto expert = [&](int64_t elements, bool product) {
      out_.push_back({Placement::kExpert, elements, block.count, product});
    };
    expert(hidden_ * block.ffn * widths, true);
    if (block.bias) expert(widths * block.ffn, false);
    expert(hidden_ * block.ffn, true);
    if (block.bias) expert(hidden_, false);
    matrix(hidden_ * block.shared_ffn * widths);
    matrix(hidden_ * block.shared_ffn);
    if (block.shared_gate) replicated(hidden_);
  }

  void operator()(const PredictionInput& block) const {
    replicated(block.norm_parameters);
    matrix(2 * hidden_ * hidden_);
  }

  void operator()(const Mixer& block) const {
    replicated(block.norm_parameters);
    matrix(block.matrix_parameters);
    sharded(block.other_parameters);
  }

  void operator()(const Mamba& block) const {
    const int64_t inner = block.heads * block.head_dim;
    const int64_t states = 2 * block.groups * block.state;
    replicated(block.norm_parameters);
    matrix(hidden_ * (2 * inner + states + block.heads));
    sharded((inner + states) * (block.convolution + 1));
    sharded(3 * block.heads);
    sharded(inner);
    matrix(inner * hidden_);
  }

 private:
  void latent_projections(const Attention& block, const LatentAttention& latent) const {
    const int64_t query_width = block.heads * (latent.head_dim + latent.rotary_dim);
    if (latent.query_rank > 0) {
      add(Placement::kReplicated, latent.query_rank * hidden_, true);
      matrix(latent.query_rank * query_width);
    } else {
      matrix(hidden_ * query_width);
    }
    add(Placement::kReplicated, hidden_ * (latent.key_value_rank + latent.rotary_dim), true);
    matrix(latent.key_value_rank * block.heads * (latent.head_dim + latent.value_dim));
    matrix(block.heads * latent.value_dim * hidden_);
  }

  void adapters(int64_t count, int64_t in, int64_t rank, int64_t out) const {
    for (int64_t i = 0; i < count; ++i) {
      add(Placement::kReplicated, in * rank, true);
      add(Placement::kReplicated, rank * out, true);
    }
  }

  void matrix(int64_t elements) const { add(Placement::kTensorSharded, elements, true); }
  void sharded(int64_t elements) const { add(Placement::kTensorSharded, elements, false); }
  void replicated(int64_t elements) const { add(Placement::kReplicated, elements, false); }
  void add(Placement placement, int64_t elements, bool product) const {
    if (elements > 0) out_.push_back({placement, elements, 1, product});
  }

  int64_t hidden_;
  std::vector<WeightTensors>& out_;
};

class MatrixLister {
 public:
  MatrixLister(int64_t hidden, const JoinedMatrices& joined, std::vector<MatrixShape>& out)
      : hidden_(hidden), joined_(joined), out_(out) {}

  void operator()(const Attention& block) const {
    const int64_t input = input_width(block, hidden_);
    if (block.shared) adapters(3, input, block.shared->rank, input);
    if (has_earlier_weights(block)) return;
    if (block.latent.has_value()) {
      const LatentAttention& latent = *block.latent;
      const int64_t query_width = block.heads * (latent.head_dim + latent.rotary_dim);
      if (latent.query_rank > 0) add(latent.query_rank, hidden_);
      add(query_width, latent.query_rank > 0 ? latent.query_rank : hidden_);
      add(latent.key_value_rank + latent.rotary_dim, hidden_);
      add(block.heads * (latent.head_dim + latent.value_dim), latent.key_value_rank);
      add(hidden_, block.heads * latent.value_dim);
      return;
    }
    if (joined_.query_key_value) {
      add((query_heads(block) + 2 * block.key_value_heads) * block.head_dim, input);
    } else {
      add(query_heads(block) * block.head_dim, input);
      add(block.key_value_heads * block.head_dim, input, key_value_matrices(block));
    }
    add(hidden_, block.heads * block.head_dim);
  }
  void operator()(const Mlp& block) const {
    if (block.shared) adapters(1, hidden_, block.shared->rank, (block.gated ? 2 : 1) * block.ffn);
    if (!has_earlier_weights(block)) feed_forward(block.ffn, block.gated, 1);
  }
  void operator()(const Experts& block) const {
    if (!joined_.experts) feed_forward(block.ffn, block.gated, block.count);
    if (block.shared_ffn > 0) feed_forward(block.shared_ffn, block.gated, 1);
  }
  void operator()(const PredictionInput&) const { add(hidden_, 2 * hidden_); }
  void operator()(const Mixer& block) const {
    if (const auto* net = std::get_if<DeltaNet>(&block.kind)) {
      const int64_t keys = 2 * net->key_heads * net->key_dim, values = net->value_heads * net->value_dim;
      if (net->joined) {
        add(keys + 2 * values, hidden_);
        add(2 * net->value_heads, hidden_);
      } else {
        add(keys + values, hidden_);
        add(values, hidden_);
        add(net->value_heads, hidden_, 2);
      }
      add(hidden_, values);
    } else if (const auto* input = std::get_if<LayerInput>(&block.kind)) {
      add(input->width, hidden_);
      add(hidden_, input->width);
    } else if (const auto* space = std::get_if<StateSpace>(&block.kind)) {
      const int64_t inner = space->heads * space->head_dim;
      add(2 * inner + 2 * space->groups * space->state + space->heads, hidden_);
      add(hidden_, inner);
    } else if (const auto* scan = std::get_if<SelectiveScan>(&block.kind)) {
      add(2 * scan->inner, hidden_);
      add(scan->rank + 2 * scan->state, scan->inner);
      add(scan->inner, scan->rank);
      add(hidden_, scan->inner);
    } else if (const auto* lightning = std::get_if<LightningAttention>(&block.kind)) {
      const int64_t width = lightning->heads * lightning->head_dim;
      add(3 * width, hidden_);
      add(width, hidden_);
      add(hidden_, width);
    } else if (std::holds_alternative<ShortConvolution>(block.kind)) {
      add(3 * hidden_, hidden_);
      add(hidden_, hidden_);
    } else {
      add(block.matrix_parameters / hidden_, hidden_);
    }
  }
  void operator()(const Mamba& block) const {
    const int64_t inner = block.heads * block.head_dim;
    add(2 * inner + 2 * block.groups * block.state + block.heads, hidden_);
    add(hidden_, inner);
  }

 private:
  void feed_forward(int64_t ffn, bool gated, int64_t count) const {
    const bool joined = gated && joined_.gate_up;
    add(joined ? 2 * ffn : ffn, hidden_, (gated && !joined ? 2 : 1) * count);
    add(hidden_, ffn, count);
  }
  void adapters(int64_t count, int64_t in, int64_t rank, int64_t out) const {
    add(rank, in, count);
    add(out, rank, count);
  }
  void add(int64_t rows, int64_t columns, int64_t count = 1) const {
    if (rows > 0 && columns > 0 && count > 0) out_.push_back({rows, columns, count});
  }

  int64_t hidden_;
  JoinedMatrices joined_;
  std::vector<MatrixShape>& out_;
};

}  // namespace

void append_matrices(const Block& block, int64_t hidden, const JoinedMatrices& joined,
                     std::vector<MatrixShape>& out) {
  std::visit(MatrixLister(hidden, joined, out), block);
}

void append_weights(const Block& block, int64_t hidden, std::vector<WeightTensors>& out) {
  std::visit(Lister(hidden, out), block);
}

bool has_mixer(const Model& model) {
  return any_block(model, [](const Block& block) {
    const auto* mixer = std::get_if<Mixer>(&block);
    return mixer != nullptr && !std::holds_alternative<std::monostate>(mixer->kind) &&
           !std::holds_alternative<LayerInput>(mixer->kind) && !std::holds_alternative<AltUp>(mixer->kind) &&
           !std::holds_alternative<OwnProjection>(mixer->kind);
  });
}

bool shares_weights(const Model& model) {
  return any_block(model, [](const Block& block) {
    const auto* attention = std::get_if<Attention>(&block);
    return attention != nullptr && attention->shared.has_value();
  });
}

int64_t layer_input_width(const Tower& tower) {
  for (const Layer& layer : tower.layers) {
    for (const Block& block : layer) {
      const auto* mixer = std::get_if<Mixer>(&block);
      const auto* input = mixer == nullptr ? nullptr : std::get_if<LayerInput>(&mixer->kind);
      if (input != nullptr) return input->width;
    }
  }
  return 0;
}

bool has_own_weights(const Model& model, size_t layer) {
  const size_t repeats =
      model.shares_predictions ? static_cast<size_t>(std::max<int64_t>(1, model.prediction_layers)) - 1 : 0;
  return layer + repeats < model.towers.back().layers.size();
}

int64_t connector_parameters(const Connector& connector) {
  const auto product = [&](int64_t in, int64_t out) { return in * out + (connector.bias ? out : 0); };
  const int64_t activated = connector.halves ? connector.inner / 2 : connector.inner;
  const int64_t one = connector.inner == 0
                          ? product(connector.in, connector.out)
                          : product(connector.in, connector.inner) + product(activated, connector.out);
  return connector.count * one + connector.other_parameters;
}

int64_t scorer_parameters(const Model& model) {
  const int64_t table = model.tied ? 0 : model.vocabulary * table_width(model);
  const int64_t bias = model.output_bias ? model.vocabulary : 0;
  return total_parameters(model) - table - bias + model.hidden;
}

int64_t total_parameters(const Model& model) {
  if (model.pipeline) return pipeline_parameters(*model.pipeline);
  int64_t total = model.vocabulary * table_width(model) * (model.tied ? 1 : 2) +
                  (model.positions + model.token_types) * table_width(model) + model.head_parameters +
                  (model.output_bias ? model.vocabulary : 0);
  std::vector<WeightTensors> weights;
  for (const Tower& tower : model.towers) {
    total += tower.final_norm_parameters + tower.input_parameters + tower.sharded_input_parameters;
    if (tower.connector) total += connector_parameters(*tower.connector);
    const bool last = &tower == &model.towers.back();
    for (size_t i = 0; i < tower.layers.size() && (!last || has_own_weights(model, i)); ++i) {
      weights.clear();
      for (const Block& block : tower.layers[i]) append_weights(block, tower_width(model, tower), weights);
      for (const WeightTensors& tensors : weights) total += tensors.elements * tensors.count;
    }
  }
  return total;
}

}  // namespace spillway::estimator
