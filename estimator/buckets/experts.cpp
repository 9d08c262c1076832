#include "estimator/buckets/experts.h"

namespace spillway::estimator {

void append_routed_tensors(const TrainingRun& run, const Experts& block, double tokens,
                           std::vector<SavedTensor>& out) {
  const double element = activation_element_bytes(run);
  const auto add = [&](double bytes) { out.push_back({Part::kExperts, bytes}); };
  // Only grouped products move theirs (experts.py, TEGroupedMLP).
  const auto add_moved = [&](double of_one, double elements, MovedPart part) {
    const bool moves = run.training.grouped_gemm && run.training.moved.moves(part, elements);
    out.push_back({Part::kExperts, of_one * elements, moves ? part : MovedPart::kNone});
  };
  const auto hidden = static_cast<double>(run.model.hidden);
  const auto expert_tensor = static_cast<double>(run.parallel.expert_tensor);
  const double local = tokens / static_cast<double>(run.parallel.sequence_shards());
  const double routed =
      local * static_cast<double>(block.top_k) * expert_tensor * run.training.expert_imbalance;
  const double input = run.training.fp8.on() ? run.training.fp8.input_bytes : element;
  const double wide = routed * static_cast<double>(block.ffn) / expert_tensor;

  add(8 * local * static_cast<double>(block.count));  // fp32 logits and probabilities
  if (run.behaviour.keeps_gathered_tokens && run.parallel.expert_tensor > 1)
    add(element * hidden * local * expert_tensor);
  const bool whole = run.training.moved.whole_expert_inputs && run.training.grouped_gemm;
  add_moved(whole ? element : input, routed * hidden, MovedPart::kExpertInput);  // the permuted input
  add_moved(element, block.gated ? 2 * wide : wide, MovedPart::kExpertActivation);
  if (!run.training.modules.expert_activation) {
    // Routing weights applied to the activation keep it beside the product, unless one kernel makes both.
    if (run.behaviour.weighted_activation && !run.behaviour.fused_weighted_activation)
      add_moved(element, wide, MovedPart::kExpertActivation);
    add(input * wide);
  }
  if (!run.behaviour.weighted_activation) add(routed * element * hidden);  // the output, to be weighted
}

double gathered_token_bytes(const TrainingRun& run, double tokens) {
  return activation_element_bytes(run) * static_cast<double>(run.model.hidden) * tokens /
         static_cast<double>(run.parallel.sequence_shards()) *
         static_cast<double>(run.parallel.expert_tensor * run.parallel.expert);
}

}  // namespace spillway::estimator
