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
    bool pairs;  // for DPO too
  };
  constexpr Key kKeys[] = {{"train.reference", true},
                           {"train.prompt", true},
                           {"rollout.memory", false},
                           {"rollout.sleeps", false}};
  for (const Key& key : kKeys) {
    if (!values.has(key.key) || method == "grpo" || (key.pairs && method == "dpo")) continue;
    values.complain(fmt::format("{}: not allowed beside train.method '{}'; allowed: {}", key.key, method,
                                key.pairs ? "dpo, grpo" : "grpo"));
  }
}

}  // namespace

void read_preference(KeyValues& values, TrainingRun& run) {
  const std::string method = values.choice("train.method", "sft", {"sft", "dpo", "grpo"});
  refuse_beside(values, method);
  if (method == "sft") return;
  Preference& preference = run.training.preference;
  preference.on = true;
  preference.pairs = method == "dpo";
  read_reference(values, run);
  if (method == "grpo") read_rollouts(values, run);
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
  // TRL asks for no cache, gives each sample a mask of its own, and DPO's dropout is turned off.
  run.code.uses_cache = run.code.expands_masks = false;
  run.notes.assumptions.emplace_back("train.method: TRL 1.16, which keeps no logits");
  if (!preference.pairs) return;
  run.training.adapter.dropout = false;
  run.code.hidden_dropout = run.code.inner_dropout = 0;
  run.code.attention_dropout = run.code.embedding_dropout = 0;
}

}  // namespace spillway::estimator
