// The forward pass of one model of transformers on a tape, from tokens to its loss. Each function follows the
// Python function that is named beside it. It belongs to step.cpp and policy.cpp; nothing else should need
// it.
#pragma once

#include <algorithm>

#include "estimator/tape/layers.h"
#include "estimator/tape/preference.h"

namespace spillway::estimator {

inline const Attention* first_attention(const Tower& tower) {
  for (const Layer& layer : tower.layers) {
    if (const auto* attention = std::get_if<Attention>(&layer.front())) return attention;
  }
  return nullptr;
}

class StepPlayer {
 public:
  StepPlayer(const TrainingRun& run, Tape& tape)
      : run_(run),
        tape_(tape),
        op_(tape, run.training.autocast, run.training.precision == Precision::kFp16),
        hidden_(static_cast<double>(run.model.hidden)),
        weight_element_(run.training.precision == Precision::kFp32 || run.training.autocast ? 4 : 2),
        vocabulary_(static_cast<double>(run.model.vocabulary)) {
    if (run.model.vocabulary > 0)
      table_ = tape_.weight(
          vocabulary_ * static_cast<double>(table_width(run.model)), weight_element_,
          run.training.adapter.trains("embed_tokens") && !run.training.frozen.on() && trains_others());
  }

  Tensor forward() {
    const Tensor out = all_towers();
    Tensor found = run_.training.preference.on ? preferred(out) : loss(out);
    forget_caches();
    return found;
  }

  const Operators& operators() const { return op_; }

  // From now on the program keeps all hidden states and caches here.
  void return_into(std::vector<Tape::Kept>& kept) { returned_ = &kept; }

  void forget_caches() {
    for (Layers& layers : layers_) layers.forget_cache();
  }

  // One number for each token.
  Tensor value_of(const Tensor& x) { return op_.linear(x, layers_.back().matrix(hidden_, 1, false)); }

  Tensor all_towers() {
    Tensor out;
    for (const Tower& tower : run_.model.towers) {
      code_ = tower.connector ? &run_.vision_code : &run_.code;
      out = tower.connector ? connected(tower, through(tower, {})) : through(tower, out);
    }
    return out;
  }

  // x itself where the class has none.
  Tensor logits(const Tensor& given) {
    Tensor x = given;
    Layers& layers = layers_.back();
    tape_.set_purpose(Purpose::kLoss);
    // T5 scales what a tied table multiplies.
    if (code_->eager_attention && run_.model.tied) x = op_.scale(x);
    if (!run_.model.vocabulary_head) return x;
    const auto narrow = static_cast<double>(table_width(run_.model));
    if (code_->masked_language_head) {
      x = op_.linear(x, layers.matrix(hidden_, narrow, true));
      x = layers.activated(x);
      x = layers.norm(x, narrow);
    }
    Matrix head{run_.model.tied ? table_ : head_table(),
                run_.model.output_bias ? tape_.weight(vocabulary_, weight_element_, trained()) : Tensor(),
                narrow, vocabulary_};
    Tensor out = op_.linear(x, head);
    if (code_->scales_logits) out = op_.scale(out);
    if (code_->adds_to_logits) out = op_.scale(out, std::max(out.element, weight_element_));
    if (code_->caps_logits) {
      out = op_.scale(out);
      out = op_.activation_of_result(out);
      out = op_.scale(out);
    }
    return out;
  }

 private:
  // trl/trainer/dpo_trainer.py, _compute_loss: the model's scores, then the reference's. grpo_trainer.py has
  // the reference's from before the step.
  Tensor preferred(const Tensor& out) {
    Tensor found = scores(out);
    if (!run_.training.preference.pairs || run_.training.preference.reference == Reference::kNone)
      return found;
    // Each model has autocast to itself, which copies weights that ask for gradients once.
    tape_.end_forward(run_.training.recompute != Recompute::kFull);
    TrainingRun reference = run_;
    reference.training.recompute = Recompute::kNone;
    if (run_.training.adapter.on()) reference.training.adapter = frozen_model();
    const Tape::WithoutGradients without(tape_);
    StepPlayer player(reference, tape_);
    player.scores(player.all_towers());
    tape_.end_forward(false);
    return found;
  }

