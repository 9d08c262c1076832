// NeMo RL's recipes of supervised fine-tuning. Source of what their keys mean: NVIDIA-NeMo/RL,
// examples/configs, nemo_rl/models/policy.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "estimator/inputs/recipes/recipe.h"

namespace spillway::estimator {
namespace {

int64_t nemo_count(Recipe& recipe, const std::string& key) {
  return std::max<int64_t>(1, std::strtoll(recipe.text(key, "1").c_str(), nullptr, 10));
}

void nemo_adapter(Recipe& recipe, const std::string& section) {
  if (!recipe.flag(section + "enabled")) return;
  recipe.lora("lora", section + "dim", "8", "", "");
  recipe.copy(section + "dropout", "adapter.dropout");
  recipe.set("adapter.dtype", "same");
  recipe.set("adapter.targets", "all-linear");
  if (!recipe.flag(section + "match_all_linear", true))
    recipe.copy(section + "target_modules", "adapter.targets");
}

// Through PyTorch's distributed tensors: FSDP2, with weights in the precision of training beside fp32 ones.
void nemo_dtensor(Recipe& recipe) {
  const std::string section = "policy.dtensor_cfg.";
  recipe.set("train.precision",
             recipe.text("policy.precision", "bfloat16") == "float32" ? "fp32" : "autocast");
  recipe.set("parallel.zero", "3");
  recipe.copy(section + "tensor_parallel_size", "parallel.tensor");
  recipe.copy(section + "context_parallel_size", "parallel.context");
  recipe.copy(section + "expert_parallel_size", "parallel.expert");
  recipe.copy(section + "dp_replicate_size", "parallel.replicas");
  if (recipe.flag(section + "sequence_parallel")) recipe.set("parallel.sequence_parallel", "true");
  if (recipe.flag(section + "activation_checkpointing")) recipe.set("train.recompute", "full");
  if (recipe.flag(section + "cpu_offload")) {
    recipe.set("offload.optimizer", "host");
    recipe.set("offload.parameters", "host");
  }
  nemo_adapter(recipe, section + "lora_cfg.");
  if (!recipe.flag("policy.optimizer.kwargs.fused"))
    recipe.set("train.optimizer_step",
               recipe.flag("policy.optimizer.kwargs.foreach", true) ? "foreach" : "for-loop");
}

void nemo_megatron(Recipe& recipe) {
  const std::string section = "policy.megatron_cfg.";
  recipe.set("train.framework", "megatron");
  recipe.set("train.precision", "bf16-mixed");
  recipe.set("train.gradients", "fp32");
  recipe.set("parallel.zero", "1");
  recipe.copy(section + "tensor_model_parallel_size", "parallel.tensor");
  recipe.copy(section + "pipeline_model_parallel_size", "parallel.pipeline");
  recipe.copy(section + "context_parallel_size", "parallel.context");
  recipe.copy(section + "expert_model_parallel_size", "parallel.expert");
  recipe.copy(section + "expert_tensor_parallel_size", "parallel.expert_tensor");
  if (recipe.flag(section + "sequence_parallel")) recipe.set("parallel.sequence_parallel", "true");
  if (recipe.flag(section + "activation_checkpointing"))
    recipe.set("train.recompute", recipe.text(section + "recompute_granularity", "full"));
  if (recipe.flag(section + "peft.enabled"))
    recipe.refuse(section + "peft.enabled",
                  "not modelled: adapters are counted beside transformers' own code");
  recipe.refuse_flag(section + "fine_grained_activation_offloading", "modules leave for the host one by one");
}

}  // namespace

void read_nemo_rl(Recipe& recipe) {
  if (!recipe.says_any("sft."))
    recipe.refuse(
        "policy.model_name",
        "a recipe of reinforcement learning or of preferences is not modelled: it holds a reference model, "
        "or generates text in between; allowed: recipes with a section sft");
  recipe.set_model(recipe.text("policy.model_name"));
  recipe.copy("policy.train_micro_batch_size", "train.micro_batch");
  recipe.copy("policy.max_total_sequence_length", "train.sequence");
  if (recipe.says("cluster.gpus_per_node"))
    recipe.set("parallel.gpus", std::to_string(nemo_count(recipe, "cluster.gpus_per_node") *
                                               nemo_count(recipe, "cluster.num_nodes")));
  const std::string optimizer = last_part(recipe.text("policy.optimizer.name", "AdamW"));
  if (optimizer != "AdamW" && optimizer != "Adam")
    recipe.refuse("policy.optimizer.name",
                  fmt::format("'{}' is not modelled; allowed: AdamW, Adam", optimizer));
  recipe.flag("policy.megatron_cfg.enabled") ? nemo_megatron(recipe) : nemo_dtensor(recipe);
  recipe.ignore({"sft.*", "checkpointing.*", "data.*", "logger.*", "cluster.*", "defaults",
                 "policy.tokenizer.*", "policy.train_global_batch_size", "policy.dtensor_cfg.*",
                 "policy.megatron_cfg.*", "policy.optimizer*", "policy.scheduler*", "policy.max_grad_norm",
                 "policy.dynamic_batching.*", "policy.sequence_packing.*",
                 "policy.make_sequence_length_divisible_by", "policy.offload_optimizer_for_logprob",
                 "policy.precision", "policy.hf_config_overrides.*"});
}

}  // namespace spillway::estimator
