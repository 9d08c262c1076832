#include "cli/estimate/input.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "estimator/inputs/megatron_files.h"
#include "estimator/inputs/run_file.h"

namespace spillway {
namespace {

using estimator::MegatronRun;
using estimator::RunKeys;
using estimator::TrainingRun;

Status apply_sets(const std::vector<std::string>& sets, RunKeys& keys) {
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Status::invalid_argument(
          fmt::format("--set '{}' is not allowed; allowed: key=value, such as train.micro_batch=4", set));
    }
    keys[set.substr(0, equals)] = set.substr(equals + 1);
  }
  return {};
}

Result<TrainingRun> run_of_megatron(Result<MegatronRun> given, const InputChoices& choices) {
  if (!given.ok()) return given.take_status();
  given->gpu = choices.gpu_kind;
  if (choices.gpus > 0) given->gpus = choices.gpus;
  for (const std::string& set : choices.sets) {
    const size_t equals = set.find('=');
    given->arguments[set.substr(0, equals)] = equals == std::string::npos ? "true" : set.substr(equals + 1);
  }
  Result<TrainingRun> run = read_megatron(given.value());
  // The question is which rank peaks, not what the last one logs.
  if (run.ok()) run->last_rank_only = false;
  return run;
}

bool is_deepspeed(const std::string& text) {
  for (const char* key :
       {"\"zero_optimization\"", "\"train_micro_batch_size_per_gpu\"", "\"train_batch_size\""}) {
    if (text.find(key) != std::string::npos) return true;
  }
  return false;
}

Result<RunKeys> deepspeed_keys(const std::string& text, const InputChoices& choices) {
  if (choices.model.empty())
    return Status::invalid_argument("a DeepSpeed file holds no model; name its config with --model");
  Result<std::string> config = read_text_file(choices.model);
  if (!config.ok()) return config.take_status();
  Result<RunKeys> model = estimator::read_model_json(config.value());
  if (!model.ok())
    return Status::invalid_argument(fmt::format("{}: {}", choices.model, model.status().text()));
  Result<RunKeys> keys = estimator::read_deepspeed_json(text);
  if (!keys.ok()) return keys;
  keys->insert(model->begin(), model->end());
  return keys;
}

Result<RunKeys> keys_of(const std::string& text, bool toml, const std::string& folder,
                        const InputChoices& choices) {
  if (toml && estimator::is_torchtitan_toml(text))
    return estimator::read_torchtitan_toml(text, std::max<int64_t>(1, choices.gpus));
  if (toml) return estimator::read_run_toml(text, folder);
  return is_deepspeed(text) ? deepspeed_keys(text, choices) : estimator::read_model_json(text);
}

Result<TrainingRun> run_of(const std::string& text, const InputChoices& choices) {
  const std::filesystem::path path(choices.file);
  const std::string ending = path.extension().string();
  if (ending == ".yaml" || ending == ".yml")
    return run_of_megatron(estimator::read_megatron_yaml(text), choices);
  if (text.rfind("--", 0) == 0) return run_of_megatron(estimator::read_megatron_arguments(text), choices);
  Result<RunKeys> keys = keys_of(text, ending == ".toml", path.parent_path().string(), choices);
  if (!keys.ok()) return keys.take_status();
  if (Status status = apply_sets(choices.sets, keys.value()); !status.ok()) return status;
  if (choices.gpus > 0) keys.value()["parallel.gpus"] = std::to_string(choices.gpus);
  return estimator::read_run(keys.value());
}

}  // namespace

Result<std::string> read_text_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return Status::io(fmt::format("{}: is a folder", path));
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status::io(fmt::format("{}: cannot be read", path));
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

Result<TrainingRun> read_input(const InputChoices& choices) {
  Result<std::string> text = read_text_file(choices.file);
  if (!text.ok()) return text.take_status();
  Result<TrainingRun> run = run_of(text.value(), choices);
  if (!run.ok()) return Status(run.status().code(), fmt::format("{}: {}", choices.file, run.status().text()));
  return run;
}

}  // namespace spillway
