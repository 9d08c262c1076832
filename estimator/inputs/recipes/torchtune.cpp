// torchtune's recipes. Source of what their keys mean: torchtune, recipes/*.py, models/*/_model_builders.py,
// modules/loss.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "estimator/inputs/recipes/recipe.h"

namespace spillway::estimator {
namespace {

// How a builder's name begins, and what the model is called; in what is left, '_' stands for a point.
struct Builder {
  std::string_view start;
  std::string_view model;
};
constexpr std::array<Builder, 14> kBuilders = {{{"llama2_", "llama-2-"},
                                                {"llama3_1_", "llama-3.1-"},
                                                {"llama3_2_", "llama-3.2-"},
                                                {"llama3_3_", "llama-3.3-"},
                                                {"llama3_", "llama-3-"},
                                                {"code_llama2_", "codellama-"},
                                                {"gemma2_", "gemma-2-"},
                                                {"gemma_", "gemma-"},
                                                {"mistral_", "mistral-"},
                                                {"phi3_", "phi-3-"},
                                                {"phi4_14b", "phi-4"},
                                                {"qwen2_5_", "qwen2.5-"},
                                                {"qwen2_", "qwen2-"},
                                                {"qwen3_", "qwen3-"}}};

bool torchtune_take_start(std::string& text, std::string_view start) {
  if (text.rfind(start, 0) != 0) return false;
  text.erase(0, start.size());
  return true;
}

void torchtune_take_end(std::string& text, std::string_view end) {
  if (text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0)
    text.resize(text.size() - end.size());
}

// "llama3_1_8b" to "llama-3.1-8b"; empty where no model is built so.
std::string torchtune_model_of(std::string builder) {
  for (const Builder& known : kBuilders) {
    if (!torchtune_take_start(builder, known.start)) continue;
    const bool instructed = known.start == "qwen2_5_" && builder.find("_instruct") != std::string::npos;
    torchtune_take_end(builder, "_instruct");
    torchtune_take_end(builder, "_base");
    std::replace(builder.begin(), builder.end(), '_', '.');
    return std::string(known.model) + builder + (instructed ? "-instruct" : "");
  }
  return {};
}

void torchtune_adapter(Recipe& recipe, bool quantised) {
  recipe.lora(quantised ? "qlora" : "lora", "model.lora_rank", "8", "model.use_dora", "");
  if (quantised) recipe.set("model.weights", "nf4");
  recipe.set("adapter.dtype", "same");
  recipe.copy("model.lora_dropout", "adapter.dropout");
  std::string targets = recipe.text("model.lora_attn_modules", "q_proj,v_proj");
  if (const size_t at = targets.find("output_proj"); at != std::string::npos)
    targets.replace(at, 11, "o_proj");
  if (recipe.flag("model.apply_lora_to_mlp")) targets += ",gate_proj,up_proj,down_proj";
  // transformers joins them in Phi 3 and 4.
  if (recipe.model().rfind("phi-", 0) == 0)
    targets =
        recipe.flag("model.apply_lora_to_mlp") ? "qkv_proj,o_proj,gate_up_proj,down_proj" : "qkv_proj,o_proj";
  recipe.set("adapter.targets", targets);
  if (recipe.flag("model.apply_lora_to_output"))
    recipe.warn("model.apply_lora_to_output: the output's adapter is not counted");
  recipe.ignore({"model.lora_alpha", "model.quantize_base"});
  // Adapters are counted beside transformers' layers alone.
  recipe.set("train.framework", "transformers");
  recipe.warn(
      "adapters are counted as transformers' code runs the model, with all logits at once; torchtune's own "
      "layers "
      "and its loss in chunks keep less");
}

void torchtune_model(Recipe& recipe) {
  const std::string component = recipe.text("model._component_");
  std::string builder = last_part(component);
  const bool quantised = torchtune_take_start(builder, "qlora_") || recipe.flag("model.quantize_base");
  const bool lora = torchtune_take_start(builder, "lora_") || quantised;
  const std::string model = torchtune_model_of(builder);
  if (model.empty() || component.find("vision") != std::string::npos)
    return recipe.refuse("model._component_",
                         fmt::format("'{}' builds no model that is known by name; allowed: "
                                     "builders of Llama, Gemma, Mistral, Phi, Qwen",
                                     component));
  recipe.set_model(model);
  if (lora) return torchtune_adapter(recipe, quantised);
  recipe.set("train.framework", "pytorch");
  recipe.set("train.norm_in_fp32", "true");
}

void torchtune_optimizer(Recipe& recipe) {
  const std::string component = recipe.text("optimizer._component_", recipe.text("optimizer.optimizer"));
  const std::string name = last_part(component);
  struct Name {
    std::string_view name, kind;
  };
  constexpr std::array<Name, 10> kNames = {{{"AdamW", "adamw"},
                                            {"Adam", "adamw"},
                                            {"PagedAdamW", "adamw"},
                                            {"AdamW8bit", "adamw8bit"},
                                            {"PagedAdamW8bit", "adamw8bit"},
                                            {"AdamW4bit", "adamw4bit"},
                                            {"Adam4bit", "adamw4bit"},
                                            {"SGD", "sgd"},
                                            {"Adafactor", "adafactor"},
                                            {"Muon", "muon"}}};
  const auto* const found =
      std::find_if(kNames.begin(), kNames.end(), [&](const Name& known) { return known.name == name; });
  if (found == kNames.end())
    return recipe.refuse("optimizer._component_",
                         fmt::format("'{}' is not modelled; allowed: AdamW, Adam, "
                                     "PagedAdamW, AdamW8bit, PagedAdamW8bit, AdamW4bit, SGD, "
                                     "Adafactor, Muon",
                                     component));
  recipe.set("train.optimizer", std::string(found->kind));
  recipe.warn_if_paged(name);
  const bool torch = component.rfind("torch.", 0) == 0;
  if (recipe.flag("optimizer_in_bwd") && !recipe.has_set("adapter.kind")) {
    recipe.set("train.optimizer_step", "in-backward");
  } else if (torch && !recipe.flag("optimizer.fused")) {
    recipe.set("train.optimizer_step", "foreach");
  }
  recipe.ignore({"optimizer.*"});
}

void torchtune_loss(Recipe& recipe) {
  const std::string loss = last_part(recipe.text("loss._component_"));
  recipe.ignore({"loss.*"});
  if (recipe.has_set("adapter.kind") || loss.empty() || loss == "CrossEntropyLoss") return;
  if (loss == "CEWithChunkedOutputLoss" || loss == "LinearCrossEntropyLoss") {
    recipe.set("train.loss", "chunked");
    return;
  }
  recipe.refuse("loss._component_", fmt::format("'{}' is another task's; allowed: LinearCrossEntropyLoss, "
                                                "CEWithChunkedOutputLoss, CrossEntropyLoss",
                                                loss));
}

void torchtune_refuse_tasks(Recipe& recipe) {
  if (!recipe.says_any("optimizer.") || !recipe.says_any("loss."))
    recipe.refuse("optimizer", "missing: nothing is trained; allowed: fine-tuning recipes");
  for (const char* start : {"teacher_model.", "policy_model.", "reward_and_value_model.", "ref_", "kd_",
                            "inference.", "orchestration."}) {
    if (recipe.says_any(start))
      recipe.refuse(start, "not modelled: it holds a second model, or generates text in between");
  }
  if (recipe.says_any("quantizer."))
    recipe.refuse("quantizer._component_", "not modelled: weights are quantised while they are trained");
}

}  // namespace

void read_torchtune(Recipe& recipe) {
  torchtune_refuse_tasks(recipe);
  torchtune_model(recipe);
  recipe.copy("tokenizer.max_seq_len", "train.sequence");
  recipe.copy("batch_size", "train.micro_batch");
  recipe.copy("gradient_accumulation_steps", "train.gradient_accumulation");
  const std::string dtype = recipe.text("dtype", "bf16");
  recipe.precision(dtype == "bf16", dtype == "fp16", true);
  torchtune_optimizer(recipe);
  torchtune_loss(recipe);
  if (recipe.flag("enable_activation_checkpointing")) recipe.set("train.recompute", "full");
  if (recipe.flag("enable_activation_offloading")) recipe.set("offload.activations", "host");
  if (recipe.flag("fsdp_cpu_offload")) {
    recipe.set("offload.optimizer", "host");
    recipe.set("offload.parameters", "host");
  }
  recipe.copy("tensor_parallel_dim", "parallel.tensor");
  recipe.copy("context_parallel_dim", "parallel.context");
  if (recipe.text("data_parallel_replicate_dim", "1") != "1")
    recipe.copy("data_parallel_replicate_dim", "parallel.replicas");
  // Its distributed recipes shard the whole.
  recipe.set("parallel.zero", "3");
  recipe.ignore({"output_dir",
                 "tokenizer.*",
                 "dataset*",
                 "seed",
                 "shuffle",
                 "checkpointer.*",
                 "resume_from_checkpoint",
                 "epochs",
                 "lr_scheduler.*",
                 "max_steps_per_epoch",
                 "clip_grad_norm",
                 "metric_logger.*",
                 "log_*",
                 "profiler.*",
                 "device",
                 "save_*",
                 "run_val_every_n_steps",
                 "batch_size_val",
                 "name",
                 "collate_fn",
                 "low_cpu_ram",
                 "tensor_parallel_plan.*",
                 "data_parallel_shard_dim",
                 "custom_sharded_layers",
                 "use_distributed_state_dict",
                 "model.max_seq_len"});
}

}  // namespace spillway::estimator
