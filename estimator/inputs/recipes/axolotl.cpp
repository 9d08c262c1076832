// Axolotl's recipes. Source of what its keys mean: axolotl, utils/schemas/config.py,
// utils/config/__init__.py, loaders/model.py.
#include <fmt/format.h>

#include "estimator/inputs/recipes/recipe.h"

namespace spillway::estimator {
namespace {

void axolotl_ignore_rest(Recipe& recipe) {
  recipe.ignore({"output_dir",
                 "datasets*",
                 "dataset*",
                 "test_datasets*",
                 "pretraining_dataset*",
                 "val_set_size",
                 "tf32",
                 "wandb*",
                 "use_wandb",
                 "mlflow*",
                 "comet*",
                 "swanlab*",
                 "use_swanlab",
                 "trackio*",
                 "use_tensorboard",
                 "otel*",
                 "use_otel_metrics",
                 "hub_*",
                 "hf_use_auth_token",
                 "push_dataset_to_hub",
                 "save*",
                 "eval_steps",
                 "eval_strategy",
                 "evaluation_strategy",
                 "evals_per_epoch",
                 "eval_table_size",
                 "eval_max_new_tokens",
                 "do_causal_lm_eval",
                 "eval_causal_lm_metrics*",
                 "logging*",
                 "learning_rate",
                 "lr_*",
                 "cosine*",
                 "eta_min",
                 "warmup*",
                 "weight_decay",
                 "num_epochs",
                 "max_steps",
                 "adam_*",
                 "max_grad_norm",
                 "seed",
                 "group_by_length",
                 "loss_watchdog*",
                 "resume_from_checkpoint",
                 "auto_resume_from_checkpoints",
                 "local_rank",
                 "special_tokens*",
                 "tokens*",
                 "tokenizer*",
                 "processor*",
                 "chat_template*",
                 "eot_tokens*",
                 "train_on_inputs",
                 "strict",
                 "debug",
                 "early_stopping_patience",
                 "sample_packing*",
                 "eval_sample_packing",
                 "eval_batch_size",
                 "pad_to_sequence_len",
                 "skip_prepare_dataset",
                 "remove_unused_columns",
                 "shuffle_merged_datasets",
                 "min_sample_len",
                 "trust_remote_code",
                 "model_type",
                 "is_*_derived_model",
                 "revision_of_model",
                 "lora_alpha",
                 "lora_model_dir",
                 "lora_fan_in_fan_out",
                 "gradient_checkpointing_kwargs*",
                 "low_cpu_mem_usage",
                 "torchdistx_path",
                 "device_map",
                 "use_ray",
                 "ray_num_workers",
                 "gptq_groupsize",
                 "gptq_model_v1",
                 "gptq_disable_exllama",
                 "flash_optimum",
                 "model_config*",
                 "fsdp_version",
                 "ddp_find_unused_parameters",
                 "jagged_restart*",
                 "total_num_tokens",
                 "timeout*",
                 "lora_qkv_kernel",
                 "lora_o_kernel",
                 "lora_mlp_kernel",
                 "experimental_skip_move_to_device"});
}

// Weights are loaded in the precision of training.
void axolotl_precision(Recipe& recipe) {
  const std::string says_bf16 = recipe.text("bf16");
  const bool bf16 =
      says_bf16 == "full" || recipe.flag("bf16", says_bf16 == "auto") || recipe.flag("bfloat16");
  const bool fp16 = recipe.flag("fp16") || recipe.flag("float16");
  recipe.precision(bf16, fp16 && !bf16, true);
}

void axolotl_adapter(Recipe& recipe) {
  const std::string adapter = recipe.says("adapter") ? recipe.text("adapter") : "";
  const bool four = recipe.flag("load_in_4bit"), eight = recipe.flag("load_in_8bit");
  if (recipe.flag("gptq"))
    recipe.warn("gptq: weights have the bytes that the model's own quantization_config says");
  if (adapter.empty()) {
    recipe.ignore({"lora_r", "lora_dropout", "lora_target_linear", "lora_target_modules"});
    return;
  }
  if (adapter != "lora" && adapter != "qlora")
    return recipe.refuse("adapter", fmt::format("'{}' is not modelled; allowed: lora, qlora", adapter));
  recipe.lora(four ? "qlora" : "lora", "lora_r", "8", "peft_use_dora", "peft_use_rslora");
  if (four || eight) recipe.set("model.weights", four ? "nf4" : "int8");
  recipe.copy("lora_dropout", "adapter.dropout");
  recipe.copy("lora_modules_to_save", "adapter.modules_to_save");
  recipe.targets("lora_target_modules", {"all-linear"});
  if (recipe.flag("lora_target_linear")) recipe.set("adapter.targets", "all-linear");
}

// Says what is divided over ranks.
void axolotl_parallel(Recipe& recipe) {
  if (recipe.says("deepspeed")) return recipe.set_deepspeed(recipe.text("deepspeed"));
  recipe.copy("tensor_parallel_size", "parallel.tensor");
  recipe.copy("context_parallel_size", "parallel.context");
  recipe.copy("expert_parallel_size", "parallel.expert");
  recipe.copy("dp_replicate_size", "parallel.replicas");
  const std::string words = recipe.text("fsdp");
  const bool fsdp = !words.empty() || recipe.says("fsdp_version") || recipe.says_any("fsdp_config.") ||
                    recipe.says("dp_shard_size");
  if (!fsdp) return;
  const std::string strategy =
      recipe.text("fsdp_config.sharding_strategy", recipe.text("fsdp_config.fsdp_sharding_strategy"));
  const bool keeps_gathered = words.find("shard_grad_op") != std::string::npos ||
                              strategy == "SHARD_GRAD_OP" ||
                              !recipe.flag("fsdp_config.reshard_after_forward", true);
  recipe.set("parallel.zero", keeps_gathered ? "2" : "3");
  if (recipe.flag("fsdp_config.activation_checkpointing") ||
      recipe.flag("fsdp_config.fsdp_activation_checkpointing"))
    recipe.set("train.recompute", "full");
  if (recipe.flag("fsdp_config.offload_params") || recipe.flag("fsdp_config.fsdp_offload_params")) {
    recipe.set("offload.optimizer", "host");
    recipe.set("offload.parameters", "host");
  }
  recipe.ignore({"fsdp_config.*"});
}

void axolotl_loss_and_kernels(Recipe& recipe) {
  const bool cut = recipe.text("plugins").find("cut_cross_entropy") != std::string::npos;
  if (recipe.flag("cut_cross_entropy", cut) || recipe.flag("liger_fused_linear_cross_entropy"))
    recipe.set("train.loss", "fused-linear");
  recipe.attention("attn_implementation");
  if (recipe.flag("eager_attention")) recipe.set("train.attention", "materialised");
  recipe.ignore({"flash_attention", "sdp_attention", "xformers_attention", "flex_attention"});
}

}  // namespace

void read_axolotl(Recipe& recipe) {
  recipe.refuse_said("rl", "it holds more than one model, or generates text in between");
  recipe.refuse_said("reward_model", "its head and pairs of texts are another task's");
  recipe.refuse_said("process_reward_model", "its head is another task's");
  recipe.refuse_flag("relora", "weights are merged in between");
  recipe.refuse_flag("diffusion", "its loss is another task's");
  recipe.refuse_said("unfrozen_parameters*", "a part of the model is trained");
  recipe.refuse_said("unfrozen_parameters", "a part of the model is trained");
  if (recipe.says_any("qat."))
    recipe.refuse("qat", "not modelled: weights are quantised while they are trained");
  recipe.set_model(recipe.text("base_model"));
  recipe.ignore({"base_model*"});
  recipe.copy("sequence_len", "train.sequence");
  recipe.copy("micro_batch_size", "train.micro_batch");
  recipe.copy("gradient_accumulation_steps", "train.gradient_accumulation");
  recipe.optimizer("optimizer");
  recipe.projection_rank("optim_args");
  recipe.projected("optim_target_modules", {"all_linear", "all-linear"});
  recipe.copy("optim_args.rank", "train.optimizer_rank");
  recipe.copy("lisa_n_layers", "train.layers_at_a_time");
  recipe.ignore({"lisa_*", "optim_args.*"});
  axolotl_precision(recipe);
  const std::string checkpointing = recipe.text("gradient_checkpointing");
  const bool offloads = checkpointing.rfind("offload", 0) == 0;
  if (offloads || recipe.flag("gradient_checkpointing")) recipe.set("train.recompute", "full");
  if (offloads || recipe.text("activation_offloading") == "legacy" || recipe.flag("activation_offloading"))
    recipe.set("offload.activations", "host");
  axolotl_adapter(recipe);
  axolotl_parallel(recipe);
  axolotl_loss_and_kernels(recipe);
  axolotl_ignore_rest(recipe);
}

}  // namespace spillway::estimator
