#include "estimator/inputs/preference.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "estimator/inputs/run_sections.h"
#include "estimator/measured.h"

namespace spillway::estimator {
namespace {

// Without adapters a reference is a model of its own. GRPO has one where its loss asks for a divergence.
void read_reference(KeyValues& values, TrainingRun& run) {
  Preference& preference = run.training.preference;
  if (preference.has_value_model) {
    values.choice("train.reference", "copy", {"copy"});
    preference.reference = Reference::kCopy;
    return;
  }
  const bool adapts = run.training.adapter.on();
  const char* const none = preference.pairs ? "precomputed" : "none";
  const char* const usual = !preference.pairs ? "none" : adapts ? "base" : "copy";
  const std::string word = values.choice("train.reference", usual, {"copy", "base", none});
  if (word == "base" && !adapts)
    values.complain(
        fmt::format("train.reference: 'base' is not allowed without adapter.kind; allowed: copy, {}", none));
  if (word == "copy" && adapts)
    values.complain(
        fmt::format("train.reference: 'copy' is not allowed beside adapter.kind; allowed: base, which is the "
                    "model without its adapters, {}",
                    none));
  preference.reference = word == "copy"   ? Reference::kCopy
                         : word == "base" ? Reference::kBase
                                          : Reference::kNone;
}

// PPO's own is taken to be as large as the value model.
void read_reward(KeyValues& values, TrainingRun& run) {
  Preference& preference = run.training.preference;
  const double usual = preference.has_value_model
                           ? weight_bytes(run.training) * static_cast<double>(scorer_parameters(run.model))
                           : 0;
  preference.reward_bytes = read_size(values, "rollout.reward_memory", usual);
}

// An engine in the same process, or in another one of the same GPU.
void read_rollouts(KeyValues& values, TrainingRun& run) {
  Preference& preference = run.training.preference;
  preference.engine_bytes = read_size(values, "rollout.memory", 0);
  const bool sleeps = values.truth("rollout.sleeps");
  preference.asleep_bytes =
      sleeps ? std::min(preference.engine_bytes, kAsleepBytes.value) : preference.engine_bytes;
  if (sleeps && preference.engine_bytes == 0)
    values.complain(
        "rollout.sleeps: not allowed without rollout.memory; allowed: the size that the engine takes");
}

void refuse_beside(KeyValues& values, std::string_view method) {
  struct Key {
    const char* key;
    std::string_view methods;
  };
  constexpr Key kKeys[] = {{"train.reference", "dpo, grpo, ppo"},
                           {"train.prompt", "dpo, grpo, ppo"},
                           {"rollout.memory", "grpo"},
                           {"rollout.sleeps", "grpo"},
                           {"rollout.batch", "ppo"},
                           {"rollout.reward_memory", "grpo, ppo"}};
  for (const Key& key : kKeys) {
    if (!values.has(key.key) || key.methods.find(method) != std::string_view::npos) continue;
    values.complain(
        fmt::format("{}: not allowed beside train.method '{}'; allowed: {}", key.key, method, key.methods));
  }
}

// TRL 1.12, ppo_trainer.py and ppo_config.py.
void read_values(KeyValues& values, TrainingRun& run) {
  Preference& preference = run.training.preference;
  preference.rollout_batch = values.whole("rollout.batch", 64, 1, 1 << 20);
  const auto refuse = [&](bool found, const char* key, const char* why, const char* allowed) {
    if (found)
      values.complain(fmt::format("{}: '{}' is not modelled beside train.method 'ppo'{}; allowed: {}", key,
                                  values.peek(key), why, allowed));
  };
  const Training& training = run.training;
  refuse(training.adapter.on(), "adapter.kind", "", "none");
  const bool names_layers = values.has("train.layers_at_a_time");
  refuse(training.turns.on() || training.projection_rank > 0,
         names_layers ? "train.layers_at_a_time" : "train.optimizer", ", whose optimizer has two models",
         names_layers ? "without it" : "optimizers of all weights at once, such as adamw, sgd");
  refuse(training.recompute != Recompute::kNone, "train.recompute", ", whose trainer recomputes nothing",
         "none");
  refuse(training.frozen.on(), "model.weights", "", "weights in the training dtype");
  refuse(run.parallel.sharding != DataSharding::kNone, "parallel.zero", "", "0");
  if (has_mixer(run.model))
    values.complain(
        "train.method: 'ppo' is not modelled beside this type of model; allowed: models of attention");
}

}  // namespace

void read_preference(KeyValues& values, TrainingRun& run) {
  const std::string method = values.choice("train.method", "sft", {"sft", "dpo", "grpo", "ppo"});
  refuse_beside(values, method);
  if (method == "sft") return;
  Preference& preference = run.training.preference;
  preference.on = true;
  preference.pairs = method == "dpo";
  preference.has_value_model = method == "ppo";
  read_reference(values, run);
  if (method == "grpo") read_rollouts(values, run);
  if (method == "ppo") read_values(values, run);
  if (method != "dpo") read_reward(values, run);
  const int64_t sequence = run.model.towers.back().sequence;
  preference.prompt = values.whole("train.prompt", 0, 0, sequence - 1);
  if (run.framework != Framework::kTransformers)
    values.complain(
        fmt::format("train.method: '{}' is not modelled beside this train.framework or what it cannot play; "
                    "allowed: transformers, of a model whose code is known",
                    method));
  if (run.model.towers.size() > 1 || !run.model.vocabulary_head || run.code.masked_language_head)
    values.complain(
        fmt::format("train.method: '{}' is not modelled beside this type of model; allowed: language "
                    "models of one part that have a head",
                    method));
  if (run.training.adapter.kind == AdapterKind::kPrompt)
    values.complain(
        fmt::format("train.method: '{}' is not modelled beside adapter.kind 'prompt'; allowed: lora, "
                    "rslora, dora, qlora, ia3",
                    method));
  if (run.training.frozen.on() && !run.training.adapter.on())
    values.complain(
        fmt::format("train.method: '{}' is not allowed beside quantised weights without adapter.kind, as "
                    "nothing is trained; "
                    "allowed: adapter.kind = qlora",
                    method));
  if (run.parallel.sharding == DataSharding::kParameters)
    values.complain(fmt::format(
        "train.method: '{}' is not modelled beside sharded weights; allowed: parallel.zero 0 to 2", method));
  // TRL asks for no cache but in PPO, gives each sample a mask of its own, and drops nothing out in DPO and
  // PPO.
  run.code.expands_masks = run.code.masks_without_cache = false;
  run.code.reentrant = false;  // of its own accord, before transformers 5 as well
  if (preference.has_value_model) {
    run.notes.assumptions.emplace_back(
        "train.method: TRL 1.12, the last release with PPO; a value model of the same widths");
  } else {
    run.code.uses_cache = false;
    run.notes.assumptions.emplace_back("train.method: TRL 1.16, which keeps no logits");
  }
  if (!preference.pairs && !preference.has_value_model) return;
  run.training.adapter.dropout = false;
  run.code.hidden_dropout = run.code.inner_dropout = 0;
  run.code.attention_dropout = run.code.embedding_dropout = 0;
}

}  // namespace spillway::estimator
