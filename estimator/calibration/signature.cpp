#include "estimator/calibration/signature.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace spillway::estimator {
namespace {

std::string shared_text(const std::optional<SharedWeights>& shared) {
  if (!shared) return {};
  return fmt::format(" shared {}{} rank {}", shared->set, shared->first ? " first" : "", shared->rank);
}

std::string text(const Attention& block) {
  std::string out =
      fmt::format("attention {}/{}x{} bias {}{} norms {} {} {}", block.heads, block.key_value_heads,
                  block.head_dim, int{block.query_key_value_bias}, int{block.output_bias},
                  block.norm_parameters, block.head_norm_parameters, block.extra_parameters);
  if (block.cross) out += " cross";
  if (block.shares_keys) out += block.makes_keys ? " shares keys, makes its own" : " shares keys";
  if (!block.sees_all) out += " window";
  if (block.gated) out += " gated";
  if (block.keys_are_values) out += " keys are values";
  if (const auto& latent = block.latent) {
    out += fmt::format(" latent {} {} {} {} {}", latent->query_rank, latent->key_value_rank, latent->head_dim,
                       latent->rotary_dim, latent->value_dim);
  }
  if (block.input > 0) out += fmt::format(" input {}", block.input);
  return out + shared_text(block.shared);
}

std::string text(const Mlp& block) {
  return fmt::format("feed-forward {}{}{} norms {}{}", block.ffn, block.gated ? " gated" : "",
                     block.bias ? " bias" : "", block.norm_parameters, shared_text(block.shared));
}

std::string text(const Experts& block) {
  return fmt::format("experts {} of {} x {} shared {}{}{}{}{} norms {}", block.top_k, block.count, block.ffn,
                     block.shared_ffn, block.gated ? " gated" : "", block.bias ? " bias" : "",
                     block.router_bias ? " router bias" : "", block.shared_gate ? " shared gate" : "",
                     block.norm_parameters);
}

std::string text(const Mamba& block) {
  return fmt::format("mamba {}x{} state {} groups {} convolution {} norms {}", block.heads, block.head_dim,
                     block.state, block.groups, block.convolution, block.norm_parameters);
}

std::string text(const Mixer& block) {
  std::string out = fmt::format("mixer {} {} norms {} saved {}", block.matrix_parameters,
                                block.other_parameters, block.norm_parameters, block.saved);
  if (const auto* input = std::get_if<LayerInput>(&block.kind)) out += fmt::format(" input {}", input->width);
  if (const auto* altup = std::get_if<AltUp>(&block.kind))
    out += fmt::format(" versions {} rank {}", altup->versions, altup->rank);
  if (const auto* net = std::get_if<DeltaNet>(&block.kind))
    out += fmt::format(" delta {}x{} {}x{} {}{}", net->key_heads, net->key_dim, net->value_heads,
                       net->value_dim, net->convolution, net->joined ? " joined" : "");
  if (const auto* lightning = std::get_if<LightningAttention>(&block.kind))
    out += fmt::format(" lightning {}x{} blocks {}", lightning->heads, lightning->head_dim, lightning->block);
  if (const auto* short_one = std::get_if<ShortConvolution>(&block.kind))
    out += fmt::format(" convolution {}{}", short_one->kernel, short_one->bias ? " bias" : "");
  if (std::holds_alternative<OwnProjection>(block.kind)) out += " projection";
  if (const auto* scan = std::get_if<SelectiveScan>(&block.kind))
    out += fmt::format(" scan {} states {} rank {} convolution {} norms {}{}{}", scan->inner, scan->state,
                       scan->rank, scan->convolution, static_cast<int>(scan->norms),
                       scan->bias ? " bias" : "", scan->convolution_bias ? " convolution bias" : "");
  if (const auto* space = std::get_if<StateSpace>(&block.kind))
    out += fmt::format(" states {}x{} {} groups {} convolution {} chunk {}{}{}{}{}", space->heads,
                       space->head_dim, space->state, space->groups, space->convolution, space->chunk,
                       space->bias ? " bias" : "", space->output_bias ? " output bias" : "",
                       space->convolution_bias ? " convolution bias" : "", space->normed ? " normed" : "");
  return out;
}

std::string text(const PredictionInput& block) {
  return fmt::format("prediction norms {}", block.norm_parameters);
}

std::string text(const Layer& layer) {
  std::string out;
  for (const Block& block : layer) {
    if (!out.empty()) out += ", ";
    out += std::visit([](const auto& each) { return text(each); }, block);
  }
  return out;
}

// Equal layers in a row are said once.
std::string text(const Tower& tower) {
  std::string out = tower.name;
  std::string last;
  int64_t count = 0;
  const auto flush = [&] {
    if (count > 0) out += fmt::format("; {} x [{}]", count, last);
  };
  for (const Layer& layer : tower.layers) {
    std::string now = text(layer);
    if (now != last) {
      flush();
      last = std::move(now);
      count = 0;
    }
    ++count;
  }
  flush();
  out += fmt::format("; norm {} input {}", tower.final_norm_parameters,
                     tower.input_parameters + tower.sharded_input_parameters);
  if (tower.hidden > 0)
    out += fmt::format(" width {} x {}{}", tower.hidden, tower.sequences, tower.frozen ? " frozen" : "");
  return out;
}

std::string model_text(const Model& model) {
  std::string out = fmt::format(
      "{} hidden {} vocabulary {} x {}{} positions {} types {} head {} predictions {}{}{}", model.type,
      model.hidden, model.vocabulary, model.vocabulary_multiple, model.tied ? " tied" : "", model.positions,
      model.token_types, model.head_parameters, model.prediction_layers,
      model.shares_predictions ? " of one layer" : "", model.output_bias ? " output bias" : "");
  for (const Tower& tower : model.towers) out += "; " + text(tower);
  if (model.pipeline) out += fmt::format("; {} parameters", total_parameters(model));
  return out;
}

std::string parallel_text(const Parallel& parallel) {
  return fmt::format(
      "gpus {} tensor {}{} pipeline {} virtual {} group {} context {} expert {} x {} zero {} replicas {} "
      "layers [{}]",
      parallel.world, parallel.tensor, parallel.sequence ? " sequence" : "", parallel.pipeline,
      parallel.virtual_stages, parallel.microbatch_group, parallel.context, parallel.expert,
      parallel.expert_tensor, static_cast<int>(parallel.sharding), parallel.optimizer_instances,
      fmt::join(parallel.stage_layers, " "));
}

std::string states_text(const TrainingRun& run) {
  const Training& training = run.training;
  const Adapter& adapter = training.adapter;
  std::string out =
      fmt::format("framework {} gpu {} allocator {} precision {}{}{}{}{}{} frozen {}{} optimizer {}",
                  static_cast<int>(run.framework), static_cast<int>(run.gpu), static_cast<int>(run.allocator),
                  static_cast<int>(training.precision), training.autocast ? " autocast" : "",
                  training.mixed ? " mixed" : "", training.fp32_gradients ? " fp32 gradients" : "",
                  training.half_master ? " 16-bit master" : "", training.half_states ? " 16-bit states" : "",
                  training.frozen.bytes, training.frozen.only_experts ? " experts" : "",
                  static_cast<int>(training.optimizer));
  out += training.foreach_step ? " foreach" : training.loop_step ? " for-loop" : "";
  if (training.projection_rank > 0) out += fmt::format(" of rank {}", training.projection_rank);
  if (training.turns.on())
    out += fmt::format(" layers {}{}", training.turns.layers, training.turns.others ? "" : " alone");
  if (const CapturedParts& captured = training.captured; captured.on())
    out += fmt::format(" captured {}{}{}{}{}{} after {}", captured.iteration ? "all" : "",
                       captured.attention ? " attention" : "", captured.mlp ? " mlp" : "",
                       captured.router ? " router" : "", captured.experts ? " experts" : "",
                       captured.mixers ? " mixers" : "", captured.eager_steps);
  if (training.fp8.primary) out += " 8-bit weights alone";
  if (const MovedTensors& moved = training.moved; moved.on()) {
    out += fmt::format(" moved from {}:", moved.least_elements);
    for (const bool part : moved.of) out += part ? " 1" : " 0";
  }
  if (const Preference& preference = training.preference; preference.on)
    out += fmt::format(" {} reference {} prompt {} engine {} {} reward {} at a time {}",
                       preference.pairs             ? "dpo"
                       : preference.has_value_model ? "ppo"
                                                    : "grpo",
                       static_cast<int>(preference.reference), preference.prompt, preference.engine_bytes,
                       preference.asleep_bytes, preference.reward_bytes, preference.rollout_batch);
  if (adapter.on())
    out += fmt::format(" adapter {}{}{}{} bytes {} of {}{} [{}] and [{}]", adapter.rank,
                       adapter.kind == AdapterKind::kLowRank ? ""
                       : adapter.kind == AdapterKind::kScaling
                           ? fmt::format(" factors [{}]", fmt::join(adapter.scaled_inputs, " "))
                           : fmt::format(" prompt {}", adapter.virtual_tokens),
                       adapter.dora ? " dora" : "", adapter.dropout ? " dropout" : "", adapter.element,
                       adapter.all_linear ? "all " : "", adapter.targets.size(),
                       fmt::join(adapter.targets, " "), fmt::join(adapter.trained_modules, " "));
  return out;
}

std::string kernels_text(const Training& training) {
  const RecomputeModules& modules = training.modules;
  return fmt::format(
      "attention {} {}{} loss {} recompute {} {}{}{}{}{}{} x {} dropout {}{}{} deferred {} dispatcher {} "
      "grouped {} imbalance {}",
      static_cast<int>(training.attention), training.score_copy_bytes, training.attention_mask ? " mask" : "",
      static_cast<int>(training.cross_entropy), static_cast<int>(training.recompute),
      int{modules.attention_core}, int{modules.layer_norm}, int{modules.latent_projection}, int{modules.mlp},
      int{modules.expert_activation}, int{modules.experts}, training.recompute_layers,
      int{training.hidden_dropout}, int{training.attention_dropout},
      training.norm_in_fp32 ? " fp32 norms" : "", training.deferred_embedding_gradients,
      static_cast<int>(training.dispatcher), int{training.grouped_gemm}, training.expert_imbalance);
}

std::string shape_text(const TrainingRun& run) {
  std::string out = fmt::format("micro-batch {} microbatches {} sequence", run.training.micro_batch,
                                run.training.microbatches);
  for (const Tower& tower : run.model.towers) out += fmt::format(" {}", tower.sequence);
  const Imaging& imaging = run.imaging;
  if (run.model.pipeline)
    out += fmt::format(" pixels {} x {}{}{}{}{}{}", imaging.height, imaging.width,
                       imaging.generates ? " generates" : "", imaging.encodes ? " encodes" : "",
                       imaging.guided ? " guided" : "", imaging.offloads ? " offloads" : "",
                       imaging.sliced ? " sliced" : "");
  return out;
}

}  // namespace

std::string Signature::key() const {
  const std::string all =
      fmt::format("{}\n{}\n{}\n{}\n{}", kFormulaVersion, hardware, model, parallel, states);
  const XXH128_hash_t hash = XXH3_128bits(all.data(), all.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

Signature signature_of(const TrainingRun& run, const std::string& hardware) {
  return {hardware,         model_text(run.model),      parallel_text(run.parallel),
          states_text(run), kernels_text(run.training), shape_text(run)};
}

}  // namespace spillway::estimator