  Tensor scores(const Tensor& x) {
    tape_.set_purpose(Purpose::kLoss);
    const auto samples = static_cast<double>(run_.training.micro_batch);
    const int64_t first = std::max<int64_t>(1, run_.training.preference.prompt);
    const auto scored = static_cast<double>(std::max<int64_t>(1, run_.model.towers.back().sequence - first));
    const auto narrow = static_cast<double>(table_width(run_.model));
    const Tensor table = run_.model.tied ? table_ : head_table();
    const double compute = run_.training.autocast ? 2 : x.element;
    return log_probabilities(op_, scored_rows(op_, x, samples * scored, narrow), table, vocabulary_, compute);
  }

  Tensor head_table() {
    return tape_.weight(
        static_cast<double>(table_width(run_.model)) * vocabulary_, weight_element_,
        run_.training.adapter.trains("lm_head") && !run_.training.frozen.on() && trains_others());
  }

  // What is in no layer.
  bool trained() const {
    return !run_.training.adapter.on() && !run_.training.frozen.on() && trains_others();
  }
  bool trains_others() const { return !run_.training.turns.on() || run_.training.turns.others; }

  // `before`: what the tower before made, which cross attention reads, or which images' tokens become.
  Tensor through(const Tower& tower, const Tensor& before) {
    layers_.emplace_back(run_, tower, *code_, op_);
    Layers& layers = layers_.back();
    layers.train(trains_others());
    layers.keep_caches_in(returned_);
    const bool has_images = run_.model.towers.front().connector && !tower.connector;
    const Tensor source = has_images ? Tensor() : before;
    // The layers have it together: it is there until the first one's gradient is.
    if (source.data)
      layers.set_source({{}, source.elements, source.element, source.edge},
                        static_cast<double>(run_.model.towers.front().sequence));
    tape_.set_purpose(Purpose::kEmbeddings);
    // Token numbers of eight bytes.
    inputs_.push_back(tape_.make(layers.tokens(), 8));
    const Tensor embedded = embedding(layers, tower);
    Tensor x = widened(layers, tower, embedded);
    if (has_images && before.elements > 0) x = op_.scatter(x, before);
    if (code_->scales_embedding) x = op_.scale(x);
    // enable_input_require_grads: recomputed layers get an input that asks for a gradient.
    const bool frozen = run_.training.adapter.on() || !trains_others();
    if (frozen && run_.training.recompute == Recompute::kFull && !x.needs_gradient() && !tower.connector)
      x.edge = tape_.leaf(x.elements, x.element).edge;
    if (layer_input_width(tower) > 0) layers.set_layer_inputs(layer_inputs(layers, tower, x));
    x = layers.dropped(x, code_->embedding_dropout);
    const AltUp* altup = altup_of(tower.layers.front());
    if (altup != nullptr) x = layers.altup_inputs(*altup, x);
    rotary_tables(layers, tower, x.element);
    masks(layers, tower);
    biases(layers, tower, bool(source.data), x.element);
    if (source.data) x = op_.beside(x, source);
    // It is there until the last layer has read it.
    const Tensor embedded_copy = beside_embedded(layers, tower, x);
    if (returned_ != nullptr) tape_.keep(x.data, *returned_);
    x = all_layers(layers, tower, x);
    tape_.forget_beside();
    if (altup != nullptr) x = layers.altup_output(*altup, x);
    // Recomputed layers save what is made of them once more.
    if (run_.training.recompute != Recompute::kFull || code_->bias != BiasCode::kEfficient)
      layers.set_biases({}, {});
    tape_.set_purpose(Purpose::kNorms);
    if (tower.final_norm_parameters > 0) x = layers.norm(x, width(tower));
    if (returned_ != nullptr) {
      returned_->pop_back();  // the last layer's result, in whose place is the norm's
      tape_.keep(x.data, *returned_);
    }
    if (code_->eager_attention) x = layers.dropped(x, code_->hidden_dropout);
    return x;
  }

  // A narrower table's rows become as wide as layers are (ELECTRA).
  Tensor widened(const Layers& layers, const Tower& tower, const Tensor& x) {
    const auto narrow = static_cast<double>(table_width(run_.model));
    if (tower.connector || run_.model.vocabulary == 0 || narrow == hidden_) return x;
    return op_.linear(x, layers.matrix(narrow, hidden_, true));
  }

