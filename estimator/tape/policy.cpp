#include "estimator/tape/policy.h"

#include "estimator/buckets/rollouts.h"
#include "estimator/tape/step_player.h"

namespace spillway::estimator {
namespace {

using Kept = std::vector<Tape::Kept>;

// Logits of one sample's answer.
double answer_elements(const TrainingRun& run) {
  return static_cast<double>((run.model.towers.back().sequence - run.training.preference.prompt) *
                             run.model.vocabulary);
}

// What one microbatch's pass returns: logits, all hidden states, and the cache of keys and values. Accelerate
// casts logits that autocast has made (convert_outputs_to_fp32).
double returned_bytes(const TrainingRun& run) {
  const Tower& tower = run.model.towers.back();
  const auto tokens = static_cast<double>(run.training.micro_batch * tower.sequence);
  const auto states = static_cast<double>((static_cast<int64_t>(tower.layers.size()) + 1) * run.model.hidden);
  const double cached = run.code.uses_cache ? cached_elements(run) : 0;
  return weight_bytes(run.training) * tokens * (static_cast<double>(run.model.vocabulary) + states + cached);
}

// PolicyAndValueWrapper.forward: what the value model's pass has returned is there until the model's is over.
Tensor policy_and_value(StepPlayer& policy, StepPlayer& value, Tape& tape, Kept& returned, Tensor& logits) {
  Kept of_value;
  value.return_into(of_value);
  Tensor values = value.value_of(value.all_towers());
  policy.return_into(returned);
  logits = policy.logits(policy.all_towers());
  value.forget_caches();
  tape.let_go(of_value);
  tape.end_autocast();
  if (policy.operators().autocast()) logits = policy.operators().cast(logits, 4);
  return values;
}

}  // namespace

// PPOTrainer.train: Python variables hold what a pass has returned until the next one has returned, and what
// statistics were made of, a softmax of the answers' logits, until the next ones are made.
PlayedStep play_policy_step(const TrainingRun& run, bool keeps_gradients) {
  const auto samples = static_cast<double>(run.training.micro_batch);
  Tape tape;
  tape.keeps_gradients = keeps_gradients;
  tape.set_purpose(Purpose::kLoss);
  Share softmax, last_returned;
  if (run.training.microbatches > 1) {
    softmax = tape.make_share(weight_bytes(run.training) * samples * answer_elements(run));
    last_returned = tape.make_share(returned_bytes(run));
  }
  Kept returned;
  Tensor logits;
  StepPlayer policy(run, tape), value(run, tape);
  const Tensor values = policy_and_value(policy, value, tape, returned, logits);
  last_returned.reset();
  const Operators& op = policy.operators();
  const Tensor loss = op.add(answer_probabilities(op, logits, samples, answer_elements(run)), values.view(1));
  const double forward = tape.live_bytes();
  tape.backward(loss);
  PlayedStep out = played_of(tape);
  out.forward_bytes = forward;
  out.kept_bytes = tape.live_bytes() - tape.live_bytes(Purpose::kGradients);
  return out;
}

// No trainer's autocast is around these passes.
double scoring_bytes(const TrainingRun& given, int64_t samples) {
  TrainingRun run = given;
  run.training.micro_batch = samples;
  if (run.training.autocast) run.training.precision = Precision::kFp32;
  run.training.autocast = false;
  Tape tape;
  const Tape::WithoutGradients without(tape);
  Kept returned;
  StepPlayer player(run, tape);
  player.return_into(returned);
  const Tensor logits = player.logits(player.all_towers());
  tape.make_share(answer_elements(run) * logits.element);  // of one sample after the other
  return tape.peak_bytes();
}

}  // namespace spillway::estimator
