#include "estimator/inputs/transformers_code.h"

#include <fmt/format.h>

#include "estimator/inputs/hugging_face_code.h"
#include "estimator/tape/step.h"

namespace spillway::estimator {
namespace {

// Says what is not written down of transformers; empty where all is.
std::string not_played(const TrainingRun& run) {
  const Parallel& parallel = run.parallel;
  const Training& training = run.training;
  if (!run.code.known) return "this type of model";
  if (run.model.towers.front().connector && !run.vision_code.known) return "this type of image tower";
  if (parallel.tensor > 1 || parallel.pipeline > 1 || parallel.context > 1 || parallel.expert > 1)
    return "models divided over ranks";
  if (run.offload.any()) return "offloading";
  if (training.fp8.on()) return "train.fp8";
  if (training.step_graph) return "train.cuda_graph";
  if (training.recompute == Recompute::kSelective || training.recompute == Recompute::kOperators)
    return "this train.recompute";
  if (training.recompute_layers > 1) return "several layers recomputed together";
  if (training.cross_entropy != CrossEntropy::kEager) return "this train.loss";
  if (training.mixer_kernels && has_mixer(run.model)) return "the kernels of train.linear_attention";
  if (run.code.needs_kernels) return "the kernels that it needs unless use_mamba_kernels is false";
  if (training.step_in_backward) return "train.optimizer_step 'in-backward'";
  return can_play(run.model, run.code) ? "" : "this type of model";
}

void check_checkpoints(KeyValues& values, TrainingRun& run) {
  if (run.training.recompute != Recompute::kFull) return;
  if (run.code.refuses_checkpoints)
    values.complain(
        fmt::format("train.recompute: 'full' is not allowed; transformers' model_type '{}' has no gradient "
                    "checkpointing; allowed: none",
                    run.model.type));
  if (!run.code.ignores_checkpoints) return;
  run.training.recompute = Recompute::kNone;
  run.notes.warnings.push_back(fmt::format(
      "train.recompute: transformers 4 keeps all activations of model_type '{}', whatever it is asked for",
      run.model.type));
}

// Of a type whose code is played each tower's code says what its attention is.
void check_attention(KeyValues& values, TrainingRun& run, bool is_played) {
  if (run.training.attention != AttentionKernel::kFlash || !run.code.own_attention) return;
  if (!is_played) run.training.attention = AttentionKernel::kMaterialised;
  const std::string version = values.text("model.transformers_version", "4.57");
  run.notes.warnings.push_back(
      fmt::format("train.attention: model_type '{}' has no scaled_dot_product_attention in transformers {}: "
                  "all scores are counted, which kernels of flash attention would not keep",
                  run.model.type, version));
}

// Kernels that are not transformers' own keep less.
void warn_of_kernels(TrainingRun& run) {
  if (!has_mixer(run.model)) return;
  run.notes.warnings.push_back(
      "linear attention, state spaces and convolutions are counted as PyTorch's own operators keep them; far "
      "less is kept where kernels are installed (flash-linear-attention, mamba-ssm, causal-conv1d), which "
      "train.linear_attention = kernels counts as lean code does");
}

}  // namespace

void read_transformers(KeyValues& values, TrainingRun& run) {
  const bool mixes = has_mixer(run.model);
  if (mixes || values.has("train.linear_attention"))
    run.training.mixer_kernels =
        values.choice("train.linear_attention", "torch", {"torch", "kernels"}) == "kernels";
  if (run.framework != Framework::kTransformers) return;
  run.code = read_code(values, "model.", run.model);
  const Tower& first = run.model.towers.front();
  if (first.connector) run.vision_code = read_vision_code(values, "model.vision_config.", first);
  check_checkpoints(values, run);
  const std::string problem = not_played(run);
  check_attention(values, run, problem.empty());
  if (problem.empty()) {
    warn_of_kernels(run);
    return;
  }
  // Adapters are counted beside transformers' own code alone.
  if (values.has("adapter.kind") && values.peek("adapter.kind") != "none")
    values.complain(
        fmt::format("adapter.kind: '{}' is not modelled with {}; allowed: what transformers' own code "
                    "runs on one rank, or in data parallelism",
                    values.peek("adapter.kind"), problem));
  if (values.has("train.framework"))
    values.complain(
        fmt::format("train.framework: 'transformers' does not know {}; allowed: pytorch", problem));
  run.framework = Framework::kPytorch;
  run.notes.warnings.push_back(fmt::format(
      "activations are counted as lean code keeps them{}: transformers' own are not known with {}",
      mixes ? ", and linear attention, state spaces and convolutions as their kernels do" : "", problem));
}

}  // namespace spillway::estimator
