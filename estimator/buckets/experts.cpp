#include "estimator/buckets/experts.h"

namespace spillway::estimator {
namespace {

// Tensors of the experts' width that each routed token keeps. Routing weights applied to the activation keep
// the activation beside the product (Megatron-LM since "memory efficient token permutation", 2025-04-09),
// unless the product is compiled into the activation.
double expert_width_tensors(const Run& run, bool gated) {
  const double projected = gated ? 2 : 1;
  if (run.training.modules.expert_activation) return projected;
  if (run.behaviour.weighted_activation && !run.behaviour.fused_weighted_activation) return projected + 2;
  return projected + 1;
}

}  // namespace

double routed_expert_bytes(const Run& run, const Experts& block, double tokens, double hidden,
                           double element_bytes) {
  const Training& training = run.training;
  const auto expert_tensor = static_cast<double>(run.parallel.expert_tensor);
  const double local = tokens / static_cast<double>(run.parallel.sequence_shards());
  const double routed = local * static_cast<double>(block.top_k) * expert_tensor * training.expert_imbalance;
  double bytes = element_bytes * hidden;                                    // the permuted input
  if (!run.behaviour.weighted_activation) bytes += element_bytes * hidden;  // the output, to be weighted
  bytes +=
      element_bytes * expert_width_tensors(run, block.gated) * static_cast<double>(block.ffn) / expert_tensor;
  double total = routed * bytes;
  total += 8 * local * static_cast<double>(block.count);  // fp32 logits and probabilities
  if (run.behaviour.keeps_gathered_tokens && run.parallel.expert_tensor > 1)
    total += element_bytes * hidden * local * expert_tensor;
  return total;
}

double gathered_token_bytes(const Run& run, double tokens, double hidden, double element_bytes) {
  return element_bytes * hidden * tokens / static_cast<double>(run.parallel.sequence_shards()) *
         static_cast<double>(run.parallel.expert_tensor * run.parallel.expert);
}

}  // namespace spillway::estimator
