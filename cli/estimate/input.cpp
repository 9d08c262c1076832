#include "cli/estimate/input.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "estimator/inputs/adapter.h"
#include "estimator/inputs/diffusers.h"
#include "estimator/inputs/known_models.h"
#include "estimator/inputs/megatron_files.h"
#include "estimator/inputs/recipes/recipes.h"
#include "estimator/inputs/run_words.h"
#include "estimator/inputs/serving.h"

namespace spillway {
namespace {

using estimator::MegatronRun;
using estimator::RunKeys;
using estimator::TrainingRun;

constexpr int64_t kMostGpus = int64_t{1} << 20;

bool is_deepspeed(const std::string& text) {
  if (text.find("\"model_type\"") != std::string::npos) return false;
  for (const char* key :
       {"\"zero_optimization\"", "\"train_micro_batch_size_per_gpu\"", "\"train_batch_size\"",
        "\"gradient_accumulation_steps\"", "\"bf16\"", "\"fp16\"", "\"torch_autocast\""}) {
    if (text.find(key) != std::string::npos) return true;
  }
  return false;
}

// A name of known_models(), where no file has it.
const estimator::KnownModel* known_model(const std::string& name) {
  std::error_code error;
  return std::filesystem::exists(name, error) ? nullptr : estimator::find_known_model(name);
}

Result<RunKeys> model_keys(const std::string& model) {
  if (const estimator::KnownModel* known = known_model(model)) return estimator::known_model_keys(*known);
  Result<std::string> config = read_text_file(estimator::config_of(model));
  if (!config.ok()) return config.take_status();
  const std::string folder = std::filesystem::path(estimator::config_of(model)).parent_path().string();
  Result<RunKeys> keys = estimator::is_diffusers_json(config.value())
                             ? estimator::read_diffusers_json(config.value(), folder)
                             : estimator::read_model_json(config.value());
  if (!keys.ok()) return Status::invalid_argument(fmt::format("{}: {}", model, keys.status().text()));
  return keys;
}

Result<RunKeys> recipe_keys(const std::string& text, const std::string& folder, const InputChoices& choices) {
  estimator::RecipeFiles files{folder, choices.gpus, {}};
  if (!choices.model.empty()) {
    Result<RunKeys> model = model_keys(choices.model);
    if (!model.ok()) return model;
    files.model = std::move(model.value());
  }
  return estimator::read_recipe(text, files);
}

Result<RunKeys> deepspeed_keys(const std::string& text, const InputChoices& choices) {
  if (choices.model.empty())
    return Status::invalid_argument("a DeepSpeed file holds no model; name its config with --model");
  Result<RunKeys> model = model_keys(choices.model);
  if (!model.ok()) return model;
  Result<RunKeys> keys = estimator::read_deepspeed_json(text, choices.gpus);
  if (!keys.ok()) return keys;
  keys->insert(model->begin(), model->end());
  return keys;
}

Result<RunKeys> keys_of(const std::string& text, bool toml, const std::string& folder,
                        const InputChoices& choices) {
  if (toml && estimator::is_torchtitan_toml(text))
    return estimator::read_torchtitan_toml(text, std::max<int64_t>(1, choices.gpus));
  if (toml) return estimator::read_run_toml(text, folder);
  if (estimator::is_trainer_json(text)) return recipe_keys(text, folder, choices);
  if (is_deepspeed(text)) return deepspeed_keys(text, choices);
  if (estimator::is_diffusers_json(text)) return estimator::read_diffusers_json(text, folder);
  Result<RunKeys> keys = estimator::read_model_json(text);
  if (keys.ok()) keys.value()["model.is_config_json"] = "true";
  return keys;
}

// A name without a section is a run's key, or else one of the model's.
Status set_key(const Change& change, RunKeys& keys) {
  // Where images are made a server's words come first.
  if (estimator::has_pipeline(keys) && estimator::asks_to_serve(keys)) {
    const std::string key = estimator::serving_key(change.key);
    if (key.rfind("serve.", 0) == 0) {
      keys[key] = change.value;
      return {};
    }
  }
  estimator::NamedValue named = estimator::run_key(change.key, change.value);
  const bool bare = named.key.find('.') == std::string::npos;
  if (bare) named.key = "model." + change.key;
  keys[named.key] = named.value;
  if (named.key.rfind("model.", 0) != 0) return {};
  Status status = estimator::check_model_keys(keys, {named.key});
  if (status.ok() || !bare) return status;
  return Status::invalid_argument(fmt::format("{}: not known; allowed: the keys listed in docs/estimate.md{}",
                                              change.key, estimator::meant_run_key(change.key)));
}

// How many GPUs there are is no argument of Megatron-LM's.
Status set_key(const Change& change, MegatronRun& run) {
  if (change.key != "gpus") {
    run.arguments[change.key] = change.value;
    return {};
  }
  int64_t gpus = 0;
  const char* const end = change.value.data() + change.value.size();
  const auto [rest, error] = std::from_chars(change.value.data(), end, gpus);
  if (error != std::errc() || rest != end || gpus < 1 || gpus > kMostGpus) {
    return Status::invalid_argument(fmt::format(
        "gpus: '{}' is not allowed; allowed: whole numbers from 1 to {}", change.value, kMostGpus));
  }
  run.gpus = gpus;
  return {};
}

Result<TrainingRun> read(const RunKeys& keys) {
  return estimator::read_run(keys);
}

Result<TrainingRun> read(const MegatronRun& given) {
  Result<TrainingRun> run = read_megatron(given);
  // The question is which rank peaks, not what the last one logs.
  if (run.ok()) run->last_rank_only = false;
  return run;
}

using Given = std::variant<RunKeys, MegatronRun>;

Result<Given> megatron(Result<MegatronRun> given, const InputChoices& choices) {
  if (!given.ok()) return given.take_status();
  given->gpu = choices.gpu_kind;
  if (choices.gpus > 0) given->gpus = choices.gpus;
  given->allocator = choices.allocator;
  return Given(std::move(given.value()));
}

// A kind of adapter, or PEFT's file or folder.
Status add_adapter(const std::string& adapter, RunKeys& keys) {
  if (adapter.empty()) return {};
  for (const std::string_view kind : {"lora", "rslora", "dora", "qlora", "ia3", "prompt"}) {
    if (adapter != kind) continue;
    keys["adapter.kind"] = adapter;
    // QLoRA's base has four bits unless the file says something else.
    if (kind == "qlora" &&
        keys.lower_bound("model.quantization_config.") == keys.lower_bound("model.quantization_config/"))
      keys.emplace("model.weights", "nf4");
    return {};
  }
  std::error_code error;
  const std::filesystem::path path(adapter);
  if (!std::filesystem::exists(path, error))
    return Status::invalid_argument(
        fmt::format("--adapter: '{}' is not known; allowed: lora, rslora, dora, qlora, ia3, prompt, or an "
                    "adapter_config.json",
                    adapter));
  const std::string file =
      std::filesystem::is_directory(path, error) ? (path / "adapter_config.json").string() : adapter;
  Result<std::string> text = read_text_file(file);
  if (!text.ok()) return text.take_status();
  Result<RunKeys> read = estimator::read_adapter_json(text.value());
  if (!read.ok()) return {read.status().code(), fmt::format("{}: {}", file, read.status().text())};
  for (auto& [key, value] : read.value()) keys[key] = value;
  return {};
}

// What options say goes over what the file does.
Result<Given> with_choices(RunKeys keys, const InputChoices& choices) {
  if (choices.gpus > 0) keys["parallel.gpus"] = std::to_string(choices.gpus);
  if (!choices.allocator.empty()) keys["allocator.model"] = choices.allocator;
  if (!choices.read_as.empty()) keys["model.read_as"] = choices.read_as;
  if (!choices.weights.empty()) keys["model.weights"] = choices.weights;
  if (Status status = add_adapter(choices.adapter, keys); !status.ok()) return status;
  return Given(std::move(keys));
}

Result<Given> given_of(const std::string& text, const InputChoices& choices) {
  const std::filesystem::path path(choices.file);
  const std::string ending = path.extension().string();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Status::invalid_argument("empty");
  const bool any_yaml = ending == ".yaml" || ending == ".yml";
  const bool yaml = any_yaml && text.find("MODEL_ARGS") != std::string::npos;  // Megatron-LM's
  const bool recipe = (any_yaml && !yaml) || (ending == ".json" && estimator::is_trainer_json(text));
  const bool arguments = text.rfind("--", 0) == 0 && !any_yaml;
  if (!choices.model.empty() && !recipe && (yaml || arguments || ending == ".toml" || !is_deepspeed(text)))
    return Status::invalid_argument("--model goes with a DeepSpeed file or a trainer's recipe");
  if (!choices.gpu_kind.empty() && !yaml && !arguments)
    return Status::invalid_argument("--gpu-kind goes with a Megatron-LM run; --gpu says what to fit");
  if (!choices.read_as.empty() && (yaml || arguments))
    return Status::invalid_argument(
        "--as goes with a Hugging Face model; a Megatron-LM run says what its layers are");
  if (!choices.adapter.empty() && (yaml || arguments))
    return Status::invalid_argument("--adapter goes with a Hugging Face model");
  if (!choices.weights.empty() && (yaml || arguments))
    return Status::invalid_argument("--quant goes with a Hugging Face model");
  if (yaml) return megatron(estimator::read_megatron_yaml(text), choices);
  if (arguments) return megatron(estimator::read_megatron_arguments(text), choices);
  const std::string folder = path.parent_path().string();
  Result<RunKeys> keys =
      recipe ? recipe_keys(text, folder, choices) : keys_of(text, ending == ".toml", folder, choices);
  if (!keys.ok()) return keys.take_status();
  return with_choices(std::move(keys.value()), choices);
}

Result<Given> known_given(const estimator::KnownModel& known, const InputChoices& choices) {
  if (!choices.model.empty())
    return Status::invalid_argument("--model goes with a DeepSpeed file or a trainer's recipe");
  if (!choices.gpu_kind.empty())
    return Status::invalid_argument("--gpu-kind goes with a Megatron-LM run; --gpu says what to fit");
  return with_choices(estimator::known_model_keys(known), choices);
}

// Reads those of a file, or of a model's name where there is no such file.
Result<Given> read_given(const InputChoices& choices) {
  if (const estimator::KnownModel* known = known_model(choices.file)) return known_given(*known, choices);
  Result<std::string> text = read_text_file(choices.file);
  if (!text.ok()) {
    std::string hint = estimator::meant_model(choices.file);
    if (hint.empty() && choices.file.find_first_of("./") == std::string::npos)
      hint = ", and no model has that name; spillway estimate --models lists those that are known";
    return Status(text.status().code(), text.status().text() + hint);
  }
  return given_of(text.value(), choices);
}

Status named(const std::string& file, const Status& status) {
  return {status.code(), fmt::format("{}: {}", file, status.text())};
}

}  // namespace

Result<Change> parse_change(const char* option, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return Status::invalid_argument(
        fmt::format("{} '{}' is not allowed; allowed: key=value, such as train.micro_batch=4", option, text));
  }
  return Change{text.substr(0, equals), text.substr(equals + 1)};
}

