// Gemma 3n's layers: several versions of the hidden state, of which one passes through a layer's blocks and
// the others are predicted and corrected (modeling_gemma3n.py, Gemma3nTextDecoderLayer, Gemma3nTextAltUp and
// the ends of Gemma3nTextModel.forward, 4.57 and 5.17). They stand one after the other in a tensor.
#include "estimator/tape/layers.h"
#include "estimator/tape/mixer_operators.h"

namespace spillway::estimator {

const AltUp* altup_of(const Layer& layer) {
  for (const Block& block : layer) {
    const auto* mixer = std::get_if<Mixer>(&block);
    if (mixer == nullptr) continue;
    if (const auto* altup = std::get_if<AltUp>(&mixer->kind)) return altup;
  }
  return nullptr;
}

// Gives x the magnitude of the first version.
Tensor Layers::with_magnitude(const Tensor& x, const Tensor& magnitude) const {
  const Tensor own = op_.activation_of_result(op_.activation(op_.mean(op_.power(op_.for_power(x)), tokens_)));
  return op_.divide(op_.multiply(x, magnitude), own);
}

Tensor Layers::altup_inputs(const AltUp& altup, const Tensor& embedded) {
  const Tensor magnitude = op_.power(op_.mean(op_.power(op_.for_power(embedded)), tokens_));
  std::vector<Tensor> all = {embedded};
  while (static_cast<int64_t>(all.size()) < altup.versions) {
    const Tensor made =
        op_.cast(projected(embedded, "altup_projections", hidden_, hidden_, false), embedded.element);
    all.push_back(with_magnitude(made, magnitude));
  }
  return op_.concatenate(all);
}

Tensor Layers::altup_output(const AltUp& altup, const Tensor& all) {
  const auto one = [&] { return op_.slice(all, tokens_ * hidden_); };
  const Tensor magnitude = op_.power(op_.mean(op_.power(op_.for_power(one())), tokens_));
  std::vector<Tensor> out = {one()};
  while (static_cast<int64_t>(out.size()) < altup.versions) {
    const Tensor made =
        op_.cast(projected(one(), "altup_unembed_projections", hidden_, hidden_, false), all.element);
    out.push_back(with_magnitude(made, magnitude));
  }
  return op_.mean(op_.concatenate(out), tokens_ * hidden_);
}

// Gemma3nTextAltUp.compute_router_modalities.
Tensor Layers::altup_routing(const AltUp& altup, const Tensor& x) {
  const auto count = static_cast<double>(altup.versions);
  const Tensor routed = projected(op_.scale(norm(x, hidden_)), "modality_router", hidden_, count, false);
  return op_.cast(op_.activation_of_result(op_.cast(routed, 4)), x.element);
}

Tensor Layers::altup_prediction(const AltUp& altup, const Tensor& all) {
  const auto count = static_cast<double>(altup.versions);
  const Tensor routing = altup_routing(altup, op_.slice(all, tokens_ * hidden_));
  const Tensor factors = projected(routing, "prediction_coefs", count, count * count, false);
  Tensor out = op_.product(op_.for_product(all), factors, all.elements);
  out = op_.add_in_place(std::move(out), all);
  return op_.cast(op_.copy(out), all.element);
}

Tensor Layers::altup_correction(const AltUp& altup, const Tensor& predictions, const Tensor& activated) {
  const auto count = static_cast<double>(altup.versions);
  const Tensor routing = altup_routing(altup, activated);
  const Tensor innovation =
      repeated_heads(op_, op_.add(activated, op_.slice(predictions, tokens_ * hidden_)), count);
  const Tensor factors = op_.scale(projected(routing, "correction_coefs", count, count, false));
  Tensor out = op_.multiply(innovation, factors);
  return op_.add_in_place(std::move(out), predictions);
}

Tensor Layers::altup_layer(const AltUp& altup, const Layer& layer, const Tensor& all) {
  const auto count = static_cast<double>(altup.versions), one = tokens_ * hidden_;
  const auto rank = static_cast<double>(altup.rank);
  tape_.set_purpose(Purpose::kNorms);
  const Tensor predictions = altup_prediction(altup, all);
  const Tensor active = op_.slice(predictions, one);
  const Tensor normed = norm(active, hidden_);
  Tensor beside =
      projected(projected(normed, "linear_left", hidden_, rank, false), "linear_right", rank, hidden_, false);
  beside = op_.add(normed, norm(beside, hidden_));
  Tensor out = block(layer[0], normed);
  tape_.set_purpose(Purpose::kNorms);
  out = op_.add(active, norm(out, hidden_));
  const Tensor residual = op_.scale(op_.add(out, beside));
  out = block(layer[1], norm(residual, hidden_));
  tape_.set_purpose(Purpose::kNorms);
  out = op_.add(residual, norm(out, hidden_));
  Tensor corrected = altup_correction(altup, predictions, out);

  const auto width = static_cast<double>(layer_input_width(tower_));
  Tensor first = op_.copy(op_.slice(corrected, one));
  first =
      op_.cast(op_.multiply_by_weight(first, tape_.weight(hidden_, weight_element_, trained_)), all.element);
  tape_.set_purpose(Purpose::kMlp);
  first = activated(projected(first, "per_layer_input_gate", hidden_, width, false));
  first = op_.multiply(first, op_.slice(layer_inputs_, tokens_ * width));
  first = norm(projected(first, "per_layer_projection", width, hidden_, false), hidden_);
  tape_.set_purpose(Purpose::kNorms);
  // corrected[1:] += first: in place, and written once more.
  const double others = (count - 1) * one;
  corrected = with_part(op_, corrected, op_.add(op_.slice(corrected, others), first).view(others));
  return with_part(op_, corrected, op_.slice(corrected, others));
}

// _gaussian_topk: what is less than so many deviations above the mean is nothing.
Tensor Layers::largest(const Tensor& x) const {
  Tape::Recorder recorder(tape_, {x.edge});
  recorder.save(x.data);
  Tensor deviation = tape_.make(tokens_, x.element);
  deviation.edge = recorder.finish([bytes = x.bytes()](Backward& run) {
    const Share centred = run.make(bytes);
    run.give(0, run.make(bytes));
  });
  const Tensor cut = op_.add(op_.mean(x, tokens_), op_.scale(deviation));
  return op_.activation_of_result(op_.add(x, cut));
}

}  // namespace spillway::estimator
