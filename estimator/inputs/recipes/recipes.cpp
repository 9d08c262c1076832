#include "estimator/inputs/recipes/recipes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/known_models.h"
#include "estimator/inputs/recipes/recipe.h"
#include "estimator/inputs/recipes/yaml_values.h"

namespace spillway::estimator {
namespace {

using FlatRecipe = std::map<std::string, std::string>;

// Says which keys tell a recipe: all of one row.
struct RecipeKind {
  std::initializer_list<const char*> keys;
  void (*read)(Recipe&);
  const char* trainer = "";  // whose lines a plan prints, where it knows them
};

const std::array<RecipeKind, 11>& kinds() {
  static const std::array<RecipeKind, 11> kKinds = {
      {{{"model._component_"}, read_torchtune, "torchtune"},
       {{"model._target_", "step_scheduler.local_batch_size"}, read_automodel},
       {{"policy.model_name"}, read_nemo_rl},
       {{"distributed_type"}, read_accelerate},
       {{"base_model"}, read_axolotl, "axolotl"},
       {{"finetuning_type"}, read_llama_factory},
       {{"model_name_or_path", "template"}, read_llama_factory},
       {{"model", "model_class"}, read_llama_factory_v1},
       {{"model", "train_dataset"}, read_llama_factory_v1},
       {{"per_device_train_batch_size"}, read_trainer},
       {{"output_dir", "learning_rate"}, read_trainer}}};
  return kKinds;
}

const RecipeKind* kind_of(const FlatRecipe& flat) {
  for (const RecipeKind& kind : kinds()) {
    if (std::all_of(kind.keys.begin(), kind.keys.end(),
                    [&](const char* key) { return flat.count(key) != 0; }))
      return &kind;
  }
  return nullptr;
}

// The path from here, else beside the recipe or in a folder above it; empty where there is none.
std::string found_file(const std::string& path, const std::string& folder) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return path;
  for (std::filesystem::path at = std::filesystem::absolute(folder, error); !at.empty();
       at = at.parent_path()) {
    if (std::filesystem::exists(at / path, error)) return (at / path).string();
    if (at == at.root_path()) break;
  }
  return {};
}

Result<std::string> recipe_text(const std::string& path) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status::io(path + ": cannot be read: " + std::strerror(errno));
  if (std::filesystem::is_directory(path, error))
    return Status::io(path + ": cannot be read: it is a folder");
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

Result<RunKeys> recipe_model(const Recipe& recipe, const RecipeFiles& files) {
  if (files.model) return *files.model;
  const std::string& name = recipe.model();
  if (name.empty())
    return Status::invalid_argument("it names no model; name its config.json, or a model, with --model");
  if (const KnownModel* known = find_known_model(name)) return known_model_keys(*known);
  const std::string found = found_file(name, files.folder);
  if (found.empty())
    return Status::invalid_argument(
        fmt::format("model '{}' is not known by name, and no file; name its config.json with --model{}", name,
                    meant_model(name)));
  Result<std::string> text = recipe_text(config_of(found));
  if (!text.ok()) return text.take_status();
  return read_model_json(text.value());
}

// DeepSpeed keeps fp32 copies of 16-bit weights, whatever the trainer loads.
Status add_deepspeed(const Recipe& recipe, const RecipeFiles& files, RunKeys& out) {
  if (recipe.deepspeed().empty()) return {};
  const std::string path = found_file(recipe.deepspeed(), files.folder);
  if (path.empty())
    return Status::invalid_argument(
        fmt::format("deepspeed: {}: cannot be read; allowed: a file here, beside the recipe or above it",
                    recipe.deepspeed()));
  Result<std::string> text = recipe_text(path);
  if (!text.ok()) return text.take_status();
  // Batch sizes of the recipe count, also where DeepSpeed's file names others.
  Result<RunKeys> keys = read_deepspeed_json(text.value(), files.gpus);
  if (!keys.ok()) return {keys.status().code(), fmt::format("{}: {}", path, keys.status().text())};
  const std::string precision = out["train.precision"];
  for (auto& [key, value] : keys.value()) out.emplace(key, std::move(value));
  if (out.count("adapter.kind") == 0 && precision != "fp32")
    out["train.precision"] = precision == "fp16" ? "fp16-mixed" : "bf16-mixed";
  return {};
}

// At least as many as the model is divided over.
void set_gpus(const RecipeFiles& files, RunKeys& out) {
  if (files.gpus > 0) out["parallel.gpus"] = std::to_string(files.gpus);
  if (out.count("parallel.gpus") != 0) return;
  constexpr int64_t kMostDegree = 1 << 16;
  const auto degree = [&](const char* key) {
    const auto found = out.find(key);
    return found == out.end()
               ? int64_t{1}
               : std::clamp<int64_t>(std::strtoll(found->second.c_str(), nullptr, 10), 1, kMostDegree);
  };
  const int64_t stages = degree("parallel.pipeline");
  const int64_t ranks = std::lcm(degree("parallel.tensor") * degree("parallel.context"),
                                 degree("parallel.expert") * degree("parallel.expert_tensor"));
  const int64_t gpus = std::min<int64_t>(stages * ranks, 1 << 20);
  out["parallel.gpus"] = std::to_string(gpus);
  add_warnings(
      {fmt::format("the recipe does not say how many GPUs there are: {} counted; --gpus says another", gpus)},
      out);
}

// A recipe that builds on another one (OmegaConf's defaults): its own keys go over those of the file it
// names.
Status add_defaults(const std::string& folder, FlatRecipe& flat) {
  constexpr int kMostFiles = 16;
  std::filesystem::path at = folder;
  for (int files = 0; flat.count("defaults") != 0; ++files) {
    const std::string named = flat.at("defaults");
    flat.erase("defaults");
    if (files == kMostFiles)
      return Status::invalid_argument(fmt::format("defaults: more than {} files on each other", kMostFiles));
    const std::filesystem::path path = at / named;
    Result<std::string> text = recipe_text(path.string());
    if (!text.ok()) return {text.status().code(), fmt::format("defaults: {}", text.status().text())};
    Result<FlatRecipe> below = flatten_yaml(text.value());
    if (!below.ok())
      return {below.status().code(), fmt::format("{}: {}", path.string(), below.status().text())};
    flat.insert(below->begin(), below->end());
    at = path.parent_path();
  }
  return {};
}

std::string why_unknown(const FlatRecipe& flat) {
  if (flat.count("train.train_iters") != 0 || flat.count("checkpoint.pretrained_checkpoint") != 0)
    return "Megatron-Bridge's changes to a recipe in Python: they hold no model; allowed: Megatron-LM's "
           "arguments";
  return "no recipe that is known; allowed: Megatron-LM's MODEL_ARGS, Axolotl's (base_model), "
         "LLaMA-Factory's "
         "(finetuning_type), torchtune's (model._component_), NeMo Automodel's (model._target_), NeMo RL's "
         "(policy.model_name), TrainingArguments (per_device_train_batch_size), accelerate's "
         "(distributed_type)";
}

}  // namespace

