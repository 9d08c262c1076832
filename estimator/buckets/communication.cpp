#include "estimator/buckets/communication.h"

#include <algorithm>

#include "estimator/buckets/activations.h"

namespace spillway::estimator {
namespace {

constexpr const char* kZeroSource = "DeepSpeed, runtime/zero/stage_1_and_2.py and stage3.py";

bool is_deepspeed(const TrainingRun& run) {
  return run.framework != Framework::kMegatron &&
         run.communication.engine == DataParallelEngine::kDeepspeed &&
         run.parallel.sharding != DataSharding::kNone;
}

// DDP: every rank holds all gradients and reduces them in buckets.
bool is_replicated(const TrainingRun& run) {
  return run.framework != Framework::kMegatron && run.parallel.sharding == DataSharding::kNone &&
         run.communication.engine == DataParallelEngine::kTorch &&
         run.parallel.data() * run.parallel.context > 1;
}

bool weights_are_gathered(const TrainingRun& run) {
  return run.parallel.sharding == DataSharding::kParameters || run.offload.parameters != Tier::kDevice;
}

Bucket gathered_weights(const TrainingRun& run, const RankParameters& parameters) {
  const double units = gathered_root_bytes(run) + 2 * gathered_layer_bytes(run);
  const double weight = activation_element_bytes(run);
  const double all = weight * static_cast<double>(parameters.dense + parameters.expert);
  if (!is_deepspeed(run))
    return {"gathered weights", std::min(all, units), "root unit + 2 layer units",
            "PyTorch FSDP notes, prefetch"};
  // A product keeps a view of its weight for the backward pass; a layer that is recomputed kept none.
  const Recompute recompute = run.training.recompute;
  const bool held = run.communication.keeps_gathered &&
                    (recompute == Recompute::kNone || recompute == Recompute::kSelective);
  if (held)
    return {"gathered weights", all, "all: the forward pass's are held for the backward pass",
            "DeepSpeed, issue 1465 and pull request 8189"};
  const double unit = std::max(gathered_root_bytes(run), gathered_layer_bytes(run));
  const double live =
      std::max(weight * run.communication.most_gathered, unit + weight * run.communication.prefetch);
  return {"gathered weights", std::min(all, live),
          "e max_live_parameters, or a unit and what is prefetched, at most all",
          "DeepSpeed, partitioned_param_coordinator.py"};
}

// DeepSpeed's stage 3 makes one bucket at the start, stages 1 and 2 one or two for each backward pass.
void add_reduce_buckets(const TrainingRun& run, Buckets& out) {
  const bool one = run.parallel.sharding == DataSharding::kParameters;
  const auto count = static_cast<double>(one ? 1 : run.communication.reduce_buckets);
  out.push_back({"reduce buckets", count * activation_element_bytes(run) * run.communication.reduce_bucket,
                 count > 1 ? "2 e reduce_bucket_size" : "e reduce_bucket_size", kZeroSource});
}

}  // namespace

bool gradients_live_in_buckets(const TrainingRun& run) {
  // DeepSpeed, stage3.py: grad_partitions_flat_buffer.
  if (is_deepspeed(run) && run.parallel.sharding == DataSharding::kParameters) return true;
  return is_replicated(run) && run.communication.gradients_are_views;
}

Buckets persistent_communication(const TrainingRun& run, const StateBytes& states) {
  Buckets out;
  if (is_replicated(run) && !run.communication.gradients_are_views) {
    out.push_back({"gradient buckets", states.gradients, "a copy of all gradients",
                   "PyTorch, DistributedDataParallel, gradient_as_bucket_view"});
  }
  if (is_deepspeed(run) && run.parallel.sharding == DataSharding::kParameters) add_reduce_buckets(run, out);
  if (run.behaviour.keeps_gathered_weights && weights_are_gathered(run)) {
    out.push_back({"gathered weights", gathered_root_bytes(run) + 2 * gathered_layer_bytes(run),
                   "root unit + 2 layer units", "Megatron-LM, the first name of Megatron-FSDP"});
  }
  return out;
}

Buckets transient_communication(const TrainingRun& run, const RankParameters& parameters) {
  Buckets out;
  if (is_deepspeed(run) && run.parallel.sharding < DataSharding::kParameters) add_reduce_buckets(run, out);
  if (!run.behaviour.keeps_gathered_weights && weights_are_gathered(run))
    out.push_back(gathered_weights(run, parameters));
  return out;
}

double layer_reduction_bytes(const TrainingRun& run) {
  const bool fsdp = run.framework != Framework::kMegatron &&
                    run.parallel.sharding == DataSharding::kParameters &&
                    run.communication.engine == DataParallelEngine::kTorch;
  if (!fsdp && run.offload.optimizer == Tier::kDevice) return 0;
  const double gathered = activation_element_bytes(run);
  const double reduced = fsdp ? element_bytes(run.training, run.framework).gradient : 0;
  return gathered_layer_bytes(run) / gathered * (gathered + reduced);
}

// Of the vocabulary's table or of a layer's matrix, in elements.
double largest_weight(const TrainingRun& run) {
  double out = static_cast<double>(run.model.vocabulary * table_width(run.model));
  for (const MatrixShape& matrix : trained_matrices(run))
    out = std::max(out, static_cast<double>(matrix.rows) * static_cast<double>(matrix.columns));
  return out;
}

double step_temporary_bytes(const TrainingRun& run, const StateBytes& states) {
  if (run.offload.optimizer != Tier::kDevice) return 0;
  const bool adam = run.training.optimizer == OptimizerKind::kAdam;
  const double foreach = run.training.foreach_step && adam ? states.moments / 2 : 0;
  // The root of the second moment, and the step: torch.optim, _single_tensor_adam; galore_torch, adamw.py.
  const bool whole = run.parallel.sharding == DataSharding::kNone && run.parallel.tensor == 1 &&
                     run.parallel.pipeline == 1 && !run.training.adapter.on();
  const bool others = !run.training.turns.on() || run.training.turns.others;
  const bool loops = run.training.loop_step && adam && whole && others;
  const double loop = loops ? element_bytes(run.training, run.framework).moments * largest_weight(run) : 0;
  // DeepSpeed casts its shard of 16-bit gradients to fp32.
  const bool casts =
      is_deepspeed(run) && states.master > 0 && element_bytes(run.training, run.framework).gradient < 4;
  // BAdam's gradients of fp32 copies (badam, block_optim.py, _grad_to_hp).
  const double copied = run.training.turns.fp32_copies ? states.master : 0;
  return foreach + loop + copied + (casts ? states.master : 0);
}

}  // namespace spillway::estimator
