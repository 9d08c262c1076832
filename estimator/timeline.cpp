#include "estimator/timeline.h"

#include <algorithm>

#include "estimator/buckets/communication.h"
#include "estimator/buckets/formulas.h"
#include "estimator/buckets/offload.h"
#include "estimator/buckets/overhead.h"
#include "estimator/buckets/rollouts.h"
#include "estimator/buckets/states.h"
#include "estimator/diffusion/pipeline.h"
#include "estimator/diffusion/step.h"
#include "estimator/graphs.h"
#include "estimator/held.h"
#include "estimator/measured.h"
#include "estimator/rounding.h"
#include "estimator/tape/buckets.h"
#include "estimator/tape/policy.h"

namespace spillway::estimator {
namespace {

constexpr const char* kCount = "counted from the model's widths";
constexpr const char* kTransformers = "transformers, modeling_<type>.py; PyTorch, derivatives.yaml";
constexpr const char* kTrl = "TRL 1.12, ppo_trainer.py";
constexpr const char* kDiffusers = "diffusers, models; PyTorch, derivatives.yaml";

void add_nonzero(Buckets& buckets, Bucket bucket) {
  if (bucket.bytes != 0) buckets.push_back(bucket);
}

void append(const Buckets& more, Buckets& out) {
  out.insert(out.end(), more.begin(), more.end());
}

Buckets state_buckets(const TrainingRun& run, const StateBytes& states, bool gradients_stay) {
  Buckets out;
  add_nonzero(out, {"weights", states.weights, weights_formula(run.training), kCount});
  if (gradients_stay)
    add_nonzero(out, {"gradients", states.gradients, "bytes of the gradient dtype for each element", kCount});
  add_nonzero(out, {"master weights", states.master, master_formula(run.training),
                    "mixed precision, Micikevicius et al."});
  add_nonzero(out, {"optimizer states", states.moments, moments_formula(run.training),
                    "Rajbhandari et al., ZeRO, section 3"});
  add_nonzero(out, {"fp32 gradient copies", states.master_gradients, "4 for each element of the shard",
                    "Megatron-LM, optimizer.py, fp16"});
  add_nonzero(out, {"fp8 weights", states.fp8_copies, "1 for each element of a matrix and direction",
                    "Transformer Engine, module/base.py, get_weight_workspace"});
  return out;
}

// PyTorch frees gradients after a step. Megatron-LM's buffers stay, as those of DDP and DeepSpeed do where
// they are the gradients, and what a captured graph writes to.
bool gradients_stay(const TrainingRun& run) {
  return run.framework == Framework::kMegatron || gradients_live_in_buckets(run) || run.training.step_graph;
}

// Returns those of one unit where each weight is updated as soon as its gradient is there, else of all.
double waiting_gradient_bytes(const TrainingRun& run, const StateBytes& states) {
  if (!run.training.step_in_backward) return states.gradients;
  const double unit = std::max(gathered_root_bytes(run), gathered_layer_bytes(run)) /
                      activation_element_bytes(run) * element_bytes(run.training, run.framework).gradient;
  return std::min(states.gradients, unit);
}

void add_rounding(const TrainingRun& run, const std::vector<RankWeight>& weights, const HeldActivations& held,
                  RankClass& out) {
  if (run.allocator != AllocatorModel::kPytorch || run.offload.any()) return;
  constexpr const char* kPlayed = "blocks above requests, allocations played";
  constexpr const char* kSource = "PyTorch, CUDACachingAllocator.cpp";
  const RoundingBytes rounding = allocator_rounding(run, weights, held.tensors);
  out.steady.push_back({"allocator rounding", rounding.steady, kPlayed, kSource});
  out.peak.push_back({"allocator rounding", rounding.peak - rounding.steady, kPlayed, kSource});
}

// Adds what is there while a microbatch is under way, beside its activations.
void add_transient(const TrainingRun& run, const Stage& stage, const StateBytes& states,
                   const RankParameters& parameters, Buckets& out) {
  append(transient_overhead(run, stage), out);
  append(transient_communication(run, parameters), out);
  if (run.training.autocast && run.parallel.sharding < DataSharding::kParameters) {
    add_nonzero(out, {"16-bit copies of weights", 2 * static_cast<double>(parameters.products),
                      "2 for each element of a matrix", "PyTorch, autocast_mode.cpp, cached_cast"});
  }
  add_nonzero(out, {"fp32 gradient copies", -states.master_gradients, "freed by zero_grad",
                    "Megatron-LM, optimizer.py, fp16"});
  if (run.framework == Framework::kMegatron && run.parallel.virtual_stages > 1) {
    out.push_back(
        {"stage inputs held as pipeline buffers",
         -static_cast<double>(run.parallel.virtual_stages) * layer_input_bytes(run, run.model.towers.back()),
         "v (2 h T/t_sp), counted above", "Megatron-LM, schedules.py"});
  }
}

// The pool of a captured step is never given back: what was transient stays.
void keep_graph_pool(RankClass& out) {
  add_nonzero(out.steady, {"captured graph's pool", total_bytes(out.peak), "what the step makes and frees",
                           "PyTorch, torch.cuda.graph, private pools"});
  out.peak.clear();
}

// The largest phase and, where it is not the end of the forward pass, what it holds instead.
// `kept`: what the program still holds after the backward pass.
void set_peak(double forward, double gradients, double segment, double temporaries, double kept,
              RankClass& out) {
  out.peak_bytes = 0;
  for (const Phase& phase : out.phases) out.peak_bytes = std::max(out.peak_bytes, phase.bytes);
  if (out.peak_bytes <= forward) return;
  out.peak.clear();
  add_nonzero(out.peak, {"gradients", gradients, "at the end of the backward pass", kCount});
  add_nonzero(out.peak, {"what the pass returned", kept, "logits, hidden states, cache", kTrl});
  if (segment > temporaries) {
    out.peak.push_back({"recomputed segment", segment, "the first layers', at the end of the backward pass",
                        "Korthikanti et al., section 5"});
  } else {
    add_nonzero(out.peak,
                {"temporaries of the step", temporaries,
                 "4 for each element with foreach, two of the largest weight in a loop, fp32 gradients",
                 "PyTorch, torch.optim, foreach; DeepSpeed, fp32 gradients"});
  }
}

void set_interval(const TrainingRun& run, double experts, RankClass& out) {
  // What an engine takes is said, not predicted.
  const double predicted = out.peak_bytes - out.engine_bytes;
  const double steady = std::min(out.steady_bytes, predicted);
  const double transient = std::max(0.0, predicted - steady - experts);
  const double share = kActivationSpread.value + (run.training.fp8.on() ? kFp8Spread.value : 0) +
                       (run.training.moved.on() ? kMovedSpread.value : 0);
  const double spread = kStateSpread.value * steady + share * transient + kExpertSpread.value * experts;
  out.lowest_bytes = out.peak_bytes - spread;
  out.highest_bytes = out.peak_bytes + spread;
}

const char* adapter_formula(const Adapter& adapter) {
  switch (adapter.kind) {
    case AdapterKind::kScaling:
      return "a factor for each output, or input, of each module";
    case AdapterKind::kPrompt:
      return "h for each virtual token";
    default:
      return "r (in + out) for each module";
  }
}

// Frozen weights have no gradients and no states.
void only_adapters(const TrainingRun& run, const PlayedStep& played, StateBytes& states) {
  states.gradients = played.trained_bytes;
  states.master = 0;
  states.master_gradients = 0;
  Training trained = run.training;
  trained.frozen = {};
  trained.autocast = true;  // states of fp32 weights
  states.moments = element_bytes(trained, run.framework).moments * played.trained_elements;
}

// Frozen layers have no gradients. States of those that had their turn stay or are dropped.
void only_those_in_turn(const TrainingRun& run, const PlayedStep& played, StateBytes& states) {
  const ElementBytes bytes = element_bytes(run.training, run.framework);
  states.gradients = bytes.gradient * played.trained_elements;
  if (run.training.turns.fp32_copies) states.master = 4 * played.trained_elements;
  if (!run.training.turns.states_stay)
    states.moments = (run.training.turns.fp32_copies ? 8 : bytes.moments) * played.trained_elements;
}

// A denoiser has no layers that ranks could share.
RankParameters played_parameters(const TrainingRun& run, const Stage& stage) {
  if (!run.model.pipeline) return rank_parameters(rank_weights(run, stage));
  RankParameters out;
  out.dense = denoiser_parameters(*run.model.pipeline);
  return out;
}

// Weights that are used and not trained.
void add_frozen_parts(const TrainingRun& run, Buckets& out) {
  if (!run.model.pipeline) return;
  add_nonzero(out, {"buffers", denoiser_buffer_bytes(run), "tables of positions", "diffusers"});
  if (!run.imaging.encodes) return;
  const FrozenParts parts = frozen_parts(run);
  add_nonzero(out, {"autoencoder", parts.coder, "bytes of its dtype for each element", kCount});
  add_nonzero(out, {"text encoders", parts.encoders, "bytes of their dtype for each element", kCount});
}

// Samples are generated between steps, when there are no activations; before the first step no moments
// either.
void add_generation(const Preference& preference, double moments, RankClass& out) {
  out.engine_bytes = preference.asleep_bytes;
  if (preference.engine_bytes == 0) return;
  const double more = preference.engine_bytes - preference.asleep_bytes;
  const double generation = out.steady_bytes + more;
  out.phases.push_back({"generation", generation});
  out.peak_step1_bytes = std::max(out.peak_step1_bytes, generation - moments);
  if (generation <= out.peak_bytes) return;
  out.engine_bytes = preference.engine_bytes;
  out.peak_bytes = generation;
  out.peak = {{"inference engine", more, "awake", "the run's description"}};
}

// PPO's value model has states as the model has them; returns its weights' bytes.
double add_value_states(const TrainingRun& run, StateBytes& states) {
  if (!run.training.preference.has_value_model) return 0;
  const ElementBytes bytes = element_bytes(run.training, run.framework);
  const auto elements = static_cast<double>(scorer_parameters(run.model));
  states.gradients += bytes.gradient * elements;
  states.master += bytes.master * elements;
  states.moments += bytes.moments * elements;
  return bytes.weight * elements;
}

// PPO writes and scores its answers before it learns from them, when there are no gradients.
void add_rollouts(const TrainingRun& run, double moments, RankClass& out) {
  if (!run.training.preference.has_value_model) return;
  const RolloutBytes rollouts = rollout_bytes(run);
  const double writing = rollouts.writing;
  const double scoring =
      scoring_bytes(run, std::min(answers_of_step(run.training), run.training.preference.rollout_batch));
  out.phases.push_back({"answers written", out.steady_bytes + writing});
  out.phases.push_back({"answers scored", out.steady_bytes + scoring});
  const double most = std::max(writing, scoring);
  // Of the first step there are no answers before, and no moments.
  out.peak_step1_bytes = std::max(out.peak_step1_bytes,
                                  out.steady_bytes - moments + std::max(writing - rollouts.scores, scoring));
  if (out.steady_bytes + most <= out.peak_bytes) return;
  out.peak_bytes = out.steady_bytes + most;
  out.peak = {writing > scoring
                  ? Bucket{"answers while they are written", writing,
                           "logits of each token, stacked and padded, and the cache", kTrl}
                  : Bucket{"answers while they are scored", scoring, "a pass without gradients", kTrl}};
}

// A model whose code is known, whose step is played operator by operator: the peak is that of the pass
// through it, or the optimizer's step.
RankClass played_class(const TrainingRun& run, const Stage& stage) {
  const RankParameters parameters = played_parameters(run, stage);
  StateBytes states = state_bytes(run, parameters);
  const bool stay = gradients_stay(run);
  const bool sharded = run.parallel.sharding >= DataSharding::kGradients;
  const bool accumulated = run.training.microbatches > 1;
  const bool keeps_gradients = !stay && !sharded && !accumulated;
  const PlayedStep played =
      run.model.pipeline ? play_denoising_step(run, keeps_gradients) : play_step(run, keeps_gradients);
  if (run.training.adapter.on()) only_adapters(run, played, states);
  if (run.training.turns.on()) only_those_in_turn(run, played, states);
  const double value = add_value_states(run, states);
  RankClass out;
  out.stage = stage.rank;
  out.parameters = parameters.dense + parameters.expert;
  out.steady = state_buckets(run, states, stay);
  if (run.training.adapter.on())
    add_nonzero(out.steady,
                {"adapters", played.trained_bytes, adapter_formula(run.training.adapter), "PEFT"});
  append(persistent_overhead(run, stage), out.steady);
  append(persistent_communication(run, states), out.steady);
  const bool whole = run.training.precision == Precision::kFp32 || run.training.autocast;
  const double buffers = run.code.buffers_bytes + run.code.buffer_elements * (whole ? 4 : 2);
  add_nonzero(out.steady, {"buffers", buffers, "masks and tables that the model keeps", "transformers"});
  add_frozen_parts(run, out.steady);
  const Preference& preference = run.training.preference;
  const double reference = preference.on && preference.reference == Reference::kCopy ? states.weights : 0;
  add_nonzero(out.steady, {"reference model", reference, weights_formula(run.training), "TRL"});
  add_nonzero(out.steady, {"value model", value, weights_formula(run.training), kTrl});
  add_nonzero(out.steady, {"reward models", preference.reward_bytes,
                           "rollout.reward_memory, or a value model's", "the run's description"});
  if (preference.has_value_model)
    add_nonzero(out.steady, {"logits of answers", rollout_bytes(run).scores,
                             "4 V for each token of an answer of the step", kTrl});
  add_nonzero(out.steady, {"inference engine", preference.asleep_bytes,
                           "rollout.memory, or what stays asleep", "the run's description"});
  out.steady_bytes = total_bytes(out.steady);
  out.peak = played_buckets(played, run.model.pipeline ? kDiffusers : kTransformers);
  append(transient_communication(run, parameters), out.peak);
  const double gradients = stay ? 0 : waiting_gradient_bytes(run, states);
  if (!stay && (sharded || accumulated))
    add_nonzero(out.peak, {"gradients", gradients, "accumulated over microbatches", kCount});
  const double peak = out.steady_bytes + total_bytes(out.peak);
  const double temporaries = step_temporary_bytes(run, states);
  const double step = out.steady_bytes + gradients + temporaries + played.kept_bytes;
  const double beside = reference + value + preference.reward_bytes;
  out.phases = {{"after load", states.weights + beside + states.master + (stay ? states.gradients : 0)},
                {"end of forward", out.steady_bytes + played.forward_bytes},
                {"largest of forward and backward", peak},
                {"optimizer step", step},
                {"between steps", out.steady_bytes}};
  set_peak(peak, gradients, 0, temporaries, played.kept_bytes, out);
  out.peak_step1_bytes = std::max(peak - states.moments, step);
  add_generation(preference, states.moments, out);
  add_rollouts(run, states.moments, out);
  set_interval(run, 0, out);
  return out;
}

// Images that are made: the part that needs most decides.
RankClass generation_class(const TrainingRun& run, const Stage& stage) {
  constexpr const char* kWeights = "bytes of the dtype for each element";
  const std::vector<GenerationPhase> phases = play_generation(run);
  RankClass out;
  out.stage = stage.rank;
  out.parameters = total_parameters(run.model);
  double weights = 0;
  for (const GenerationPhase& phase : phases) weights += phase.part_bytes;
  if (!run.imaging.offloads) out.steady.push_back({"weights", weights, kWeights, kCount});
  append(persistent_overhead(run, stage), out.steady);
  out.steady_bytes = total_bytes(out.steady);
  const GenerationPhase* largest = nullptr;
  for (const GenerationPhase& phase : phases) {
    const double bytes = out.steady_bytes + (run.imaging.offloads ? phase.part_bytes : 0) + phase.more_bytes +
                         phase.peak_bytes;
    out.phases.push_back({phase.name, bytes});
    if (largest != nullptr && bytes <= out.peak_bytes) continue;
    largest = &phase;
    out.peak_bytes = bytes;
  }
  const double working = (run.imaging.offloads ? largest->part_bytes : 0) + largest->more_bytes;
  add_nonzero(out.peak, {"weights of the part that works", working,
                         run.imaging.offloads ? kWeights : "what fp32 adds to them", "diffusers"});
  PlayedStep played;
  played.at_peak = largest->at_peak;
  append(played_buckets(played, kDiffusers), out.peak);
  out.phases.push_back({"between images", out.steady_bytes});
  out.peak_step1_bytes = out.peak_bytes;
  set_interval(run, 0, out);
  return out;
}

}  // namespace

RankClass rank_class(const TrainingRun& run, const Stage& stage) {
  if (run.model.pipeline && run.imaging.generates) return generation_class(run, stage);
  if (run.framework == Framework::kTransformers) return played_class(run, stage);
  const std::vector<RankWeight> weights = rank_weights(run, stage);
  const RankParameters parameters = rank_parameters(weights);
  const HeldActivations held = held_activations(run, stage);
  const bool stay = gradients_stay(run);
  RankClass out;
  out.stage = stage.rank;
  out.parameters = parameters.dense + parameters.expert;
  StateBytes states = state_bytes(run, parameters);
  offload(run, held.bytes, states, out);
  add_nonzero(out.host, {"activations", held.moved_bytes,
                         "all but the last of each part, as often as operators have saved them",
                         "Megatron-LM, fine_grained_activation_offload.py"});

  out.steady = state_buckets(run, states, stay);
  append(persistent_overhead(run, stage), out.steady);
  append(persistent_communication(run, states), out.steady);
  out.peak = held.buckets;
  add_rounding(run, weights, held, out);
  add_transient(run, stage, states, parameters, out.peak);
  double segment = held.segment_bytes;
  if (run.training.step_graph) {
    keep_graph_pool(out);
    segment = 0;
  }
  out.steady_bytes = total_bytes(out.steady);

  // With accumulation gradients outlive a microbatch.
  const double gradients = stay ? 0 : waiting_gradient_bytes(run, states);
  if (run.training.microbatches > 1)
    add_nonzero(out.peak, {"gradients", gradients, "accumulated over microbatches", kCount});
  const double forward = out.steady_bytes + total_bytes(out.peak);
  const double temporaries = step_temporary_bytes(run, states);
  const double step = out.steady_bytes + gradients + temporaries;
  out.phases = {{"after load", states.weights + states.master + (stay ? states.gradients : 0)},
                {"end of forward", forward},
                {"end of backward", out.steady_bytes + gradients + segment},
                {"optimizer step", step},
                {"between steps", out.steady_bytes}};
  set_peak(forward, gradients, segment, temporaries, 0, out);
  // Before the first optimizer step there are no moments.
  out.peak_step1_bytes = std::max(forward - states.moments, step);
  if (run.training.captured.on()) add_graphs(run, stage, states.moments, out);
  set_interval(run, held.expert_bytes, out);
  return out;
}

}  // namespace spillway::estimator
