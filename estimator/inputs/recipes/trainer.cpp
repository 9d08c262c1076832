// Hugging Face's TrainingArguments, with TRL's ModelConfig and SFTConfig where a file holds them too, and
// accelerate's configuration. Source: transformers, training_args.py; trl, trainer/model_config.py;
// accelerate, commands/config/config_args.py, utils/dataclasses.py.
#include <fmt/format.h>

#include "estimator/inputs/recipes/recipe.h"

namespace spillway::estimator {
namespace {

void trainer_adapter(Recipe& recipe) {
  const bool four = recipe.flag("load_in_4bit"), eight = recipe.flag("load_in_8bit");
  if (four || eight) recipe.set("model.weights", four ? "nf4" : "int8");
  if (!recipe.flag("use_peft")) return;
  recipe.lora("lora", "lora_r", "16", "use_dora", "use_rslora");
  recipe.targets("lora_target_modules", {"all-linear"});
  recipe.copy("lora_dropout", "adapter.dropout");
  recipe.copy("lora_modules_to_save", "adapter.modules_to_save");
  recipe.ignore({"lora_alpha", "lora_task_type"});
}

// "full_shard auto_wrap", "shard_grad_op", with "offload" among them.
void trainer_fsdp_words(Recipe& recipe) {
  if (!recipe.says("fsdp")) return;
  const std::string words = recipe.text("fsdp");
  recipe.set("parallel.zero", words.find("shard_grad_op") != std::string::npos ? "2" : "3");
  if (words.find("offload") != std::string::npos) {
    recipe.set("offload.optimizer", "host");
    recipe.set("offload.parameters", "host");
  }
  if (recipe.flag("fsdp_config.activation_checkpointing")) recipe.set("train.recompute", "full");
  recipe.ignore({"fsdp_config.*"});
}

}  // namespace

void read_trainer(Recipe& recipe) {
  recipe.set_model(recipe.text("model_name_or_path"));
  recipe.refuse_said("ref_model", "it holds a second model");
  recipe.set("train.micro_batch", recipe.text("per_device_train_batch_size", "8"));
  recipe.copy("gradient_accumulation_steps", "train.gradient_accumulation");
  for (const char* key : {"max_length", "max_seq_length", "block_size", "model_max_length"})
    recipe.copy(key, "train.sequence");
  recipe.optimizer("optim");
  recipe.projection_rank("optim_args");
  recipe.projected("optim_target_modules", {"all-linear"});
  std::string dtype = recipe.text("dtype", recipe.text("torch_dtype"));
  const bool bf16 = recipe.flag("bf16") || dtype == "bfloat16";
  const bool fp16 = recipe.flag("fp16") || dtype == "float16";
  recipe.precision(bf16, fp16, dtype == "bfloat16" || dtype == "float16" || recipe.flag("use_peft"));
  if (recipe.flag("gradient_checkpointing")) recipe.set("train.recompute", "full");
  if (recipe.flag("activation_offloading")) recipe.set("offload.activations", "host");
  recipe.attention("attn_implementation");
  if (recipe.flag("use_liger_kernel")) recipe.set("train.loss", "fused-linear");
  trainer_adapter(recipe);
  if (recipe.says("deepspeed")) recipe.set_deepspeed(recipe.text("deepspeed"));
  trainer_fsdp_words(recipe);
  recipe.ignore({"output_dir",
                 "overwrite*",
                 "do_*",
                 "learning_rate",
                 "weight_decay",
                 "lr_*",
                 "num_train_epochs",
                 "max_steps",
                 "warmup*",
                 "adam_*",
                 "max_grad_norm",
                 "seed",
                 "data_seed",
                 "tf32",
                 "logging*",
                 "log_*",
                 "save*",
                 "eval_*",
                 "evaluation_strategy",
                 "per_device_eval_batch_size",
                 "report_to",
                 "run_name",
                 "push_to_hub*",
                 "hub_*",
                 "dataset*",
                 "train_file",
                 "validation_file",
                 "dataloader*",
                 "remove_unused_columns",
                 "group_by_length",
                 "length_column_name",
                 "load_best_model_at_end",
                 "metric_for_best_model",
                 "greater_is_better",
                 "disable_tqdm",
                 "ddp_*",
                 "local_rank",
                 "resume_from_checkpoint",
                 "ignore_data_skip",
                 "label_names",
                 "packing",
                 "preprocessing_num_workers",
                 "tokenizer_name*",
                 "trust_remote_code",
                 "use_fast_tokenizer",
                 "gradient_checkpointing_kwargs*",
                 "include_*",
                 "skip_*",
                 "prediction_loss_only",
                 "no_cuda",
                 "use_cpu",
                 "past_index",
                 "debug",
                 "chat_template*",
                 "bnb_4bit_*",
                 "use_bnb_nested_quant",
                 "accelerator_config*",
                 "full_determinism",
                 "restore_callback*",
                 "eos_token",
                 "pad_token",
                 "average_tokens_across_devices",
                 "torch_empty_cache_steps",
                 "label_smoothing_factor"});
}

void read_accelerate(Recipe& recipe) {
  const std::string kind = recipe.text("distributed_type", "NO");
  recipe.copy("num_processes", "parallel.gpus");
  const std::string precision = recipe.text("mixed_precision", "no");
  if (precision == "fp8") recipe.refuse("mixed_precision", "'fp8' is not modelled; allowed: no, fp16, bf16");
  const bool deepspeed = kind == "DEEPSPEED";
  recipe.precision(precision == "bf16", precision == "fp16", false);
  if (deepspeed && precision != "no") recipe.set("train.precision", precision + "-mixed");
  recipe.copy("gradient_accumulation_steps", "train.gradient_accumulation");
  if (kind == "FSDP") {
    const std::string strategy = recipe.text("fsdp_config.fsdp_sharding_strategy", "FULL_SHARD");
    const bool resharded = recipe.flag("fsdp_config.fsdp_reshard_after_forward", true);
    const bool none = strategy == "NO_SHARD" || strategy == "3";
    const bool gradients = strategy == "SHARD_GRAD_OP" || strategy == "2" || !resharded;
    recipe.set("parallel.zero", none ? "0" : gradients ? "2" : "3");
    if (strategy.rfind("HYBRID", 0) == 0)
      recipe.warn(
          fmt::format("fsdp_config.fsdp_sharding_strategy {}: parallel.replicas says over how many "
                      "groups; 1 is counted",
                      strategy));
    if (recipe.flag("fsdp_config.fsdp_offload_params")) {
      recipe.set("offload.optimizer", "host");
      recipe.set("offload.parameters", "host");
    }
    if (recipe.flag("fsdp_config.fsdp_activation_checkpointing")) recipe.set("train.recompute", "full");
  } else if (deepspeed) {
    if (recipe.says("deepspeed_config.deepspeed_config_file")) {
      recipe.set_deepspeed(recipe.text("deepspeed_config.deepspeed_config_file"));
    } else {
      recipe.set("communication.engine", "deepspeed");
      recipe.set("parallel.zero", recipe.text("deepspeed_config.zero_stage", "2"));
    }
    recipe.copy("deepspeed_config.gradient_accumulation_steps", "train.gradient_accumulation");
    for (const char* what : {"optimizer", "param"}) {
      const std::string device = recipe.text(fmt::format("deepspeed_config.offload_{}_device", what), "none");
      if (device == "none") continue;
      recipe.set(std::string(what) == "param" ? "offload.parameters" : "offload.optimizer",
                 device == "cpu" ? "host" : device);
    }
  } else if (kind != "NO" && kind != "MULTI_GPU") {
    recipe.refuse("distributed_type",
                  fmt::format("'{}' is not modelled; allowed: NO, MULTI_GPU, FSDP, DEEPSPEED", kind));
  }
  recipe.ignore({"compute_environment",
                 "debug",
                 "downcast_bf16",
                 "enable_cpu_affinity",
                 "machine_rank",
                 "main_*",
                 "num_machines",
                 "rdzv_*",
                 "same_network",
                 "tpu_*",
                 "use_cpu",
                 "gpu_ids",
                 "fsdp_config.*",
                 "deepspeed_config.gradient_clipping",
                 "deepspeed_config.zero3_*",
                 "deepspeed_config.deepspeed_*",
                 "deepspeed_config.offload_*_nvme_path",
                 "command_file",
                 "commands",
                 "dynamo_config.*"});
}

}  // namespace spillway::estimator