  double width(const Tower& tower) const { return static_cast<double>(tower_width(run_.model, tower)); }

  // A projection of patches, and its norm; then two products with an activation between them, or one.
  Tensor connected(const Tower& tower, const Tensor& patches) {
    const Connector& connector = *tower.connector;
    Layers& layers = layers_.back();
    const double rows = layers.tokens() / static_cast<double>(connector.merged);
    const auto in = static_cast<double>(connector.in), inner = static_cast<double>(connector.inner),
               out = static_cast<double>(connector.out);
    const auto projected = [&](const Tensor& x, double from, double to) {
      const Tensor bias = connector.bias ? tape_.weight(to, weight_element_, trained()) : Tensor();
      return op_.linear(x, {tape_.weight(from * to, weight_element_, trained()), bias, from, to});
    };
    Tensor last;
    for (int64_t i = 0; i < connector.count; ++i) {
      tape_.set_purpose(Purpose::kMlp);
      Tensor x = connector.other_parameters > 0 ? layers.norm(patches, width(tower)) : patches;
      x = x.view(rows * in);
      if (connector.inner > 0) {
        x = layers.activated(projected(x, in, inner));
        if (connector.halves) x = op_.multiply(op_.slice(x, x.elements / 2), op_.slice(x, x.elements / 2));
      }
      last = projected(x, connector.inner == 0 ? in : connector.halves ? inner / 2 : inner, out);
      // Those of earlier layers are added to the first layers of the text.
      if (i + 1 < connector.count) inputs_.push_back(last);
    }
    return last;
  }

  Tensor embedding(Layers& layers, const Tower& tower) {
    const auto sequence = static_cast<double>(tower.sequence);
    if (code_->sound_channels > 0 && tower.fixed) return heard(layers, tower);
    const bool is_of_patches = run_.model.vocabulary == 0 || tower.connector;
    const double width = is_of_patches ? this->width(tower) : static_cast<double>(table_width(run_.model));
    Tensor x;
    if (!is_of_patches) {
      x = prompted(layers, width);
    } else {
      // Patches: a convolution of the samples, put beside the class token.
      inputs_.push_back(tape_.make(
          static_cast<double>(run_.training.micro_batch * tower.sequences) * code_->sample_elements,
          weight_element_));
      const Tensor weights = tape_.weight(static_cast<double>(tower.input_parameters), weight_element_,
                                          trained() && !tower.frozen);
      x = op_.copy(op_.patches(weights, layers.tokens() * width));
    }
    if (tower.connector) return x;
    const auto table = [&](int64_t rows, double tokens) {
      if (rows == 0) return;
      const Tensor weight = tape_.weight(static_cast<double>(rows) * width, weight_element_, trained());
      x = op_.add(x, op_.embedding(weight, tokens, width));
    };
    table(run_.model.token_types, layers.tokens());
    table(run_.model.positions, sequence);
    // Of an encoder or a decoder, which have tables each.
    if (tower.input_parameters > 0 && !is_of_patches && layer_input_width(tower) == 0)
      table(tower.input_parameters / static_cast<int64_t>(width), sequence);
    if (code_->embedding_norm) x = layers.norm(x, width);
    return x;
  }

  // A row for each token; trained ones before them have the adapter's type (PeftModel.get_prompt).
  Tensor prompted(const Layers& layers, double width) {
    const auto virtual_tokens = static_cast<double>(run_.training.adapter.virtual_tokens);
    const auto samples = static_cast<double>(run_.training.micro_batch);
    Tensor x = op_.embedding(table_, layers.tokens() - samples * virtual_tokens, width);
    if (virtual_tokens == 0) return x;
    // enable_input_require_grads asks for a gradient of the table's rows too.
    if (run_.training.recompute == Recompute::kFull) x.edge = tape_.leaf(x.elements, x.element).edge;
    const Purpose before = tape_.set_purpose(Purpose::kAdapters);
    const Tensor rows = tape_.weight(virtual_tokens * width, run_.training.adapter.element);
    const Tensor prompt = op_.cast(op_.embedding(rows, samples * virtual_tokens, width), x.element);
    tape_.set_purpose(before);
    return op_.concatenate(prompt, x);
  }