bool is_trainer_json(const std::string& text) {
  if (text.find("\"model_type\"") != std::string::npos) return false;
  return text.find("\"per_device_train_batch_size\"") != std::string::npos ||
         (text.find("\"output_dir\"") != std::string::npos &&
          text.find("\"learning_rate\"") != std::string::npos);
}

Result<RunKeys> read_recipe(const std::string& text, const RecipeFiles& files) {
  Result<FlatRecipe> flat = flatten_yaml(text);
  if (!flat.ok()) return flat.take_status();
  if (Status status = add_defaults(files.folder, flat.value()); !status.ok()) return status;
  const RecipeKind* const kind = kind_of(flat.value());
  if (kind == nullptr) return Status::unsupported(why_unknown(flat.value()));
  Recipe recipe(std::move(flat.value()));
  kind->read(recipe);
  Result<RunKeys> keys = recipe.finish();
  if (!keys.ok()) return keys;
  Result<RunKeys> model = recipe_model(recipe, files);
  if (!model.ok()) return model;
  RunKeys& out = keys.value();
  if (Status status = add_deepspeed(recipe, files, out); !status.ok()) return status;
  set_gpus(files, out);
  if (out.count("train.sequence") == 0)
    add_warnings({"the recipe does not say how long its texts are: the model's length is counted, at most "
                  "4096 tokens; --set sequence=N says another"},
                 out);
  out.insert(model->begin(), model->end());
  out["model.is_config_json"] = "true";
  if (*kind->trainer != '\0') out["recipe.trainer"] = kind->trainer;
  return keys;
}

}  // namespace spillway::estimator
