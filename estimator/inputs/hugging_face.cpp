#include "estimator/inputs/hugging_face.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "estimator/inputs/described_model.h"
#include "estimator/inputs/family_model.h"
#include "estimator/inputs/hugging_face_families.h"
#include "estimator/inputs/json_object.h"
#include "estimator/inputs/nearest.h"
#include "estimator/inputs/type_defaults.h"
#include "estimator/inputs/unread_keys.h"
#include "estimator/inputs/vision_part.h"

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;

void flatten(const Json& value, const std::string& name, std::map<std::string, std::string>& out) {
  // An empty section for layers says something: that no layer has anything for itself.
  const bool is_said = value.empty() && name.ends_with("per_layer_config");
  if (value.is_object() && !is_said) {
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
  const std::vector<std::string_view> whole = vision_language_types();
  return type == "gemma4_unified" || std::find(whole.begin(), whole.end(), type) != whole.end();
}

// The tower of images, where it is known; else a warning that the language part alone is counted.
void add_images(KeyValues& values, const std::string& prefix, const std::string& whole, Model& model,
                Notes& notes) {
  const bool nested = values.flag(prefix + "text_config");
  const bool has_tower = values.has_any(prefix + "vision_config.");
  if (!nested && !has_tower) return;
  if (values.text(prefix + "read_as", "").empty() && add_vision(values, prefix, whole, model, notes)) return;
  const std::string part =
      fmt::format("{}: the language part is counted and no other", nested ? "text_config" : "vision_config");
  notes.assumptions.push_back(part);
  notes.warnings.push_back(part);
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
  const std::vector<std::string_view> whole = vision_language_types();
  if (std::find(whole.begin(), whole.end(), type) != whole.end())
    return Status::invalid_argument(
        fmt::format("text_config: missing; allowed: the language part of model_type '{}'", type));
  return Status::unsupported(
      fmt::format("model_type '{}' is not modelled{}; `spillway trace-model` or `spillway dryrun` take the "
                  "figures from its own "
                  "code, and --as llama counts a Llama of its sizes",
                  type, did_you_mean(type, known_types())));
}

// A letter for each layer, as published files have it (NemotronHConfig._pattern_to_list).
void offer_listed_layers(KeyValues& values, const std::string& prefix) {
  const std::string key = prefix + "hybrid_override_pattern";
  const auto says = [&](const std::string& name) {
    return values.has(name) && values.text(name, "null") != "null";
  };
  if (!says(key) || says(prefix + "layers_block_type") || says(prefix + "layer_types")) return;
  if (values.text(key, "").empty())
    values.complain(fmt::format("{}: '' is not allowed; allowed: M, E, * and -, one for each layer", key));
  std::vector<std::string_view> layers;
  for (const char letter : values.text(key, "")) {
    if (letter == 'M') {
      layers.emplace_back("linear_attention");
    } else if (letter == 'E') {
      layers.emplace_back("moe");
    } else if (letter == '*') {
      layers.emplace_back("full_attention");
    } else if (letter == '-') {
      layers.emplace_back("mlp");
    } else {
      values.complain(
          fmt::format("{}: '{}' is not allowed; allowed: M, E, * and -, one for each layer", key, letter));
    }
  }
  values.offer(prefix + "listed_pattern", fmt::format("[{}]", fmt::join(layers, ",")));
}

}  // namespace

std::vector<std::string_view> known_types() {
  std::vector<std::string_view> out = family_types();
  for (const auto& more : {described_types(), vision_language_types()}) {
    for (const std::string_view type : more) {
      if (std::find(out.begin(), out.end(), type) == out.end()) out.push_back(type);
    }
  }
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
  if (values.text(prefix + "read_as", "").empty()) offer_type_defaults(values, prefix, type.value());
  if (type.value() == "nemotron_h") offer_listed_layers(values, prefix);
  const Family* family = find_family(type.value());
  Model model = family != nullptr ? read_family(values, prefix, *family, notes)
                                  : read_described(values, prefix, find_description(type.value()), notes);
  add_images(values, prefix, whole.empty() ? type.value() : whole, model, notes);
  model.type = values.text(prefix + "model_type", type.value());
  for (const std::string& key : unread_sizes(values, prefix))
    notes.warnings.push_back(
        fmt::format("{}{}: not read: what it changes is not in the figures", prefix, key));
  if (!values.status().ok()) return values.status();
  return model;
}

}  // namespace spillway::estimator
