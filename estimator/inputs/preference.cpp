#include "estimator/inputs/preference.h"

#include <fmt/format.h>

namespace spillway::estimator {
namespace {

Reference read_reference(KeyValues& values, const TrainingRun& run) {
  const bool adapts = run.training.adapter.on();
  const std::string word =
      values.choice("train.reference", adapts ? "base" : "copy", {"copy", "base", "precomputed"});
  if (word == "base" && !adapts)
    values.complain(
        "train.reference: 'base' is not allowed without adapter.kind; allowed: copy, precomputed");
  if (word == "copy" && adapts)
    values.complain(
        "train.reference: 'copy' is not allowed beside adapter.kind; allowed: base, which is the model "
        "without its adapters, precomputed");
  return word == "copy" ? Reference::kCopy : word == "base" ? Reference::kBase : Reference::kComputed;
}

}  // namespace

void read_preference(KeyValues& values, TrainingRun& run) {
  if (values.choice("train.method", "sft", {"sft", "dpo"}) == "sft") {
    for (const char* key : {"train.reference", "train.prompt"}) {
      if (values.has(key))
        values.complain(fmt::format("{}: not allowed beside train.method 'sft'; allowed: dpo", key));
    }
    return;
  }
  Preference& preference = run.training.preference;
  preference.pairs = true;
  preference.reference = read_reference(values, run);
  const int64_t sequence = run.model.towers.back().sequence;
  preference.prompt = values.whole("train.prompt", 0, 0, sequence - 1);
  run.training.micro_batch *= 2;
  if (run.framework != Framework::kTransformers)
    values.complain(
        "train.method: 'dpo' is not modelled beside this train.framework or what it cannot play; "
        "allowed: transformers, of a model whose code is known");
  if (run.model.towers.size() > 1 || !run.model.vocabulary_head)
    values.complain("train.method: 'dpo' is not modelled beside models of several parts or without a head");
  if (run.parallel.sharding == DataSharding::kParameters)
    values.complain(
        "train.method: 'dpo' is not modelled beside sharded weights; allowed: parallel.zero 0 to 2");
  // TRL asks for no cache, turns dropout off and gives each sample a mask of its own.
  run.code.uses_cache = run.code.expands_masks = false;
  run.notes.assumptions.emplace_back("train.method: TRL 1.16, which keeps no logits");
  run.training.adapter.dropout = false;
  run.code.hidden_dropout = run.code.inner_dropout = 0;
  run.code.attention_dropout = run.code.embedding_dropout = 0;
}

}  // namespace spillway::estimator
