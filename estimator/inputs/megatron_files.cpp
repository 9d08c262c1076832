#include "estimator/inputs/megatron_files.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "estimator/inputs/json_object.h"

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;

std::string scalar_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Status read_map(const Json& line, const char* key, std::map<std::string, std::string>& out) {
  const auto found = line.find(key);
  if (found == line.end()) return {};
  if (!found->is_object())
    return Status::invalid_argument(
        fmt::format("{}: not allowed; allowed: an object of names and values", key));
  for (const auto& [name, value] : found->items()) {
    if (value.is_object() || value.is_null()) {
      return Status::invalid_argument(fmt::format(
          "{}.{}: '{}' is not allowed; allowed: a text, a number or true", key, name, value.dump()));
    }
    out[name] = scalar_text(value);
  }
  return {};
}

Status read_text(const Json& line, const char* key, std::string& out) {
  const auto found = line.find(key);
  if (found == line.end()) return {};
  if (!found->is_string())
    return Status::invalid_argument(
        fmt::format("{}: '{}' is not allowed; allowed: a text", key, found->dump()));
  out = found->get<std::string>();
  return {};
}

Status read_bytes(const Json& line, const char* key, double& out) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number() || found->get<double>() <= 0) {
    return Status::invalid_argument(
        fmt::format("{}: '{}' is not allowed; allowed: bytes above 0", key,
                    found == line.end() ? std::string("missing") : found->dump()));
  }
  out = found->get<double>();
  return {};
}

bool is_date(const std::string& text) {
  constexpr std::string_view kShape = "0000-00-00";
  return text.size() == kShape.size() &&
         std::equal(text.begin(), text.end(), kShape.begin(),
                    [](char c, char shape) { return shape == '0' ? '0' <= c && c <= '9' : c == shape; });
}

// The tests of one program lie in one folder, which the recording's name begins with.
std::string program_of_case(const std::string& name) {
  std::string folder = name.substr(0, name.find('/'));
  if (folder == "bert" || folder == "t5" || folder == "hybrid") return folder;
  if (folder == "multimodal-llava") return "vlm";
  return {};
}

Status read_measured(const Json& line, RecordedRun& out) {
  if (!line.contains("steady_bytes") && !line.contains("peak_bytes")) return {};
  MeasuredBytes measured;
  if (Status status = read_bytes(line, "steady_bytes", measured.steady); !status.ok()) return status;
  if (Status status = read_bytes(line, "peak_bytes", measured.peak); !status.ok()) return status;
  if (line.contains("peak_step1_bytes")) {
    if (Status status = read_bytes(line, "peak_step1_bytes", measured.peak_step1); !status.ok())
      return status;
  }
  out.measured = measured;
  return {};
}

void read_yaml_map(const YAML::Node& node, std::map<std::string, std::string>& out) {
  for (const auto& entry : node) {
    std::string key = entry.first.as<std::string>();
    while (!key.empty() && key.front() == '-') key.erase(0, 1);
    out[key] = entry.second.IsScalar() ? entry.second.as<std::string>() : YAML::Dump(entry.second);
  }
}

}  // namespace

Result<RecordedRun> read_recorded_run(const std::string& text) {
  Result<Json> object = read_json_object(text);
  if (!object.ok()) return object.take_status();
  const Json& line = object.value();
  if (!line.contains("args"))
    return Status::invalid_argument("args: missing; allowed: an object of arguments");
  RecordedRun out;
  if (Status status = read_map(line, "args", out.run.arguments); !status.ok()) return status;
  if (Status status = read_map(line, "env", out.run.environment); !status.ok()) return status;
  if (Status status = read_text(line, "gpu", out.run.gpu); !status.ok()) return status;
  if (Status status = read_text(line, "date", out.run.date); !status.ok()) return status;
  if (!out.run.date.empty() && !is_date(out.run.date)) {
    return Status::invalid_argument(
        fmt::format("date: '{}' is not allowed; allowed: days as 2026-01-31", out.run.date));
  }
  if (Status status = read_text(line, "case", out.name); !status.ok()) return status;
  if (line.contains("gpus")) {
    if (!line["gpus"].is_number_integer()) {
      return Status::invalid_argument(
          fmt::format("gpus: '{}' is not allowed; allowed: whole numbers from 1", line["gpus"].dump()));
    }
    out.run.gpus = line["gpus"].get<int64_t>();
  }
  out.run.program = program_of_case(out.name);
  if (Status status = read_measured(line, out); !status.ok()) return status;
  return out;
}

Result<MegatronRun> read_megatron_yaml(const std::string& text) {
  MegatronRun out;
  try {
    const YAML::Node root = YAML::Load(text);
    // Asking what a missing node is throws.
    const auto is_map = [](const YAML::Node& node) { return node.IsDefined() && node.IsMap(); };
    if (!is_map(root) || !is_map(root["MODEL_ARGS"]))
      return Status::invalid_argument("MODEL_ARGS: missing; allowed: a mapping of arguments to values");
    read_yaml_map(root["MODEL_ARGS"], out.arguments);
    if (is_map(root["ENV_VARS"])) read_yaml_map(root["ENV_VARS"], out.environment);
  } catch (const YAML::Exception& error) {
    return Status::invalid_argument(fmt::format("not YAML: {}", error.what()));
  }
  return out;
}

Result<MegatronRun> read_megatron_arguments(const std::string& text) {
  MegatronRun out;
  std::istringstream words(text);
  std::string word, key;
  while (words >> word) {
    if (word == "\\") continue;
    if (word.rfind("--", 0) == 0) {
      key = word.substr(2);
      const size_t equals = key.find('=');
      const std::string value = equals == std::string::npos ? "true" : key.substr(equals + 1);
      key.resize(std::min(equals, key.size()));
      out.arguments[key] = value;
    } else if (key.empty()) {
      return Status::invalid_argument(
          fmt::format("'{}' is not allowed; allowed: arguments such as --num-layers 12", word));
    } else {
      std::string& value = out.arguments[key];
      if (value == "true") {
        value = word;
      } else {
        value.append(" ").append(word);
      }
    }
  }
  return out;
}

}  // namespace spillway::estimator
