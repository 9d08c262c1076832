#include "estimator/inputs/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "estimator/inputs/described_model.h"
#include "estimator/inputs/family_model.h"
#include "estimator/inputs/hugging_face_families.h"
#include "estimator/inputs/json_object.h"
#include "estimator/inputs/nearest.h"
#include "estimator/inputs/unread_keys.h"

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;

void flatten(const Json& value, const std::string& name, std::map<std::string, std::string>& out) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items())
      flatten(inner, name.empty() ? key : fmt::format("{}.{}", name, key), out);
  } else {
    out[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
}

}  // namespace

Result<std::map<std::string, std::string>> flatten_json(const std::string& text) {
  Result<Json> root = read_json_object(text);
  if (!root.ok()) return root.take_status();
  std::map<std::string, std::string> out;
  flatten(root.value(), "", out);
  return out;
}

namespace {

// Models of several parts whose language part has nearly all of the weights; it is counted, and a warning
// says so.
bool is_mostly_language(const std::string& type) {
  constexpr std::array kTypes = {std::string_view("gemma3"),          std::string_view("llava"),
                                 std::string_view("llava_next"),      std::string_view("llava_next_video"),
                                 std::string_view("llava_onevision"), std::string_view("vipllava"),
                                 std::string_view("mistral3"),        std::string_view("qwen2_vl"),
                                 std::string_view("qwen2_5_vl"),      std::string_view("qwen3_vl"),
                                 std::string_view("qwen3_vl_moe"),    std::string_view("qwen3_5"),
                                 std::string_view("qwen3_5_moe"),     std::string_view("llama4"),
                                 std::string_view("internvl"),        std::string_view("kimi_k25"),
                                 std::string_view("cohere2_vision"),  std::string_view("video_llama_3"),
                                 std::string_view("gemma4"),          std::string_view("gemma4_unified"),
                                 std::string_view("shieldgemma2")};
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

// The type that a file is read as, or why it is not.
Result<std::string> type_of(KeyValues& values, const std::string& prefix, Notes& notes) {
  const std::string type = values.text(prefix + "model_type", "");
  const std::string as = values.text(prefix + "read_as", "");
  const std::string wanted = as.empty() ? type : as;
  if (find_family(wanted) != nullptr || !find_description(wanted).empty()) {
    if (wanted != type)
      notes.warnings.push_back(fmt::format(
          "model_type '{}' is read as '{}': its parameters and activations are that type's", type, as));
    return wanted;
  }
  if (!as.empty())
    return Status::invalid_argument(
        fmt::format("{}read_as: '{}' is not known; allowed: a type that is modelled{}", prefix, as,
                    did_you_mean(as, known_types())));
  if (type.empty())
    return Status::invalid_argument(fmt::format(
        "{}model_type: missing; allowed: a type that is modelled, or --as llama for the layers of a Llama",
        prefix));
  return Status::unsupported(
      fmt::format("model_type '{}' is not modelled{}; `spillway trace-model` or `spillway dryrun` take the "
                  "figures from its own "
                  "code, and --as llama counts a Llama of its sizes",
                  type, did_you_mean(type, known_types())));
}

}  // namespace

std::vector<std::string_view> known_types() {
  std::vector<std::string_view> out = family_types();
  const std::vector<std::string_view> described = described_types();
  out.insert(out.end(), described.begin(), described.end());
  return out;
}

Result<Model> read_hugging_face(KeyValues& values, const std::string& prefix, Notes& notes) {
  const Result<std::string> type = type_of(values, prefix, notes);
  if (!type.ok()) return type.status();
  const std::string whole = values.text(prefix + "part_of", "");
  if (!whole.empty() && !is_mostly_language(whole) && values.text(prefix + "read_as", "").empty())
    return Status::unsupported(
        fmt::format("model_type '{}' is not modelled; `spillway trace-model` or `spillway dryrun` take the "
                    "figures from its own "
                    "code, and --as {} counts its language part alone",
                    whole, type.value()));
  const Family* family = find_family(type.value());
  Model model = family != nullptr ? read_family(values, prefix, *family, notes)
                                  : read_described(values, prefix, find_description(type.value()), notes);
  if (values.flag(prefix + "text_config")) {
    constexpr const char* kPart = "text_config: the language part is counted and no other";
    notes.assumptions.emplace_back(kPart);
    notes.warnings.emplace_back(kPart);
  }
  model.type = values.text(prefix + "model_type", type.value());
  for (const std::string& key : unread_sizes(values, prefix))
    notes.warnings.push_back(
        fmt::format("{}{}: not read: what it changes is not in the figures", prefix, key));
  if (!values.status().ok()) return values.status();
  return model;
}

}  // namespace spillway::estimator
