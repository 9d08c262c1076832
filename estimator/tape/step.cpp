#include "estimator/tape/step.h"

#include "estimator/tape/policy.h"
#include "estimator/tape/step_player.h"

namespace spillway::estimator {
namespace {

bool is_played(const Mixer* mixer) {
  return mixer != nullptr && !std::holds_alternative<std::monostate>(mixer->kind);
}

}  // namespace

PlayedStep played_of(const Tape& tape) {
  PlayedStep out;
  out.peak_bytes = tape.peak_bytes();
  out.at_peak = tape.at_peak();
  out.trained_elements = tape.trained_elements();
  out.trained_bytes = tape.trained_bytes();
  return out;
}

bool can_play(const Model& model, const ModelCode& code) {
  for (const Tower& tower : model.towers) {
    for (const Layer& layer : tower.layers) {
      if (code.shares_layers && &layer != &tower.layers.front()) break;  // nothing is its own
      for (const Block& block : layer) {
        if (!std::holds_alternative<Attention>(block) && !std::holds_alternative<Mlp>(block) &&
            !std::holds_alternative<Experts>(block) && !is_played(std::get_if<Mixer>(&block)))
          return false;
      }
    }
  }
  return true;
}

PlayedStep play_step(const TrainingRun& given, bool keeps_gradients) {
  if (given.training.preference.has_value_model) return play_policy_step(given, keeps_gradients);
  TrainingRun run = given;
  if (run.training.preference.pairs) run.training.micro_batch *= 2;
  run.model.towers.back().sequence += run.training.adapter.virtual_tokens;
  Tape tape;
  tape.keeps_gradients = keeps_gradients;
  double forward = 0;
  {
    StepPlayer player(run, tape);
    const Tensor loss = player.forward();
    tape.end_forward(run.training.recompute != Recompute::kFull);
    forward = tape.live_bytes();
    tape.backward(loss);
  }
  PlayedStep out = played_of(tape);
  out.forward_bytes = forward;
  return out;
}

}  // namespace spillway::estimator
