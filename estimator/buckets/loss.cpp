#include "estimator/buckets/loss.h"

#include <algorithm>

#include "estimator/buckets/activations.h"

namespace spillway::estimator {
namespace {

double bytes_per_logit(const TrainingRun& run, double element) {
  switch (run.training.cross_entropy) {
    // 16-bit logits and the fp32 copy that becomes the softmax in place (Megatron-LM, cross_entropy.py).
    case CrossEntropy::kVocabularyParallel:
      return element + 4;
    case CrossEntropy::kFused:
      return run.behaviour.fused_loss_bytes_per_logit;
    // fp32 log-softmax and two fp32 gradients, in the backward pass.
    case CrossEntropy::kEager:
      return 12;
    // torchtune, CEWithChunkedOutputLoss: eight chunks.
    case CrossEntropy::kChunked:
      return element + 12.0 / 8;
    case CrossEntropy::kFusedLinear:
      return 0;
  }
  return 0;
}

double logits(const TrainingRun& run) {
  if (!run.model.vocabulary_head) return 0;
  return rank_tokens(run, run.model.towers.back()) * static_cast<double>(vocabulary_shard(run));
}

}  // namespace

LossBytes loss_bytes(const TrainingRun& run) {
  const double element = activation_element_bytes(run);
  const double all = bytes_per_logit(run, element) * logits(run);
  const double made = std::min(all, element * logits(run));
  // The losses of prediction layers come first and keep their fp32 softmax.
  const double kept = 4 * logits(run) * static_cast<double>(run.model.prediction_layers);
  return {made, all - made, kept};
}

double head_bytes(const TrainingRun& run) {
  const double norm = 2 * layer_input_bytes(run, run.model.towers.back());
  // A dense layer with its activation and norm before the output projection: three more tensors.
  const bool has_dense_layer = run.model.head_parameters > 0;
  return has_dense_layer ? 2.5 * norm : norm;
}

double deferred_gradient_bytes(const TrainingRun& run) {
  const double element = activation_element_bytes(run);
  const double hidden = static_cast<double>(run.model.hidden) * rank_tokens(run, run.model.towers.back());
  return static_cast<double>(run.training.deferred_embedding_gradients) * element * (logits(run) + hidden);
}

}  // namespace spillway::estimator
