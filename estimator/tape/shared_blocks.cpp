// Layers with attention and a feed-forward block whose weights they share, before a state space of their own
// (modeling_zamba2.py of 4.57, 5.17 and 5.24: Zamba2HybridLayer, Zamba2AttentionDecoderLayer,
// Zamba2HybridDynamicCache).
#include "estimator/tape/layers.h"

namespace spillway::estimator {

// Two narrow matrices of the layer's own beside a product with shared weights.
Tensor Layers::beside_shared(const std::optional<SharedWeights>& shared, const Tensor& x, Tensor made,
                             double in, double out) {
  if (!shared || shared->rank == 0) return made;
  const Tape::OwnWeights own(tape_);
  const auto rank = static_cast<double>(shared->rank);
  const Tensor narrow = projected(x, "0", in, rank, false);
  return op_.add(made, projected(narrow, "1", rank, out, false));
}

Tensor Layers::hybrid_layer(const Layer& layer, const Tensor& x) {
  const auto& attention = std::get<Attention>(layer[0]);
  tape_.share_weights(&shared_sets_[attention.shared->set]);
  tape_.set_purpose(Purpose::kNorms);
  Tensor out = norm(op_.concatenate(x, embedded_), static_cast<double>(attention.input));
  out = block(attention, out);
  tape_.set_purpose(Purpose::kNorms);
  out = block(layer[1], norm(out, hidden_));
  tape_.share_weights(nullptr);
  out = projected(out, "linear", hidden_, hidden_, false);
  tape_.set_purpose(Purpose::kNorms);
  // Where the state space is a layer that is recomputed by itself, what it is given is kept.
  if (code_.nests_checkpoints && run_.training.recompute == Recompute::kFull && !tape_.is_recomputing()) {
    const Tape::OutsideRegion outside(tape_);
    out = op_.beside(out, out);
  }
  out = block(layer[3], norm(op_.add(x, out), hidden_));
  tape_.set_purpose(Purpose::kNorms);
  return op_.add(x, out);
}

void Layers::make_states() {
  if (!caches()) return;
  const Purpose before = tape_.set_purpose(Purpose::kCache);
  for (const Layer& layer : tower_.layers) {
    const auto& space = std::get<StateSpace>(std::get<Mixer>(layer.back()).kind);
    const int64_t inner = space.heads * space.head_dim;
    const int64_t channels = inner + 2 * space.groups * space.state;
    const auto elements = static_cast<double>(channels * space.convolution + inner * space.state);
    cache_.push_back(tape_.make(batch_ * elements, weight_element_).data);
  }
  tape_.set_purpose(before);
}

}  // namespace spillway::estimator
