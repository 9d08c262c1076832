// LLaMA-Factory's recipes, of its first and of its second form (v1). Source of what its keys mean:
// LLaMA-Factory, hparams/*_args.py, model/adapter.py, model/model_utils; v1/config.
#include <fmt/format.h>

#include "estimator/inputs/recipes/recipe.h"

namespace spillway::estimator {
namespace {

void factory_ignore_rest(Recipe& recipe) {
  recipe.ignore({"do_train",
                 "do_eval",
                 "do_predict",
                 "dataset*",
                 "eval_*",
                 "template",
                 "output_dir",
                 "overwrite*",
                 "max_samples",
                 "preprocessing*",
                 "dataloader*",
                 "logging*",
                 "save*",
                 "plot_loss",
                 "report_to",
                 "learning_rate",
                 "lr_*",
                 "num_train_epochs",
                 "max_steps",
                 "warmup*",
                 "weight_decay",
                 "max_grad_norm",
                 "adam_*",
                 "seed",
                 "ddp_*",
                 "resume_from_checkpoint",
                 "trust_remote_code",
                 "run_name",
                 "lora_alpha",
                 "val_size",
                 "per_device_eval_batch_size",
                 "packing",
                 "neat_packing",
                 "tokenized_path",
                 "streaming",
                 "cache_dir",
                 "hub_*",
                 "predict_with_generate",
                 "ray_*",
                 "adapter_name_or_path",
                 "loraplus_*",
                 "pissa*",
                 "image_*",
                 "video_*",
                 "model_class",
                 "train_dataset*",
                 "sample_backend",
                 "max_new_tokens",
                 "template*",
                 "infer_*",
                 "pref_beta",
                 "enable_thinking",
                 "include_num_input_tokens_seen",
                 "use_dft_loss",
                 "use_eaft_loss",
                 "fsdp_transformer_layer_cls_to_wrap",
                 "gradient_checkpointing_kwargs*",
                 "use_reentrant_gc"});
}

void factory_refuse_tasks(Recipe& recipe) {
  const std::string stage = recipe.text("stage", "sft");
  if (stage != "sft" && stage != "pt")
    recipe.refuse("stage",
                  fmt::format("'{}' is not modelled: it holds a second model, a value head or pairs of "
                              "texts; allowed: sft, pt",
                              stage));
  if (!recipe.flag("do_train"))
    recipe.refuse("do_train",
                  "not true: nothing is trained; allowed: true, or --serve with the model's name");
  for (const char* key : {"use_llama_pro", "use_kt", "use_unsloth", "use_asft_loss", "use_mca"})
    recipe.refuse_flag(key, "what it holds is another optimizer's or library's");
  recipe.refuse_said("mixture_of_depths", "layers pass tokens by");
}

// GaLore and APOLLO project gradients, BAdam trains a layer at a time.
void factory_optimizer(Recipe& recipe) {
  recipe.optimizer("optim");
  if (recipe.flag("use_adam_mini")) recipe.set("train.optimizer", "adam-mini");
  if (recipe.flag("use_muon")) recipe.set("train.optimizer", "muon");
  int count = 0;
  for (const std::string name : {"galore", "apollo", "badam"}) count += recipe.flag("use_" + name) ? 1 : 0;
  if (count > 1) recipe.refuse("use_galore, use_apollo, use_badam", "allowed: one of them");
  const std::string optimizer = recipe.text("optim", "adamw_torch");
  const bool plain = optimizer == "adamw_torch", eight = optimizer.find("adamw") != std::string::npos &&
                                                         optimizer.find("8bit") != std::string::npos;
  if (recipe.flag("use_galore")) {
    if (!plain && !eight && optimizer != "adafactor")
      recipe.refuse("optim", fmt::format("'{}' is not allowed beside use_galore", optimizer));
    recipe.set("train.optimizer", eight ? "galore8bit" : plain ? "galore" : "galore-adafactor");
  }
  if (recipe.flag("use_apollo")) {
    if (!plain) recipe.refuse("optim", fmt::format("'{}' is not allowed beside use_apollo", optimizer));
    recipe.set("train.optimizer", "apollo");
  }
  for (const std::string name : {"galore", "apollo"}) {
    if (!recipe.flag("use_" + name)) continue;
    recipe.set("train.optimizer_rank", recipe.text(name + "_rank", "16"));
    recipe.projected(name + "_target", {"all"});
    if (recipe.flag(name + "_layerwise")) recipe.set("train.optimizer_step", "in-backward");
  }
  if (recipe.flag("use_badam")) {
    if (recipe.text("badam_mode", "layer") != "layer")
      recipe.refuse("badam_mode", "not modelled: a share of each weight is trained; allowed: layer");
    recipe.set("train.optimizer", "badam");
  }
  recipe.ignore({"galore_*", "apollo_*", "badam_*"});
}

// Trained weights are fp32 ones unless it is pure, or DeepSpeed and FSDP keep copies.
void factory_precision(Recipe& recipe, bool trains_all) {
  const bool pure = recipe.flag("pure_bf16");
  const bool bf16 = recipe.flag("bf16") || pure;
  recipe.precision(bf16, recipe.flag("fp16"), pure || !trains_all);
}

void factory_quantised(Recipe& recipe, const std::string& bits_key) {
  const std::string bits = recipe.text(bits_key);
  if (!recipe.says(bits_key)) return;
  if (bits != "4" && bits != "8")
    return recipe.refuse(bits_key, fmt::format("'{}' is not modelled; allowed: 4, 8", bits));
  recipe.set("model.weights", bits == "4" ? "nf4" : "int8");
}

void factory_adapter(Recipe& recipe, const std::string& prefix, const char* targets) {
  const bool first = prefix.empty();
  recipe.lora("lora", first ? "lora_rank" : prefix + "r", "8", prefix + "use_dora", prefix + "use_rslora");
  recipe.set("adapter.targets", "all-linear");
  recipe.targets(first ? targets : prefix + "target_modules", {"all"});
  recipe.copy(prefix + "lora_dropout", "adapter.dropout");
  recipe.copy(prefix + "additional_target", "adapter.modules_to_save");
  recipe.ignore({"peft_config.lora_alpha"});
}

}  // namespace

void read_llama_factory(Recipe& recipe) {
  factory_refuse_tasks(recipe);
  recipe.set_model(recipe.text("model_name_or_path"));
  const std::string kind = recipe.text("finetuning_type", "lora");
  if (kind != "full" && kind != "lora")
    recipe.refuse("finetuning_type", fmt::format("'{}' is not modelled; allowed: full, lora", kind));
  recipe.set("train.sequence", recipe.text("cutoff_len", "2048"));
  recipe.set("train.micro_batch", recipe.text("per_device_train_batch_size", "8"));
  recipe.copy("gradient_accumulation_steps", "train.gradient_accumulation");
  factory_precision(recipe, kind == "full");
  factory_optimizer(recipe);
  if (kind == "lora") factory_adapter(recipe, "", "lora_target");
  factory_quantised(recipe, "quantization_bit");
  recipe.ignore({"quantization_method", "double_quantization"});
  // Layers are recomputed unless it says otherwise.
  if (!recipe.flag("disable_gradient_checkpointing")) recipe.set("train.recompute", "full");
  recipe.attention("flash_attn");
  if (recipe.flag("enable_liger_kernel")) recipe.set("train.loss", "fused-linear");
  if (recipe.says("deepspeed")) recipe.set_deepspeed(recipe.text("deepspeed"));
  if (recipe.says("fsdp")) recipe.set("parallel.zero", "3");
  recipe.copy("tensor_model_parallel_size", "parallel.tensor");
  recipe.copy("pipeline_model_parallel_size", "parallel.pipeline");
  recipe.copy("expert_model_parallel_size", "parallel.expert");
  recipe.copy("context_parallel_size", "parallel.context");
  recipe.copy("freeze_vision_tower", "train.freeze_vision");
  recipe.copy("image_max_pixels", "train.image_pixels");
  factory_ignore_rest(recipe);
}

void read_llama_factory_v1(Recipe& recipe) {
  recipe.set_model(recipe.text("model"));
  if (!recipe.says("train_dataset")) recipe.refuse("train_dataset", "missing: nothing is trained");
  const std::string kind = recipe.text("peft_config.name", "full");
  if (kind != "full" && kind != "lora")
    recipe.refuse("peft_config.name", fmt::format("'{}' is not modelled; allowed: lora", kind));
  recipe.refuse_said("stage", "it holds a second model");
  recipe.set("train.sequence", recipe.text("cutoff_len", "2048"));
  recipe.set("train.micro_batch", recipe.text("micro_batch_size", "1"));
  recipe.copy("gradient_accumulation_steps", "train.gradient_accumulation");
  recipe.precision(recipe.flag("bf16", true), false, true);
  if (recipe.says("optim_config.name")) recipe.optimizer("optim_config.name");
  recipe.ignore({"optim_config.*", "kernel_config.*", "dist_config.*", "batching_*"});
  if (kind == "lora") factory_adapter(recipe, "peft_config.", "");
  factory_quantised(recipe, "quant_config.quantization_bit");
  recipe.ignore({"quant_config.name"});
  if (recipe.flag("enable_activation_checkpointing", true)) recipe.set("train.recompute", "full");
  recipe.attention("flash_attn");
  const std::string engine = recipe.text("dist_config.name");
  if (engine == "deepspeed") recipe.set_deepspeed(recipe.text("dist_config.config_file"));
  if (engine.rfind("fsdp", 0) == 0) recipe.set("parallel.zero", "3");
  recipe.copy("cp_size", "parallel.context");
  recipe.ignore({"cp_mode"});
  factory_ignore_rest(recipe);
}

}  // namespace spillway::estimator
