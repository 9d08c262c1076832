#include "estimator/buckets/formulas.h"

namespace spillway::estimator {
namespace {

bool has_latent_attention(const Model& model) {
  return any_block(model, [](const Block& block) {
    const auto* attention = std::get_if<Attention>(&block);
    return attention != nullptr && attention->latent.has_value();
  });
}

bool has_gated_attention(const Model& model) {
  return any_block(model, [](const Block& block) {
    const auto* attention = std::get_if<Attention>(&block);
    return attention != nullptr && attention->gated;
  });
}

}  // namespace

const char* norms_formula(const TrainingRun& run) {
  const bool upcast = run.training.norm_in_fp32 && run.training.precision != Precision::kFp32;
  if (run.training.modules.layer_norm)
    return upcast ? "(4 e + 8 + 2 m) h T/t_sp for each layer of two norms"
                  : "(2 e + 2 m) h T/t_sp for each layer of two norms";
  return upcast ? "(4 e + 2 i + 8 + 2 m) h T/t_sp for each layer of two norms"
                : "(2 e + 2 i + 2 m) h T/t_sp for each layer of two norms";
}

const char* attention_formula(const TrainingRun& run) {
  if (has_latent_attention(run.model)) return "narrow and wide projections and the output, for each layer";
  if (run.training.attention != AttentionKernel::kFlash) return "(e (a + 2 k) + i a) d T/t for each layer";
  if (has_gated_attention(run.model))
    return "((e (3 a + 2 k) + i a) d + 4 a) T/t for each layer that attends";
  return run.behaviour.flash_saves_output_twice ? "((e (2 a + 2 k) + i a) d + 4 a) T/t for each layer"
                                                : "((e (a + 2 k) + i a) d + 4 a) T/t for each layer";
}

const char* scores_formula(const TrainingRun& run) {
  return run.training.score_copy_bytes > 0
             ? "(e + (1 + e) m) a s^2 b/t and a copy of the scores, for each layer"
             : "(e + (1 + e) m) a s^2 b/t for each layer";
}

const char* feed_forward_formula(const TrainingRun& run) {
  return run.framework == Framework::kPytorch ? "(e + i) f T/t, gated (3 e + i) f T/t, for each layer"
                                              : "(e + i) f T/t, gated (2 e + i) f T/t, for each layer";
}

const char* experts_formula(const TrainingRun& run) {
  if (run.training.modules.expert_activation) return "R (i h + 2 e f/etp), R = T K etp/t_sp, for each layer";
  if (!run.behaviour.weighted_activation)
    return "R ((i + e) h + (2 e + i) f/etp), R = T K etp/t_sp, for each layer";
  return run.behaviour.fused_weighted_activation
             ? "R (i h + (2 e + i) f/etp), R = T K etp/t_sp, for each layer"
             : "R (i h + (3 e + i) f/etp), R = T K etp/t_sp, for each layer";
}

const char* mixers_formula(const TrainingRun& run) {
  const bool described =
      any_block(run.model, [](const Block& block) { return std::holds_alternative<Mixer>(block); });
  return described ? "e T/t times the widths that the layer's kernels keep, for each layer"
                   : "(e (5 d_i + 2 g N + n) + 4 g) T/t for each layer";
}

const char* loss_formula(const TrainingRun& run) {
  switch (run.training.cross_entropy) {
    case CrossEntropy::kVocabularyParallel:
      return "(e + 4) T V/t";
    case CrossEntropy::kFused:
      return run.behaviour.fused_loss_bytes_per_logit == 10   ? "10 T V/t"
             : run.behaviour.fused_loss_bytes_per_logit == 14 ? "14 T V/t"
                                                              : "18 T V/t";
    case CrossEntropy::kEager:
      return "12 T V/t";
    case CrossEntropy::kChunked:
      return "(e + 12/8) T V/t";
    case CrossEntropy::kFusedLinear:
      return "0";
  }
  return "";
}

const char* head_formula(const TrainingRun& run) {
  return run.model.head_parameters > 0 ? "5 e h T/t_sp" : "2 e h T/t_sp";
}

const char* master_formula(const Training& training) {
  return training.half_master ? "2 for each element of the optimizer shard"
                              : "4 for each element of the optimizer shard";
}

const char* moments_formula(const Training& training) {
  const bool half = training.precision != Precision::kFp32 && !training.autocast &&
                    (!training.mixed || training.half_states);
  if (training.turns.fp32_copies) return "8 for Adam, for each element that is trained at a time";
  if (training.projection_rank > 0)
    return "r (longer side) for each state and r (shorter side) of what projects, for each matrix of a "
           "layer; the states of all else";
  switch (training.optimizer) {
    case OptimizerKind::kAdam:
      return half ? "4 for Adam in 16 bits, for each element of the shard"
                  : "8 for Adam, for each element of the shard";
    case OptimizerKind::kAdam8bit:
      return "2 (1 + 4/256) for 8-bit Adam, for each element of the shard";
    case OptimizerKind::kAdam4bit:
      return "2 (1/2 + 4/128) for 4-bit Adam, for each element of the shard";
    case OptimizerKind::kMuon:
      return half ? "2 for each element of a layer's matrix, 4 for Adam of all else"
                  : "4 for each element of a layer's matrix, 8 for Adam of all else";
    case OptimizerKind::kAdamMini:
    case OptimizerKind::kLion:
    case OptimizerKind::kSgdMomentum:
      return half ? "2 for one state in 16 bits, for each element of the shard"
                  : "4 for one state, for each element of the shard";
    case OptimizerKind::kAdafactor:
    case OptimizerKind::kSgd:
      return "0";
  }
  return "";
}

const char* weights_formula(const Training& training) {
  if (training.fp8.primary) return "bytes of the training dtype for each element outside of matrices";
  return training.frozen.on() ? "bytes of the quantised matrices and their scales, 2 for each other element"
                              : "bytes of the training dtype for each element";
}

}  // namespace spillway::estimator