  // A table's row for each token, and a projection of its embedding: a part for each layer
  // (Gemma4TextModel.project_per_layer_inputs).
  Tensor layer_inputs(Layers& layers, const Tower& tower, const Tensor& embedded) {
    const auto part = static_cast<double>(layer_input_width(tower));
    const double all = part * static_cast<double>(tower.layers.size());
    const double elements = static_cast<double>(tower.sharded_input_parameters) - hidden_ * all;
    const Tensor table = tape_.weight(elements, weight_element_, trained());
    const Tensor of_tokens = op_.scale(op_.embedding(table, layers.tokens(), all));
    layers.train(trained());
    const Tensor projected =
        op_.scale(layers.projected(embedded, "per_layer_model_projection", hidden_, all, false));
    const Tensor normed = layers.norm(projected, part);
    return op_.scale(op_.add(normed, of_tokens));
  }

  // Two convolutions of the spectrum, of which the second takes every second step (WhisperEncoder).
  Tensor heard(const Layers& layers, const Tower& tower) {
    const auto channels = static_cast<double>(code_->sound_channels);
    const double wide = layers.tokens() * hidden_;
    const bool trains = trained();
    const auto filters = [&](double from) {
      return tape_.weight(3 * from * hidden_, weight_element_, trains);
    };
    const Tensor bias = tape_.weight(hidden_, weight_element_, trains);
    inputs_.push_back(tape_.make(2 * layers.tokens() * channels, weight_element_));
    Tensor x = layers.activated(op_.convolution(inputs_.back(), filters(channels), bias, 2 * wide));
    x = layers.activated(op_.convolution(x, filters(hidden_), bias, wide));
    const auto steps = static_cast<double>(tower.sequence);
    return op_.add(x, op_.embedding(tape_.weight(steps * hidden_, weight_element_, trains), steps, hidden_));
  }

  void rotary_tables(Layers& layers, const Tower& tower, double element) {
    if (code_->rotary <= 0) return;
    const Attention* attention = first_attention(tower);
    if (attention == nullptr) return;
    const int64_t turned = attention->latent ? attention->latent->rotary_dim : attention->head_dim;
    const double elements = static_cast<double>(tower.sequence * turned) * code_->rotary;
    if (code_->rotation == RotationCode::kComplex && !attention->latent) {
      layers.set_rotary_tables(tape_.make(elements, 4), {});
      return;
    }
    layers.set_rotary_tables(tape_.make(elements, element), tape_.make(elements, element));
    // Layers that see all tokens have tables of their own beside those of a window (Gemma 4).
    const auto* last = std::get_if<Attention>(&tower.layers.back().front());
    if (last != nullptr && !last->latent && last->sees_all != attention->sees_all)
      inputs_.push_back(tape_.make(2 * static_cast<double>(tower.sequence * last->head_dim), element));
  }

  // T5's: a table's entries by relative position, with the mask of the batch (T5Attention.compute_bias).
  void biases(Layers& layers, const Tower& tower, bool has_source, double element) {
    if (!code_->eager_attention) return;
    if (code_->biases_in_layers && code_->bias == BiasCode::kEfficient) return;  // they make them
    const auto* attention = std::get_if<Attention>(&tower.layers.front().front());
    const auto sequence = static_cast<double>(tower.sequence);
    const auto heads = static_cast<double>(attention->heads);
    const double scores = layers.tokens() * sequence * heads;
    const Tensor table = tape_.weight(32 * heads, weight_element_, trained());
    tape_.set_purpose(Purpose::kScores);
    Tensor own = op_.embedding(table, sequence * sequence, heads);
    if (code_->bias == BiasCode::kAdded) own = op_.add(own, tape_.make(0, element).view(scores));
    // Of transformers 5 it is of one sample, and of the queries' type.
    const bool is_added = code_->bias == BiasCode::kAdded;
    const double samples = is_added ? 1 : static_cast<double>(run_.training.micro_batch);
    const double wide = !is_added && op_.autocast() ? 2 : element;
    const Tensor cross = has_source ? tape_.make(scores / samples, wide) : Tensor();
    // Layers that are recomputed get them as arguments, which are kept for it.
    if (run_.training.recompute == Recompute::kFull && !code_->biases_in_layers)
      inputs_.insert(inputs_.end(), {own.detached(), cross});
    layers.set_biases(std::move(own), cross);
  }

