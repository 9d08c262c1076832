#include "estimator/inputs/hugging_face.h"

#include <fmt/format.h>

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
