#include "estimator/inputs/run_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "estimator/inputs/nearest.h"

namespace spillway::estimator {
namespace {

// Other names of a key: Hugging Face's Trainer and Accelerate, DeepSpeed, Megatron-LM, torchtitan, Axolotl,
// LLaMA-Factory.
struct Word {
  std::string_view word;
  std::string_view key;
};
constexpr std::array<Word, 72> kWords = {{{"batch_size", "train.micro_batch"},
                                          {"per_device_train_batch_size", "train.micro_batch"},
                                          {"per_device_batch_size", "train.micro_batch"},
                                          {"micro_batch_size", "train.micro_batch"},
                                          {"micro_batch_size_per_gpu", "train.micro_batch"},
                                          {"train_micro_batch_size_per_gpu", "train.micro_batch"},
                                          {"local_batch_size", "train.micro_batch"},
                                          {"batch", "train.micro_batch"},
                                          {"mbs", "train.micro_batch"},
                                          {"seq_len", "train.sequence"},
                                          {"seq_length", "train.sequence"},
                                          {"sequence_length", "train.sequence"},
                                          {"sequence_len", "train.sequence"},
                                          {"max_seq_length", "train.sequence"},
                                          {"max_seq_len", "train.sequence"},
                                          {"max_sequence_length", "train.sequence"},
                                          {"max_length", "train.sequence"},
                                          {"context_length", "train.sequence"},
                                          {"context_len", "train.sequence"},
                                          {"block_size", "train.sequence"},
                                          {"cutoff_len", "train.sequence"},
                                          {"model_max_length", "train.sequence"},
                                          {"seq", "train.sequence"},
                                          {"gradient_accumulation_steps", "train.gradient_accumulation"},
                                          {"grad_accum", "train.gradient_accumulation"},
                                          {"grad_accumulation_steps", "train.gradient_accumulation"},
                                          {"accumulation_steps", "train.gradient_accumulation"},
                                          {"accumulate_grad_batches", "train.gradient_accumulation"},
                                          {"gradient_checkpointing", "train.recompute"},
                                          {"activation_checkpointing", "train.recompute"},
                                          {"activation_checkpoint", "train.recompute"},
                                          {"checkpointing", "train.recompute"},
                                          {"recomputation", "train.recompute"},
                                          {"optim", "train.optimizer"},
                                          {"dtype", "train.precision"},
                                          {"torch_dtype", "train.precision"},
                                          {"mixed_precision", "train.precision"},
                                          {"bf16", "train.precision"},
                                          {"fp16", "train.precision"},
                                          {"attn_implementation", "train.attention"},
                                          {"attention_implementation", "train.attention"},
                                          {"hidden_dropout", "train.dropout"},
                                          {"num_gpus", "parallel.gpus"},
                                          {"n_gpus", "parallel.gpus"},
                                          {"ngpus", "parallel.gpus"},
                                          {"gpu_count", "parallel.gpus"},
                                          {"world_size", "parallel.gpus"},
                                          {"num_processes", "parallel.gpus"},
                                          {"nproc_per_node", "parallel.gpus"},
                                          {"tp", "parallel.tensor"},
                                          {"tensor_parallel", "parallel.tensor"},
                                          {"tensor_parallel_size", "parallel.tensor"},
                                          {"tensor_model_parallel_size", "parallel.tensor"},
                                          {"tensor_parallel_degree", "parallel.tensor"},
                                          {"tp_size", "parallel.tensor"},
                                          {"pp", "parallel.pipeline"},
                                          {"pipeline_parallel", "parallel.pipeline"},
                                          {"pipeline_parallel_size", "parallel.pipeline"},
                                          {"pipeline_model_parallel_size", "parallel.pipeline"},
                                          {"pipeline_parallel_degree", "parallel.pipeline"},
                                          {"pp_size", "parallel.pipeline"},
                                          {"cp", "parallel.context"},
                                          {"context_parallel", "parallel.context"},
                                          {"context_parallel_size", "parallel.context"},
                                          {"context_parallel_degree", "parallel.context"},
                                          {"cp_size", "parallel.context"},
                                          {"ep", "parallel.expert"},
                                          {"expert_parallel", "parallel.expert"},
                                          {"expert_parallel_size", "parallel.expert"},
                                          {"expert_model_parallel_size", "parallel.expert"},
                                          {"ep_size", "parallel.expert"},
                                          {"zero_stage", "parallel.zero"}}};

// Other names of a key's value; in lower case.
struct Value {
  std::string_view key;
  std::string_view word;
  std::string_view value;
};
constexpr std::array<Value, 72> kValues = {
    {{"train.optimizer", "adamw", "adamw"},
     {"train.optimizer", "adafactor", "adafactor"},
     {"train.optimizer", "lion", "lion"},
     {"train.optimizer", "muon", "muon"},
     {"train.optimizer", "sgd", "sgd"},
     {"train.optimizer", "adam", "adamw"},
     {"train.optimizer", "adamw_torch", "adamw"},
     {"train.optimizer", "adamw_torch_fused", "adamw"},
     {"train.optimizer", "adamw_torch_xla", "adamw"},
     {"train.optimizer", "adamw_hf", "adamw"},
     {"train.optimizer", "adamw_apex_fused", "adamw"},
     {"train.optimizer", "adamw_anyprecision", "adamw"},
     {"train.optimizer", "adamw_fused", "adamw"},
     {"train.optimizer", "fused_adam", "adamw"},
     {"train.optimizer", "fusedadam", "adamw"},
     {"train.optimizer", "paged_adamw", "adamw"},
     {"train.optimizer", "paged_adamw_32bit", "adamw"},
     {"train.optimizer", "adamw_8bit", "adamw8bit"},
     {"train.optimizer", "adamw_bnb_8bit", "adamw8bit"},
     {"train.optimizer", "adamw_torch_8bit", "adamw8bit"},
     {"train.optimizer", "paged_adamw_8bit", "adamw8bit"},
     {"train.optimizer", "adam_8bit", "adamw8bit"},
     {"train.optimizer", "adam8bit", "adamw8bit"},
     {"train.optimizer", "adamw8bit_bnb", "adamw8bit"},
     {"train.optimizer", "bnb_adamw_8bit", "adamw8bit"},
     {"train.optimizer", "adamw_4bit", "adamw4bit"},
     {"train.optimizer", "adamw_torch_4bit", "adamw4bit"},
     {"train.optimizer", "ao_adamw_4bit", "adamw4bit"},
     {"train.optimizer", "ao_adamw_8bit", "adamw8bit"},
     {"train.optimizer", "lion_32bit", "lion"},
     {"train.optimizer", "paged_lion_32bit", "lion"},
     {"train.optimizer", "adam_mini", "adam-mini"},
     {"train.optimizer", "sgd_momentum", "sgd-momentum"},
     {"train.optimizer", "galore_adamw", "galore"},
     {"train.optimizer", "galore_adamw_layerwise", "galore"},
     {"train.optimizer", "galore_adamw_8bit", "galore8bit"},
     {"train.optimizer", "galore_adamw_8bit_layerwise", "galore8bit"},
     {"train.optimizer", "galore_adafactor", "galore-adafactor"},
     {"train.optimizer", "galore_adafactor_layerwise", "galore-adafactor"},
     {"train.optimizer", "apollo_adamw", "apollo"},
     {"train.optimizer", "apollo_adamw_layerwise", "apollo"},
     {"train.optimizer", "galore", "galore"},
     {"train.optimizer", "apollo", "apollo"},
     {"train.precision", "bfloat16", "bf16"},
     {"train.precision", "torch.bfloat16", "bf16"},
     {"train.precision", "float16", "fp16"},
     {"train.precision", "torch.float16", "fp16"},
     {"train.precision", "half", "fp16"},
     {"train.precision", "float32", "fp32"},
     {"train.precision", "torch.float32", "fp32"},
     {"train.precision", "float", "fp32"},
     {"train.precision", "no", "fp32"},
     {"train.precision", "none", "fp32"},
     {"train.attention", "flash_attention_2", "flash"},
     {"train.attention", "flash_attention_3", "flash"},
     {"train.attention", "flash_attention", "flash"},
     {"train.attention", "flash_attn", "flash"},
     {"train.attention", "flash2", "flash"},
     {"train.attention", "sdpa", "flash"},
     {"train.attention", "eager", "materialised"},
     {"train.attention", "math", "materialised"},
     {"train.attention", "unfused", "materialised"},
     {"train.recompute", "true", "full"},
     {"train.recompute", "yes", "full"},
     {"train.recompute", "on", "full"},
     {"train.recompute", "1", "full"},
     {"train.recompute", "false", "none"},
     {"train.recompute", "no", "none"},
     {"train.recompute", "off", "none"},
     {"train.recompute", "0", "none"},
     {"allocator.model", "native", "pytorch"},
     {"allocator.model", "expandable_segments", "expandable"}}};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_key(const std::string& name) {
  const std::vector<std::string_view>& names = run_key_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The key that a name without its section means.
std::optional<std::string> key_of_bare(const std::string& name) {
  for (const std::string_view key : run_key_names()) {
    if (key.substr(key.find('.') + 1) == name) return std::string(key);
  }
  for (const Word& word : kWords) {
    if (word.word == name) return std::string(word.key);
  }
  return {};
}

std::string value_of(const std::string& key, const std::string& value) {
  const std::string word = lower(value);
  for (const Value& known : kValues) {
    if (known.key == key && known.word == word) return std::string(known.value);
  }
  return value;
}

// Trainer's switches: weights stay fp32 beside them.
std::optional<std::string> switched_precision(const std::string& name, const std::string& value) {
  if (name == "mixed_precision" && (value == "bf16" || value == "fp16")) return "autocast";
  if (name != "bf16" && name != "fp16") return {};
  const std::string word = lower(value);
  if (word == "true" || word == "1") return "autocast";
  if (word == "false" || word == "0") return "fp32";
  return {};
}

}  // namespace

const std::vector<std::string_view>& run_key_names() {
  static const std::vector<std::string_view> kNames = {"train.framework",
                                                       "train.micro_batch",
                                                       "train.sequence",
                                                       "train.gradient_accumulation",
                                                       "train.precision",
                                                       "train.gradients",
                                                       "train.master_weights",
                                                       "train.optimizer_states",
                                                       "train.optimizer",
                                                       "train.optimizer_rank",
                                                       "train.layers_at_a_time",
                                                       "train.dropout",
                                                       "train.attention_dropout",
                                                       "train.optimizer_step",
                                                       "train.attention",
                                                       "train.linear_attention",
                                                       "train.loss",
                                                       "train.fp8",
                                                       "train.recompute",
                                                       "train.recompute_layers",
                                                       "train.checkpoints",
                                                       "train.partition_checkpoints",
                                                       "train.cuda_graph",
                                                       "train.norm_in_fp32",
                                                       "train.expert_imbalance",
                                                       "train.method",
                                                       "train.reference",
                                                       "train.prompt",
                                                       "rollout.memory",
                                                       "rollout.sleeps",
                                                       "rollout.batch",
                                                       "rollout.reward_memory",
                                                       "train.resolution",
                                                       "train.encodes",
                                                       "adapter.kind",
                                                       "adapter.rank",
                                                       "adapter.targets",
                                                       "adapter.dtype",
                                                       "adapter.dropout",
                                                       "adapter.modules_to_save",
                                                       "adapter.scaled_inputs",
                                                       "adapter.virtual_tokens",
                                                       "parallel.gpus",
                                                       "parallel.tensor",
                                                       "parallel.sequence_parallel",
                                                       "parallel.pipeline",
                                                       "parallel.virtual_stages",
                                                       "parallel.context",
                                                       "parallel.expert",
                                                       "parallel.expert_tensor",
                                                       "parallel.zero",
                                                       "parallel.replicas",
                                                       "communication.engine",
                                                       "communication.gradient_as_bucket_view",
                                                       "communication.bucket_cap_mb",
                                                       "communication.reduce_bucket_size",
                                                       "communication.overlap_comm",
                                                       "communication.max_live_parameters",
                                                       "communication.prefetch_bucket_size",
                                                       "communication.keeps_gathered_weights",
                                                       "offload.optimizer",
                                                       "offload.parameters",
                                                       "offload.activations",
                                                       "offload.buffers",
                                                       "offload.buffer",
                                                       "offload.host_gb_per_second",
                                                       "offload.nvme_gb_per_second",
                                                       "offload.compute_seconds",
                                                       "offload.overlap",
                                                       "overhead.workspace",
                                                       "overhead.context",
                                                       "overhead.communicators",
                                                       "overhead.extra",
                                                       "allocator.model"};
  return kNames;
}

NamedValue run_key(const std::string& name, const std::string& value) {
  if (is_key(name)) return {name, value_of(name, value)};
  const size_t dot = name.find('.');
  const std::string section = dot == std::string::npos ? "" : name.substr(0, dot);
  // A model's own names are not a run's.
  if (section == "model" || section == "warning") return {name, value};
  const std::string bare = dot == std::string::npos ? name : name.substr(dot + 1);
  if (const std::optional<std::string> key = key_of_bare(bare)) {
    // In a section only its own words are known.
    if (!section.empty() && key->rfind(section + ".", 0) != 0) return {name, value};
    if (const std::optional<std::string> precision = switched_precision(bare, value))
      return {*key, *precision};
    return {*key, value_of(*key, value)};
  }
  return {name, value};
}

Result<RunKeys> translate_words(const RunKeys& keys) {
  RunKeys out;
  std::map<std::string, std::string> said;
  for (const auto& [name, value] : keys) {
    NamedValue named = run_key(name, value);
    if (const auto before = said.find(named.key); before != said.end())
      return Status::invalid_argument(
          fmt::format("{}: says the same as {}; allowed: one of them", name, before->second));
    said[named.key] = name;
    out[named.key] = std::move(named.value);
  }
  return out;
}

std::string meant_run_key(const std::string& name) {
  std::vector<std::string_view> names = run_key_names();
  const std::string bare = name.substr(name.find('.') + 1);
  if (std::string full = did_you_mean(name, names); !full.empty()) return full;
  for (std::string_view& known : names) known.remove_prefix(known.find('.') + 1);
  for (const Word& word : kWords) names.push_back(word.word);
  return did_you_mean(bare, names);
}

}  // namespace spillway::estimator
