#include "estimator/tape/layers.h"

#include <algorithm>
#include <cmath>

#include "estimator/tape/adapters.h"

namespace spillway::estimator {

Layers::Layers(const TrainingRun& run, const Tower& tower, const ModelCode& code, const Operators& operators)
    : run_(run),
      tower_(tower),
      code_(code),
      op_(operators),
      tape_(operators.tape()),
      batch_(static_cast<double>(run.training.micro_batch * tower.sequences)),
      sequence_(static_cast<double>(tower.sequence)),
      tokens_(batch_ * sequence_),
      hidden_(static_cast<double>(tower_width(run.model, tower))),
      weight_element_(run.training.precision == Precision::kFp32 || run.training.autocast ? 4 : 2),
      trainable_(!run.training.adapter.on() && !run.training.frozen.on() && !tower.frozen) {}

Matrix Layers::matrix(double in, double out, bool bias) const {
  Matrix whole{tape_.weight(in * out, weight_element_, trained_),
               bias ? tape_.weight(out, weight_element_, trained_) : Tensor(), in, out};
  whole.transposed = !code_.transposed_matrices;
  whole.viewed = code_.views_matrices;
  return whole;
}

Tensor Layers::projected(const Tensor& x, const char* name, double in, double out, bool bias) const {
  const bool quantised = run_.training.frozen.on() && !run_.training.frozen.only_experts;
  Matrix base = matrix(in, out, bias);
  base.quantised = quantised;
  const Adapter& adapter = run_.training.adapter;
  if (!adapter.targets_module(name)) return op_.linear(x, base);
  const auto adapting = [&](auto&& make) {
    const Purpose before = tape_.set_purpose(Purpose::kAdapters);
    // PEFT adapts modules: where only their weights are shared each has an adapter of its own.
    std::optional<Tape::OwnWeights> own;
    if (code_.shares_tensors) own.emplace(tape_);
    Tensor made = make();
    tape_.set_purpose(before);
    return made;
  };
  if (adapter.scales_input(name))
    return op_.linear(
        adapting([&] { return scaled(op_, adapter, op_.cast(x, adapter.element), x.element, in); }), base);
  Tensor result = op_.linear(x, base);
  return adapting([&] {
    return adapter.kind == AdapterKind::kScaling ? scaled(op_, adapter, result, result.element, out)
                                                 : adapted(op_, adapter, x, std::move(result), in, out);
  });
}

Tensor Layers::dropped(const Tensor& x, double share) const {
  return share > 0 ? op_.dropout(x) : x;
}

Tensor Layers::activated(const Tensor& x) const {
  switch (code_.activation) {
    case ActivationCode::kOfInput:
      return op_.activation(x);
    case ActivationCode::kOfResult:
      return op_.activation_of_result(x);
    case ActivationCode::kSquaredRelu:
      return op_.power(op_.for_power(op_.activation_of_result(x)));
    case ActivationCode::kGeluQuick:
      return op_.multiply(x, op_.activation_of_result(op_.scale(x)));
    case ActivationCode::kXielu:
      return xielu(x);
    case ActivationCode::kGeluNew:
      break;
  }
  // activations.py, NewGELUActivation.
  const Tensor half = op_.scale(x);
  Tensor inner = op_.power(op_.for_power(x));
  inner = op_.scale(inner);
  inner = op_.add(x, inner);
  inner = op_.scale(inner);
  inner = op_.activation_of_result(inner);
  inner = op_.scale(inner);
  return op_.multiply(half, inner);
}

// activations.py, XIELUActivation._xielu_python.
Tensor Layers::xielu(const Tensor& x) const {
  const auto trained = [&] { return tape_.weight(1, weight_element_, trained_); };
  Tensor above = op_.multiply(op_.multiply(trained(), x), x);
  above = op_.add(above, op_.scale(x));
  // torch.min keeps what it compares.
  const Tensor least = op_.activation(x);
  Tensor below = op_.add(op_.activation_of_result(least), x);
  below = op_.add(op_.multiply(below, trained()), op_.scale(x));
  return op_.where(above, below);
}

Tensor Layers::norm(const Tensor& x, double width) {
  const double rows = x.elements / width;
  if (code_.norm == NormCode::kLayerNorm)
    return op_.layer_norm(x, tape_.weight(2 * width, weight_element_, trained_), rows);
  if (code_.norm == NormCode::kNemotron)
    return op_.layer_norm(op_.for_product(x), tape_.weight(2 * width, weight_element_, trained_), rows,
                          false);
  if (code_.norm == NormCode::kOlmo) return op_.cast(op_.layer_norm(op_.cast(x, 4), {}, rows), x.element);
  const Tensor weight = tape_.weight(width, weight_element_, trained_);
  if (code_.norm == NormCode::kCohere) return centred_norm(x, weight, rows);
  // T5 multiplies what came in.
  Tensor out = rms_normalised(x, rows, code_.norm == NormCode::kT5);
  if (code_.norm == NormCode::kGemma || code_.norm == NormCode::kGemma3n || code_.norm == NormCode::kGemma4)
    return op_.cast(op_.multiply_by_weight(out, op_.cast(weight, 4)), x.element);
  if (code_.norm == NormCode::kLlama || weight_element_ < 4) out = op_.cast(out, std::min(x.element, 4.0));
  return op_.multiply_by_weight(out, weight);
}

// Divided by the root mean square, in fp32.
Tensor Layers::rms_normalised(const Tensor& x, double rows, bool as_it_came) const {
  const Tensor whole = op_.cast(x, 4);
  const Tensor shifted = op_.scale(op_.mean(op_.power(whole), rows));
  if (code_.norm == NormCode::kGemma3n) return op_.divide(whole, op_.activation_of_result(shifted));
  const Tensor inverse =
      code_.norm == NormCode::kGemma4 ? op_.power(shifted) : op_.activation_of_result(shifted);
  return op_.multiply(as_it_came ? x : whole, inverse);
}

Tensor Layers::norm_without_weights(const Tensor& x, double width) const {
  Tensor out = rms_normalised(x, x.elements / width, false);
  if (code_.norm == NormCode::kGemma3n) out = op_.scale(out);  // by a weight that is one
  return op_.cast(out, x.element);
}

// CohereLayerNorm: the mean is taken off twice.
Tensor Layers::centred_norm(const Tensor& x, const Tensor& weight, double rows) {
  Tensor centred, inverse;
  {
    const Tensor whole = op_.cast(x, 4);
    const Tensor mean = op_.mean(whole, rows);
    const Tensor variance = op_.mean(op_.power(op_.add(whole, mean)), rows);
    centred = op_.add(whole, mean);
    inverse = op_.activation_of_result(op_.scale(variance));
  }
  return op_.cast(op_.multiply_by_weight(op_.multiply(centred, inverse), op_.cast(weight, 4)), x.element);
}

Tensor Layers::block(const Block& block, const Tensor& x) {
  if (const auto* attention_block = std::get_if<Attention>(&block)) {
    tape_.set_purpose(Purpose::kAttention);
    return attention(*attention_block, x);
  }
  if (const auto* mlp = std::get_if<Mlp>(&block)) {
    tape_.set_purpose(Purpose::kMlp);
    return feed_forward(*mlp, x);
  }
  if (const auto* mixer = std::get_if<Mixer>(&block)) {
    tape_.set_purpose(Purpose::kAttention);
    if (const auto* net = std::get_if<DeltaNet>(&mixer->kind)) return delta_net(*net, x);
    if (const auto* space = std::get_if<StateSpace>(&mixer->kind)) return state_space(*space, x);
    if (const auto* scan = std::get_if<SelectiveScan>(&mixer->kind)) return selective_scan(*scan, x);
    if (const auto* lightning = std::get_if<LightningAttention>(&mixer->kind))
      return lightning_attention(*lightning, x);
    return short_convolution(std::get<ShortConvolution>(mixer->kind), x);
  }
  tape_.set_purpose(Purpose::kExperts);
  return routed(std::get<Experts>(block), x);
}

const Experts* experts_of(const Layer& layer) {
  for (const Block& block : layer) {
    if (const auto* experts = std::get_if<Experts>(&block)) return experts;
  }
  return nullptr;
}

Tensor Layers::layer(const Layer& layer, size_t index, const Tensor& x) {
  index_ = index;
  if (const AltUp* altup = altup_of(layer)) return altup_layer(*altup, layer, x);
  const auto* attends = std::get_if<Attention>(&layer.front());
  if (attends != nullptr && attends->shared) return hybrid_layer(layer, x);
  Tensor out = x;
  if (code_.residual == ResidualCode::kParallel) {
    tape_.set_purpose(Purpose::kNorms);
    // Where only one norm is left both blocks read its output (GPT-J, Phi).
    const auto* mlp = std::get_if<Mlp>(&layer.back());
    const bool shared = mlp != nullptr && mlp->norm_parameters == 0;
    Tensor normed = norm(x, hidden_);
    const Tensor first = dropped(block(layer[0], normed), code_.hidden_dropout);
    if (!shared) normed.reset();
    tape_.set_purpose(Purpose::kNorms);
    const Tensor second = dropped(block(layer[1], shared ? normed : norm(x, hidden_)), code_.hidden_dropout);
    tape_.set_purpose(Purpose::kNorms);
    return op_.add(op_.add(second, first), x);
  }
  if (code_.mixes_beside) out = mixed_beside(layer, out);
  const Experts* beside = code_.experts_beside ? experts_of(layer) : nullptr;
  for (const Block& each : layer) {
    tape_.set_purpose(Purpose::kNorms);
    const auto* mixer = std::get_if<Mixer>(&each);
    if (code_.mixes_beside && !std::holds_alternative<Mlp>(each)) continue;
    if (const auto* input = mixer == nullptr ? nullptr : std::get_if<LayerInput>(&mixer->kind)) {
      out = with_layer_input(static_cast<double>(input->width), out);
      continue;
    }
    if (beside != nullptr && std::holds_alternative<Experts>(each)) continue;  // added to the dense block
    if (code_.residual == ResidualCode::kNormed) {
      const Tensor normed = norm(out, hidden_);
      out = block(each, normed);
      tape_.set_purpose(Purpose::kNorms);
      out = op_.add(op_.scale(normed), op_.scale(out));
      continue;
    }
    const Tensor residual = code_.wide_residual ? op_.cast(out, 4) : out;
    const bool normed_before =
        code_.residual == ResidualCode::kBefore || code_.residual == ResidualCode::kBoth;
    if (normed_before) {
      const Tape::AlsoHeld held(tape_, std::holds_alternative<Attention>(each) ? graph_holder() : nullptr);
      out = norm(code_.wide_residual ? op_.cast(out, weight_element_) : out, hidden_);
    }
    out = block(each, out);
    if (beside != nullptr && std::holds_alternative<Mlp>(each)) out = beside_dense(*beside, out, residual);
    tape_.set_purpose(Purpose::kNorms);
    if (code_.layer_scale)
      out = op_.multiply_by_weight(out, tape_.weight(hidden_, weight_element_, trained_));
    if (!code_.shares_layers || !std::holds_alternative<Mlp>(each)) out = dropped(out, code_.hidden_dropout);
    if (code_.scales_blocks) out = op_.scale(out);
    if (code_.residual == ResidualCode::kBoth || code_.residual == ResidualCode::kAfter)
      out = norm(out, hidden_);
    out = op_.add(residual, out);
    if (code_.residual == ResidualCode::kBehind) out = norm(out, hidden_);
  }
  return code_.layer_scalar ? op_.in_place(out) : out;
}

// FalconH1DecoderLayer: a state space and attention read one norm's output.
Tensor Layers::mixed_beside(const Layer& layer, const Tensor& x) {
  tape_.set_purpose(Purpose::kNorms);
  const Tensor normed = norm(x, hidden_);
  const Tensor mixed = op_.scale(block(layer[0], normed));
  const Tensor attended = op_.scale(block(layer[1], op_.scale(normed)));
  tape_.set_purpose(Purpose::kNorms);
  return op_.add(x, op_.add(mixed, attended));
}

// The tail of Gemma4TextDecoderLayer.
Tensor Layers::with_layer_input(double width, const Tensor& x) {
  tape_.set_purpose(Purpose::kMlp);
  Tensor out = activated(projected(x, "per_layer_input_gate", hidden_, width, false));
  out = op_.multiply(out, op_.slice(layer_inputs_, tokens_ * width));
  out = projected(out, "per_layer_projection", width, hidden_, false);
  tape_.set_purpose(Purpose::kNorms);
  out = norm(out, hidden_);
  return op_.add(x, out);
}

Tensor Layers::feed_forward(const Mlp& block, const Tensor& x) {
  const ModuleNames& names = code_.names;
  const auto ffn = static_cast<double>(block.ffn);

  const double wide = x.elements / hidden_ * ffn;
  Tensor out;
  if (block.gated && code_.joined_feed_forward) {
    const Tensor both = beside_shared(block.shared, x, projected(x, names.gate, hidden_, 2 * ffn, block.bias),
                                      hidden_, 2 * ffn);
    const std::vector<Tensor> parts = op_.split(both, {wide, wide});
    out = op_.multiply(parts[1], activated(parts[0]));
    return projected(out, names.down, ffn, hidden_, block.bias);
  }
  if (code_.multiplies) {  // FalconH1MLP
    const Tensor up = projected(x, names.up, hidden_, ffn, block.bias);
    out = op_.multiply(up, activated(op_.scale(projected(x, names.gate, hidden_, ffn, block.bias))));
    return op_.scale(projected(out, names.down, ffn, hidden_, block.bias));
  }
  out = projected(x, block.gated ? names.gate : names.up, hidden_, ffn, block.bias);
  if (is_sparse(index_)) out = largest(out);
  out = activated(out);
  if (block.gated) out = op_.multiply(out, projected(x, names.up, hidden_, ffn, block.bias));
  out = dropped(out, code_.inner_dropout);
  if (code_.norms_inside) out = norm(out, ffn);
  return projected(out, names.down, ffn, hidden_, block.bias);
}

}  // namespace spillway::estimator