  // A copy of the embedded tokens for layers with shared weights (Zamba2Model.forward); recomputed ones get
  // it as an argument, which is kept until the first is done.
  Tensor beside_embedded(Layers& layers, const Tower& tower, Tensor& x) {
    if (code_->makes_states_first) layers.make_states();
    const Attention* attention = first_attention(tower);
    if (attention == nullptr || !attention->shared) return {};
    Tensor copy = op_.copy(x);
    const auto sequence = static_cast<double>(tower.sequence);
    if (code_->masks_numbers) inputs_.push_back(tape_.make(sequence * sequence, x.element));
    layers.set_embedded({{}, copy.elements, copy.element, copy.edge},
                        code_->masks_numbers ? inputs_.back() : Tensor());
    if (run_.training.recompute == Recompute::kFull) x = op_.beside(x, copy);
    return copy;
  }

  // These hold truth values, for each kind of layer that has one.
  void masks(Layers& layers, const Tower& tower) {
    if (code_->masks_numbers) return;
    const auto sequence = static_cast<double>(tower.sequence);
    bool found[2] = {false, false};
    for (size_t i = 0; i < tower.layers.size(); ++i) {
      if (!layers.is_masked(i)) continue;
      if (!std::exchange(found[layers.is_windowed(i) ? 1 : 0], true))
        inputs_.push_back(tape_.make((code_->expands_masks ? sequence : layers.tokens()) * sequence, 1));
    }
  }

  Tensor all_layers(Layers& layers, const Tower& tower, const Tensor& x) {
    const bool recomputes = run_.training.recompute == Recompute::kFull;
    size_t next = 0;
    const Turns& turns = run_.training.turns;
    const auto in_turn = [&](size_t layer) {
      return !turns.on() || static_cast<int64_t>(layer) < turns.layers;
    };
    const auto run_of = [&](size_t first) {
      size_t end = first + 1;
      while (end < tower.layers.size() && layers.same(tower.layers, first, end) &&
             in_turn(end) == in_turn(first))
        ++end;
      return end;
    };
    Tensor out = recomputes && code_->keeps_last_keys ? forgetting_shared_after(layers, x) : x;
    std::vector<Tensor> weights;
    while (code_->shares_layers && next < tower.layers.size()) {
      tape_.share_weights(&weights);
      out = layers.layer(tower.layers.front(), next++, out);
    }
    tape_.share_weights(nullptr);
    while (next < tower.layers.size()) {
      const size_t first = next, end = run_of(first);
      const Layer& layer = tower.layers[first];
      const Body body = [this, &layers, &layer, first, is_in_turn = in_turn(first)](const Tensor& in) {
        layers.train(is_in_turn);
        Tensor made = layers.layer(layer, first, in);
        if (returned_ != nullptr) tape_.keep(made.data, *returned_);
        return made;
      };
      out = tape_.repeat(static_cast<int64_t>(end - first), out, [&](const Tensor& in) {
        if (!recomputes) return body(in);
        tape_.set_purpose(Purpose::kInputs);
        return tape_.checkpoint(in, body, code_->reentrant);
      });
      next = end;
    }
    layers.train(trains_others());
    return out;
  }

  // x itself; once its gradient is there what layers share is forgotten.
  Tensor forgetting_shared_after(Layers& layers, const Tensor& x) {
    Tape::Recorder recorder(tape_, {x.edge});
    Tensor out = x;
    out.edge = recorder.finish([&layers](Backward& run) {
      layers.forget_shared();
      run.give(0, run.gradient());
    });
    return out;
  }

  Tensor loss(const Tensor& x) {
    Tensor made = logits(x);
    if (!run_.model.vocabulary_head) return made;
    return op_.cross_entropy(code_->loss_in_fp32 ? op_.cast(made, 4) : made);
  }

  const TrainingRun& run_;
  const ModelCode* code_ = nullptr;  // of the tower
  Tape& tape_;
  Operators op_;
  double hidden_, weight_element_, vocabulary_;
  Tensor table_ = {};
  std::deque<Layers> layers_ = {};
  std::vector<Tensor> inputs_ = {};
  std::vector<Tape::Kept>* returned_ = nullptr;
};

}  // namespace spillway::estimator
