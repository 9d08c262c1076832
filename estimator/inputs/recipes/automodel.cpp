// NeMo Automodel's recipes. Source of what their keys mean: NVIDIA-NeMo/Automodel,
// nemo_automodel/recipes/llm, components/distributed, components/_peft, components/loss.
#include <fmt/format.h>

#include <cstdlib>

#include "estimator/inputs/recipes/recipe.h"

namespace spillway::estimator {
namespace {

void automodel_model(Recipe& recipe) {
  const std::string target = recipe.text("model._target_");
  if (target.find("CausalLM") == std::string::npos)
    recipe.refuse("model._target_",
                  fmt::format("'{}' is not modelled; allowed: NeMoAutoModelForCausalLM.from_pretrained, "
                              "from_config",
                              target));
  for (const char* key :
       {"model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path", "model.config"})
    if (recipe.model().empty() && recipe.says(key)) recipe.set_model(recipe.text(key));
  const std::string dtype = recipe.text("model.torch_dtype", recipe.text("model.config.torch_dtype", "auto"));
  const bool fp32 = dtype.find("32") != std::string::npos;
  recipe.precision(!fp32, false, true);
  recipe.attention("model.attn_implementation");
  recipe.ignore({"model.trust_remote_code", "model.config.*", "model.use_cache", "model.force_hf",
                 "model.output_hidden_states", "model.load_base_model", "model.name"});
}

void automodel_adapter(Recipe& recipe) {
  if (!recipe.says("peft._target_")) return;
  if (last_part(recipe.text("peft._target_")) != "PeftConfig")
    recipe.refuse("peft._target_", "not modelled; allowed: PeftConfig");
  recipe.lora("lora", "peft.dim", "8", "peft.use_dora", "");
  recipe.copy("peft.dropout", "adapter.dropout");
  recipe.set("adapter.dtype", "same");
  recipe.set("adapter.targets", "all-linear");
  if (recipe.says("peft.target_modules") && !recipe.flag("peft.match_all_linear")) {
    std::string names = recipe.text("peft.target_modules");
    for (size_t at = names.find("*."); at != std::string::npos; at = names.find("*.")) names.erase(at, 2);
    if (names.find('*') == std::string::npos) recipe.set("adapter.targets", names);
  }
  recipe.ignore({"peft.alpha", "peft.use_triton", "peft.match_all_linear", "peft.moe_rank_scaling"});
}

int64_t automodel_degree(Recipe& recipe, const char* name) {
  const std::string key = fmt::format("distributed.{}", name);
  return recipe.says(key) ? std::max(1L, std::strtol(recipe.text(key).c_str(), nullptr, 10)) : 1;
}

void automodel_parallel(Recipe& recipe) {
  const std::string strategy =
      recipe.text("distributed.strategy", last_part(recipe.text("distributed._target_", "fsdp2")));
  recipe.set("parallel.zero", strategy == "ddp" || strategy == "DDPManager" ? "0" : "3");
  const int64_t tensor = automodel_degree(recipe, "tp_size"), context = automodel_degree(recipe, "cp_size"),
                pipeline = automodel_degree(recipe, "pp_size"), expert = automodel_degree(recipe, "ep_size"),
                data = automodel_degree(recipe, "dp_size");
  recipe.set("parallel.tensor", std::to_string(tensor));
  recipe.set("parallel.context", std::to_string(context));
  recipe.set("parallel.pipeline", std::to_string(pipeline));
  recipe.set("parallel.expert", std::to_string(expert));
  recipe.set("parallel.replicas", std::to_string(automodel_degree(recipe, "dp_replicate_size")));
  if (data > 1) recipe.set("parallel.gpus", std::to_string(data * tensor * context * pipeline));
  if (recipe.flag("distributed.sequence_parallel")) recipe.set("parallel.sequence_parallel", "true");
  if (recipe.flag("distributed.activation_checkpointing") || recipe.flag("fsdp.activation_checkpointing"))
    recipe.set("train.recompute", "full");
  recipe.ignore({"distributed.dp_size", "distributed.defer_fsdp_grad_sync", "distributed.moe.*",
                 "distributed.pipeline.*", "distributed.patch_is_packed_sequence"});
}

void automodel_training(Recipe& recipe) {
  recipe.set("train.micro_batch", recipe.text("step_scheduler.local_batch_size", "1"));
  for (const char* key : {"packed_sequence.packed_sequence_size", "dataset.seq_len", "dataset.seq_length",
                          "dataset.max_seq_length", "dataset.limit_dataset_samples_length"})
    if (!recipe.has_set("train.sequence") && recipe.text(key, "0") != "0") recipe.copy(key, "train.sequence");
  const std::string optimizer = last_part(recipe.text("optimizer._target_", "AdamW"));
  if (optimizer == "SGD") {
    recipe.set("train.optimizer", "sgd");
  } else if (optimizer != "Adam" && optimizer != "AdamW") {
    recipe.refuse("optimizer._target_",
                  fmt::format("'{}' is not modelled; allowed: Adam, AdamW, SGD", optimizer));
  }
  if (!recipe.flag("optimizer.fused")) recipe.set("train.optimizer_step", "foreach");
  if (recipe.text("optimizer.foreach") == "false" && !recipe.flag("optimizer.fused"))
    recipe.set("train.optimizer_step", "for-loop");
  const std::string loss = last_part(recipe.text("loss_fn._target_"));
  if (loss == "FusedLinearCrossEntropy") recipe.set("train.loss", "fused-linear");
  if (loss == "ChunkedCrossEntropy") recipe.set("train.loss", "chunked");
  if (recipe.flag("quantization.load_in_4bit")) recipe.set("model.weights", "nf4");
  if (recipe.flag("quantization.load_in_8bit")) recipe.set("model.weights", "int8");
}

}  // namespace

void read_automodel(Recipe& recipe) {
  for (const char* start :
       {"teacher_model.", "flow_matching.", "dllm.", "vae.", "dflash.", "freeze_config."}) {
    if (recipe.says_any(start))
      recipe.refuse(start, "not modelled: it holds a second model, or trains another task or a part");
  }
  recipe.refuse_flag("fp8.enabled", "the copies in 8 bits are another library's");
  recipe.refuse_said("qat._target_", "weights are quantised while they are trained");
  automodel_model(recipe);
  automodel_adapter(recipe);
  automodel_parallel(recipe);
  automodel_training(recipe);
  recipe.ignore({"recipe",       "step_scheduler.*", "dist_env.*",        "rng.*",         "dataset.*",
                 "dataloader.*", "validation_*",     "packed_sequence.*", "optimizer.*",   "lr_scheduler.*",
                 "checkpoint.*", "wandb.*",          "mlflow.*",          "ci.*",          "seed",
                 "loss_fn.*",    "clip_grad_norm.*", "tokenizer.*",       "benchmark.*",   "nvtx",
                 "skypilot.*",   "quantization.*",   "performance.*",     "moe_metrics.*", "fp8.*"});
}

}  // namespace spillway::estimator
