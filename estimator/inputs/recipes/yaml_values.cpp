#include "estimator/inputs/recipes/yaml_values.h"

#include <fmt/format.h>

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>

namespace spillway::estimator {
namespace {

constexpr int kDeepest = 24;
constexpr int kMostNodes = 100000;     // aliases of aliases make more of a short text
constexpr size_t kMostText = 1 << 20;  // past this no person has written it

// YAML's whole numbers may have their digits grouped: 500_000.
std::string scalar_text(const YAML::Node& node) {
  std::string text = node.as<std::string>();
  const bool grouped = text.find('_') != std::string::npos &&
                       std::isdigit(static_cast<unsigned char>(text[0])) != 0 &&
                       text.find_first_not_of("0123456789_") == std::string::npos;
  if (grouped) text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
  return text;
}

class YamlFlattener {
 public:
  Status map(const YAML::Node& node, const std::string& prefix, int depth) {
    if (depth > kDeepest) return too_deep(prefix);
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) continue;
      Status status = value(entry.second, prefix + entry.first.as<std::string>(), depth);
      if (!status.ok()) return status;
    }
    return {};
  }

  std::map<std::string, std::string> take() {
    for (auto& [key, text] : out_) resolve(text);
    return std::move(out_);
  }

 private:
  static Status too_deep(const std::string& where) {
    return Status::invalid_argument(
        fmt::format("{}: nested too deep; allowed: {} mappings in each other", where, kDeepest));
  }

  Status value(const YAML::Node& node, const std::string& key, int depth) {
    if (++nodes_ > kMostNodes)
      return Status::invalid_argument(
          fmt::format("more than {} values; allowed: what a person writes", kMostNodes));
    if (node.IsMap()) return map(node, key + ".", depth + 1);
    if (node.IsSequence()) return sequence(node, key, depth);
    if (node.IsScalar() && !node.as<std::string>().empty()) out_[key] = scalar_text(node);
    return {};
  }

  Status sequence(const YAML::Node& node, const std::string& key, int depth) {
    if (depth > kDeepest) return too_deep(key);
    std::string joined;
    size_t number = 0;
    for (const YAML::Node& each : node) {
      if (each.IsScalar()) {
        joined += (joined.empty() ? "" : ",") + each.as<std::string>();
      } else if (Status status = value(each, fmt::format("{}.{}", key, number), depth + 1); !status.ok()) {
        return status;
      }
      ++number;
    }
    if (!joined.empty()) out_[key] = joined;
    return {};
  }

  // One step: a value that names another is not followed further.
  void resolve(std::string& text) const {
    const size_t start = text.find("${");
    const size_t end = text.find('}', start == std::string::npos ? text.size() : start);
    if (end == std::string::npos) return;
    const auto named = out_.find(text.substr(start + 2, end - start - 2));
    if (named != out_.end() && named->second.find("${") == std::string::npos)
      text.replace(start, end + 1 - start, named->second);
  }

  std::map<std::string, std::string> out_;
  int nodes_ = 0;
};

}  // namespace

Result<std::map<std::string, std::string>> flatten_yaml(const std::string& text) {
  if (text.size() > kMostText)
    return Status::invalid_argument("larger than any recipe; allowed: up to 1 MiB");
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) return Status::invalid_argument("not a mapping of keys to values");
    YamlFlattener flattener;
    if (Status status = flattener.map(root, "", 0); !status.ok()) return status;
    return flattener.take();
  } catch (const YAML::Exception& error) {
    return Status::invalid_argument(fmt::format("not YAML: {}", error.what()));
  }
}

}  // namespace spillway::estimator