Result<std::string> read_text_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return Status::io(fmt::format("{}: is a folder without a config.json or a model_index.json", path));
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status::io(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

Result<RunSource> RunSource::open(const InputChoices& given) {
  InputChoices choices = given;
  choices.file = estimator::config_of(given.file);
  Result<Given> run = read_given(choices);
  if (!run.ok() && run.status().code() == SPW_ERROR_IO) return run.take_status();
  if (!run.ok()) return named(choices.file, run.status());
  if (auto* keys = std::get_if<RunKeys>(&run.value());
      keys != nullptr && choices.serve && estimator::has_pipeline(*keys))
    (*keys)["serve.generates"] = "true";
  for (const std::string& set : choices.sets) {
    Result<Change> change = parse_change("--set", set);
    if (!change.ok()) return change.take_status();
    if (choices.serve) change->key = estimator::serving_key(change->key);
    if (change->key.rfind("serve.", 0) == 0 && std::holds_alternative<RunKeys>(run.value())) {
      std::get<RunKeys>(run.value())[change->key] = change->value;
      continue;
    }
    Status status = std::visit([&](auto& keys) { return set_key(change.value(), keys); }, run.value());
    if (!status.ok()) return status;
  }
  return RunSource(choices.file, std::move(run.value()));
}

bool RunSource::asks_to_serve() const {
  const auto* const keys = std::get_if<RunKeys>(&given_);
  return keys != nullptr && estimator::asks_to_serve(*keys);
}

bool RunSource::makes_images() const {
  const auto* const keys = std::get_if<RunKeys>(&given_);
  return keys != nullptr && estimator::has_pipeline(*keys);
}

Result<estimator::ServingRun> RunSource::serving(const std::vector<Change>& changes) const {
  const auto* const keys = std::get_if<RunKeys>(&given_);
  if (keys == nullptr)
    return Status::invalid_argument(
        fmt::format("{}: a Megatron-LM run is not served; allowed: a config.json, a run file", file_));
  RunKeys changed = *keys;
  for (const Change& change : changes) changed[change.key] = change.value;
  Result<estimator::ServingRun> run = estimator::read_serving(changed);
  if (!run.ok()) return named(file_, run.status());
  return run;
}

Result<TrainingRun> RunSource::run(const std::vector<Change>& changes) const {
  Result<TrainingRun> run = std::visit(
      [&](auto keys) -> Result<TrainingRun> {
        for (const Change& change : changes) {
          if (Status status = set_key(change, keys); !status.ok()) return status;
        }
        return read(keys);
      },
      given_);
  if (!run.ok()) return named(file_, run.status());
  return run;
}

}  // namespace spillway
