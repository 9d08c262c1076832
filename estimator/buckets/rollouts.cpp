#include "estimator/buckets/rollouts.h"

#include <algorithm>

namespace spillway::estimator {

double cached_elements(const TrainingRun& run) {
  int64_t out = 0;
  for (const Layer& layer : run.model.towers.back().layers) {
    for (const Block& block : layer) {
      const auto* attention = std::get_if<Attention>(&block);
      if (attention == nullptr || reuses_keys(*attention)) continue;
      const auto& latent = attention->latent;
      if (latent && run.code.caches_latent) {
        out += latent->key_value_rank + latent->rotary_dim;
        continue;
      }
      out += latent ? attention->heads * (latent->head_dim + latent->rotary_dim + latent->value_dim)
                    : 2 * attention->key_value_heads * attention->head_dim;
    }
  }
  return static_cast<double>(out);
}

// generate() keeps the logits of each token in a list and stacks them at its end, beside its cache; then
// those of all answers are padded into one tensor, of as many as there are in whole batches
// (batch_generation).
RolloutBytes rollout_bytes(const TrainingRun& run) {
  const Training& training = run.training;
  const int64_t sequence = run.model.towers.back().sequence;
  const int64_t answers = answers_of_step(training);
  const int64_t together = std::min(training.preference.rollout_batch, answers);
  const int64_t batches = (answers + together - 1) / together;
  const auto logits = [&](int64_t of_answers) {
    return 4.0 * static_cast<double>(of_answers * (sequence - training.preference.prompt)) *
           static_cast<double>(run.model.vocabulary);
  };
  const auto written = [&](int64_t before, int64_t now) {
    const double cache = static_cast<double>(now * (sequence - 1)) * cached_elements(run);
    return logits(before + 2 * now) + weight_bytes(training) * cache;
  };
  const int64_t last = answers - (batches - 1) * together;
  RolloutBytes out;
  out.scores = logits(batches * together);
  out.writing = std::max(logits(answers) + out.scores, written(answers - last, last));
  if (batches > 1) out.writing = std::max(out.writing, written((batches - 2) * together, together));
  return out;
}

}  // namespace spillway::estimator
