// MiniMax's linear attention, block by block of tokens (modeling_minimax.py, MiniMaxLightningAttention, 4.57
// and 5.17).
#include <algorithm>
#include <cmath>

#include "estimator/tape/layers.h"

namespace spillway::estimator {
namespace {

// Of longer sequences several blocks are played as one, whose tensors are as many times as large.
constexpr double kMostPlayedBlocks = 32;

}  // namespace

Tensor Layers::lightning_attention(const LightningAttention& lightning, const Tensor& x) {
  const auto heads = static_cast<double>(lightning.heads), head_dim = static_cast<double>(lightning.head_dim);
  const double width = heads * head_dim, one = tokens_ * width;
  const auto block = std::min(sequence_, static_cast<double>(lightning.block));
  const double blocks = std::ceil(sequence_ / block), played = std::min(blocks, kMostPlayedBlocks);
  const Tensor all = activated(projected(x, "qkv_proj", hidden_, 3 * width, false));
  const std::vector<Tensor> made = op_.split(all, {one, one, one});
  const auto part = [&](const Tensor& of) { return op_.slice(of, of.elements / played); };
  // Decays are as wide as weights are. Heads of several samples are not next to each other: products copy
  // them.
  const auto decayed = [&](const Tensor& of) { return op_.scale(of, std::max(of.element, weight_element_)); };
  const auto product = [&](const Tensor& a, const Tensor& b, double elements) {
    return op_.product(op_.for_product(a), op_.for_product(b), elements);
  };
  const auto factor = [&](const Tensor& of) { return batch_ > 1 ? op_.copy(of) : of; };

  Tensor state = tape_.make(batch_ * heads * head_dim * head_dim * blocks / played, all.element);
  std::vector<Tensor> out;
  for (int i = 0; i < static_cast<int>(played); ++i) {
    const Tensor query = part(made[0]), key = part(made[1]), value = part(made[2]);
    const Tensor pairs = product(factor(query), factor(key), tokens_ * heads * block / played);
    const Tensor within = product(decayed(pairs), factor(value), one / played);
    const Tensor before = product(factor(decayed(query)), state, one / played);
    out.push_back(op_.add(before, within));
    // Nothing is asked of the last one's state.
    if (i + 1 >= played) break;
    const Tensor next = product(factor(decayed(key)), factor(value), state.elements);
    state = op_.add(decayed(state), next);
  }
  if (caches()) cache_.push_back(state.data);
  Tensor mixed = norm(op_.copy(op_.concatenate(out)), width);
  out.clear();
  mixed = op_.multiply(op_.activation_of_result(projected(x, "output_gate", hidden_, width, false)), mixed);
  return projected(mixed, "out_proj", width, hidden_, false);
}

}  // namespace spillway::estimator
