#include "estimator/buckets/rollouts.h"

#include <algorithm>

namespace spillway::estimator {

double scorer_parameters(const TrainingRun& run) {
  const Model& model = run.model;
  const auto table = static_cast<double>(model.vocabulary * table_width(model));
  const double head =
      (model.tied ? 0 : table) + static_cast<double>(model.output_bias ? model.vocabulary : 0);
  return static_cast<double>(total_parameters(model)) - head + static_cast<double>(model.hidden);
}

double cached_elements(const Model& model) {
  int64_t out = 0;
  for (const Layer& layer : model.towers.back().layers) {
    for (const Block& block : layer) {
      const auto* attention = std::get_if<Attention>(&block);
      if (attention == nullptr) continue;
      const auto& latent = attention->latent;
      out += latent ? attention->heads * (latent->head_dim + latent->rotary_dim + latent->value_dim)
                    : 2 * attention->key_value_heads * attention->head_dim;
    }
  }
  return static_cast<double>(out);
}

// generate() keeps the logits of each token in a list and stacks them at its end, beside its cache; then
// those of all answers are padded into one tensor.
RolloutBytes rollout_bytes(const TrainingRun& run) {
  const Training& training = run.training;
  const int64_t sequence = run.model.towers.back().sequence;
  const int64_t answers = training.micro_batch * training.microbatches;
  const int64_t together = std::min(training.preference.rollout_batch, answers);
  const int64_t last = (answers - 1) % together + 1;
  const double of_answer = 4.0 * static_cast<double>(sequence - training.preference.prompt) *
                           static_cast<double>(run.model.vocabulary);
  const double element = training.precision == Precision::kFp32 || training.autocast ? 4 : 2;
  const auto cache = [&](int64_t samples) {
    return static_cast<double>(samples * (sequence - 1)) * element * cached_elements(run.model);
  };
  RolloutBytes out;
  out.scores = static_cast<double>(answers) * of_answer;
  const double stacked = static_cast<double>(answers + last) * of_answer + cache(last);
  const double before_last =
      last == together ? 0 : static_cast<double>(answers - last + together) * of_answer + cache(together);
  out.writing = std::max({2 * out.scores, stacked, before_last});
  return out;
}

}  // namespace spillway::estimator
