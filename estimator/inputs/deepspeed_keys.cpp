#include "estimator/inputs/deepspeed_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string_view>

#include "estimator/inputs/nearest.h"

namespace spillway::estimator {
namespace {

// Keys that move or change what is held in a way that is not modelled, by how they begin.
struct Refusal {
  const char* key;
  const char* reason;
};
constexpr std::array<Refusal, 19> kRefused = {
    {{"amp.enabled", "Apex decides which tensors are cast"},
     {"compile.deepcompile", "gathers and releases are scheduled by its compiler"},
     {"compression_training", "weights are pruned or quantised"},
     {"expert_parallel", "experts are placed by it"},
     {"hybrid_engine.enabled", "weights for generation are kept beside"},
     {"moe", "experts are placed by it; parallel.expert says over how many ranks"},
     {"quantize_training", "weights are quantised while they are trained"},
     {"sparse_attention", "attention scores are kept in blocks"},
     {"zero_optimization.zero_quantized", "weights or gradients are quantised on their way"},
     {"zero_optimization.zero_hpz_partition_size", "a second copy of the weights is kept in each node"},
     {"zero_optimization.mics_shard_size", "weights are sharded in groups"},
     {"zero_optimization.zenflow", "some gradients stay on the device"},
     {"zero_optimization.offload_optimizer.ratio", "a part of the optimizer stays on the device"},
     {"zero_optimization.offload_optimizer.super_offload",
      "the optimizer is divided between device and host"},
     {"zero_optimization.legacy_stage1", "an older implementation is used"},
     {"zero_optimization.cpu_offload", "it is an older name of offload_optimizer and offload_param"},
     {"curriculum_learning.enabled", "sequences change their length"},
     {"data_efficiency.enabled", "sequences change their length"},
     {"pipeline", "stages are not described by the file"}}};

// Keys that change what is held by what is not counted, where they say something else than nothing.
constexpr std::array<Refusal, 5> kNotCounted = {
    {{"communication_data_type", "buckets of another type than the gradients' are not counted"},
     {"data_types.param_dtype", "it must be the type that bf16 or fp16 say"},
     {"progressive_layer_drop.enabled", "all layers are counted"},
     {"sparse_gradients", "the embedding's gradients are counted whole"},
     {"zero_optimization.round_robin_gradients", "the order of gradients is not counted"}}};

// DeepSpeed 0.19, runtime/config.py, zero/config.py, precision_config.py, tensor_parallel/config.py.
struct Section {
  std::string_view name;  // of the outer file: empty
  std::string_view keys;
};
constexpr std::array<Section, 11> kSections = {{
    {"",
     "activation_checkpointing aio amp autotuning bf16 bfloat16 checkpoint comet comms_logger "
     "communication_data_type compile compression_training csv_monitor curriculum_learning "
     "data_efficiency data_types dataloader_drop_last debug disable_allgather dump_state eigenvalue "
     "elasticity expert_parallel flops_profiler fp16 gradient_accumulation_steps gradient_allreduce_op "
     "gradient_clipping gradient_predivide_factor graph_harvesting hybrid_engine load_universal "
     "managed_gradient_accumulation max_grad_norm memory_breakdown monitor_config nebula optimizer "
     "pipeline prescale_gradients progressive_layer_drop quantize_training scheduler "
     "seq_parallel_communication_data_type sequence_parallel_size sparse_attention sparse_gradients "
     "steps_per_print tensor_parallel tensorboard timers torch_autocast train_batch_size "
     "train_micro_batch_size_per_gpu use_data_before_expert_parallelism vocabulary_size "
     "wall_clock_breakdown wandb weight_quantization zero_allow_untested_optimizer "
     "zero_force_ds_cpu_optimizer zero_optimization"},
    {"zero_optimization",
     "allgather_bucket_size allgather_partitions allgather_sequential contiguous_gradients cpu_offload "
     "cpu_offload_param cpu_offload_params cpu_offload_use_pin_memory elastic_checkpoint "
     "enable_sanity_checks gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module "
     "legacy_stage1 load_from_fp32_weights log_trace_cache_warnings max_live_parameters "
     "max_reuse_distance memory_efficient_linear mics_hierarchical_params_gather mics_shard_size "
     "model_persistence_threshold module_granularity_threshold offload_optimizer offload_param "
     "overlap_comm override_module_apply param_persistence_threshold pipeline_loading_checkpoint "
     "prefetch_bucket_size reduce_bucket_size reduce_scatter round_robin_gradients "
     "save_muon_momentum_buffer_in_memory stage stage3_allgather_sequential "
     "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save "
     "stage3_max_live_parameters stage3_max_reuse_distance stage3_model_persistence_threshold "
     "stage3_module_granularity_threshold stage3_param_persistence_threshold "
     "stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params sub_group_size "
     "use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size "
     "zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights "
     "zeropp_loco_param"},
    {"zero_optimization.offload_optimizer",
     "buffer_count buffer_size cpuadam_cores_perc device fast_init nvme_path pin_memory pipeline "
     "pipeline_read pipeline_write ratio super_offload"},
    {"zero_optimization.offload_param", "buffer_count buffer_size device max_in_cpu nvme_path pin_memory"},
    {"bf16",
     "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow check_overflow enabled "
     "immediate_grad_update"},
    {"fp16",
     "auto_cast consecutive_hysteresis enabled fp16_master_weights_and_grads hysteresis "
     "initial_scale_power loss_scale loss_scale_window min_loss_scale"},
    {"data_types", "buffer_dtype grad_accum_dtype param_dtype"},
    {"torch_autocast", "dtype enabled lower_precision_safe_modules"},
    {"tensor_parallel",
     "autotp_size dtype injection_policy_tuple keep_module_on_host kernel_inject mpu partition_config "
     "preset_model replace_with_kernel_inject tensor_parallel tp tp_grain_size tp_group "
     "tp_overlap_comm tp_size"},
    {"activation_checkpointing",
     "contiguous_memory_optimization cpu_checkpointing number_checkpoints partition_activations "
     "profile synchronize_checkpoint_boundary"},
    {"optimizer", "legacy_fusion params type"},
}};

bool asks_for(const std::string& value) {
  return value != "none" && value != "false" && value != "null" && value != "1" && value != "1.0" &&
         value != "0" && value != "-1" && value != "auto" && value != "{}" && value != "[]";
}

bool begins(std::string_view key, std::string_view start) {
  return key.substr(0, start.size()) == start;
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return out;
}

// Says what a section does not know of `key`, and what was meant; empty where all is known.
std::string unknown_part(std::string_view key, const Section& section) {
  std::string_view rest = key;
  if (!section.name.empty()) {
    if (!begins(key, section.name) || key.size() <= section.name.size() || key[section.name.size()] != '.')
      return {};
    rest.remove_prefix(section.name.size() + 1);
  }
  const std::string_view name = rest.substr(0, rest.find('.'));
  const std::vector<std::string_view> known = words(section.keys);
  if (std::find(known.begin(), known.end(), name) != known.end()) return {};
  const std::string_view full = key.substr(0, key.size() - rest.size() + name.size());
  return fmt::format("{}: not a key of DeepSpeed's, which passes over it{}", full, did_you_mean(name, known));
}

// Past a million elements it is not norms and biases that stay gathered.
bool keeps_weights(const std::string& key, const std::string& value) {
  if (key.find("param_persistence_threshold") == std::string::npos) return false;
  double elements = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), elements);
  return error == std::errc() && elements > 1e6;
}

}  // namespace

Status refuse_deepspeed_keys(const std::map<std::string, std::string>& flat) {
  for (const auto& [key, value] : flat) {
    for (const Refusal& refusal : kRefused) {
      const bool switched_on = value == "1" && key.size() > 7 && key.substr(key.size() - 7) == "enabled";
      if (begins(key, refusal.key) && (asks_for(value) || switched_on))
        return Status::unsupported(fmt::format("{} is not modelled: {}", key, refusal.reason));
    }
  }
  return {};
}

std::vector<std::string> deepspeed_warnings(const std::map<std::string, std::string>& flat) {
  std::set<std::string> out;
  for (const auto& [key, value] : flat) {
    for (const Section& section : kSections) {
      if (std::string said = unknown_part(key, section); !said.empty()) out.insert(std::move(said));
    }
    for (const Refusal& left : kNotCounted) {
      if (key == left.key && asks_for(value)) out.insert(fmt::format("{}: {}", key, left.reason));
    }
    if (keeps_weights(key, value))
      out.insert(
          fmt::format("{}: weights of up to {} elements stay gathered, which is not counted", key, value));
  }
  return {out.begin(), out.end()};
}

}  // namespace spillway::estimator
