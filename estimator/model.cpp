#include "estimator/model.h"

namespace spillway::estimator {
namespace {

BlockParameters latent_parameters(const Attention& block, int64_t hidden) {
  const LatentAttention& latent = *block.latent;
  const int64_t query_width = block.heads * (latent.head_dim + latent.rotary_dim);
  BlockParameters out;
  if (latent.query_rank > 0) {
    out.replicated += latent.query_rank * hidden;
    out.tensor_sharded += latent.query_rank * query_width;
  } else {
    out.tensor_sharded += hidden * query_width;
  }
  out.replicated += hidden * (latent.key_value_rank + latent.rotary_dim);
  out.tensor_sharded += latent.key_value_rank * block.heads * (latent.head_dim + latent.value_dim) +
                        block.heads * latent.value_dim * hidden;
  out.replicated += block.norm_parameters + block.head_norm_parameters + (block.output_bias ? hidden : 0);
  return out;
}

struct Count {
  int64_t hidden;

  BlockParameters operator()(const Attention& block) const {
    if (block.latent.has_value()) return latent_parameters(block, hidden);
    const int64_t projected = block.head_dim * (block.heads + 2 * block.key_value_heads);
    return {hidden * projected + block.heads * block.head_dim * hidden +
                (block.query_key_value_bias ? projected : 0),
            block.norm_parameters + block.head_norm_parameters + block.extra_parameters +
                (block.output_bias ? hidden : 0),
            0};
  }

  BlockParameters operator()(const Mlp& block) const {
    const int64_t widths = block.gated ? 2 : 1;
    return {hidden * block.ffn * (widths + 1) + (block.bias ? widths * block.ffn : 0),
            block.norm_parameters + (block.bias ? hidden : 0), 0};
  }

  BlockParameters operator()(const Experts& block) const {
    const int64_t widths = block.gated ? 2 : 1;
    const int64_t one = hidden * block.ffn * (widths + 1) + (block.bias ? widths * block.ffn + hidden : 0);
    return {hidden * block.shared_ffn * (widths + 1),
            block.norm_parameters + hidden * block.count + (block.router_bias ? block.count : 0) +
                (block.shared_gate ? hidden : 0),
            block.count * one};
  }

  BlockParameters operator()(const Mamba& block) const {
    const int64_t inner = block.heads * block.head_dim;
    const int64_t states = 2 * block.groups * block.state;
    return {hidden * (2 * inner + states + block.heads) + (inner + states) * (block.convolution + 1) +
                3 * block.heads + inner + inner * hidden,
            block.norm_parameters, 0};
  }
};

}  // namespace

BlockParameters block_parameters(const Block& block, int64_t hidden) {
  return std::visit(Count{hidden}, block);
}

int64_t total_parameters(const Model& model) {
  int64_t total = model.vocabulary * model.hidden * (model.tied ? 1 : 2) +
                  (model.positions + model.token_types) * model.hidden + model.head_parameters +
                  (model.output_bias ? model.vocabulary : 0);
  for (const Tower& tower : model.towers) {
    total += tower.final_norm_parameters + tower.input_parameters;
    for (const Layer& layer : tower.layers) {
      for (const Block& block : layer) {
        const BlockParameters count = block_parameters(block, model.hidden);
        total += count.tensor_sharded + count.replicated + count.expert;
      }
    }
  }
  return total;
}

}  // namespace spillway::estimator
