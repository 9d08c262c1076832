#include "estimator/inputs/recipes/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>

#include "estimator/inputs/run_words.h"

namespace spillway::estimator {
namespace {

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_key_named(std::string_view key, std::string_view name) {
  if (name.empty() || name.back() != '*') return key == name;
  name.remove_suffix(1);
  return key.substr(0, name.size()) == name;
}

}  // namespace

std::string last_part(const std::string& component) {
  return component.substr(component.rfind('.') + 1);
}

std::string Recipe::text(const std::string& key, const std::string& otherwise) {
  return values_.text(key, otherwise);
}

bool Recipe::says(const std::string& key) {
  const std::string text = lower_case(values_.text(key, ""));
  return !text.empty() && text != "none" && text != "null";
}

bool Recipe::flag(const std::string& key, bool otherwise) {
  if (!says(key)) return otherwise;
  const std::string text = lower_case(values_.text(key, ""));
  if (text == "auto") return otherwise;
  constexpr std::array<std::string_view, 4> kTrue = {"true", "yes", "on", "1"};
  constexpr std::array<std::string_view, 4> kFalse = {"false", "no", "off", "0"};
  if (std::find(kTrue.begin(), kTrue.end(), text) != kTrue.end()) return true;
  if (std::find(kFalse.begin(), kFalse.end(), text) == kFalse.end())
    refuse(key, fmt::format("'{}' is not allowed; allowed: true, false", text));
  return false;
}

void Recipe::copy(const std::string& from, const std::string& to) {
  if (says(from) && values_.text(from, "") != "auto") out_[to] = values_.text(from, "");
}

void Recipe::optimizer(const std::string& from) {
  if (!says(from)) return;
  constexpr std::array<std::string_view, 13> kKnown = {
      "adamw", "adamw8bit", "adamw4bit", "adam-mini",  "adafactor",        "lion",  "sgd-momentum",
      "sgd",   "muon",      "galore",    "galore8bit", "galore-adafactor", "apollo"};
  const std::string written = values_.text(from, "");
  const std::string kind = run_key("train.optimizer", written).value;
  if (std::find(kKnown.begin(), kKnown.end(), kind) == kKnown.end())
    return refuse(from, fmt::format("'{}' is not modelled; allowed: {}", written, fmt::join(kKnown, ", ")));
  out_["train.optimizer"] = kind;
  if (written.find("layerwise") != std::string::npos) out_["train.optimizer_step"] = "in-backward";
  warn_if_paged(written);
}

// As "rank=64, update_proj_gap=100".
void Recipe::projection_rank(const std::string& from) {
  std::string arguments = text(from);
  arguments.erase(std::remove(arguments.begin(), arguments.end(), ' '), arguments.end());
  std::istringstream parts(arguments);
  for (std::string part; std::getline(parts, part, ',');) {
    if (part.rfind("rank=", 0) == 0) out_["train.optimizer_rank"] = part.substr(5);
  }
}

void Recipe::projected(const std::string& from, std::initializer_list<std::string_view> all) {
  const std::string modules = text(from);
  const bool whole = modules.empty() || std::find(all.begin(), all.end(), modules) != all.end() ||
                     (modules.find("attn") != std::string::npos && modules.find("mlp") != std::string::npos);
  if (!whole)
    warnings_.push_back(fmt::format(
        "{}: '{}': gradients of all matrices of the layers are taken to be projected", from, modules));
}

void Recipe::warn_if_paged(const std::string& optimizer) {
  if (lower_case(optimizer).find("paged") != std::string::npos)
    warnings_.push_back(
        fmt::format("{}: its states are counted on the device, which they leave for the host when "
                    "memory is short",
                    optimizer));
}

void Recipe::attention(const std::string& from) {
  if (!says(from) || values_.text(from, "") == "auto") return;
  const std::string kernel = lower_case(values_.text(from, ""));
  out_["train.attention"] = kernel == "eager" || kernel == "disabled" ? "materialised" : "flash";
}

void Recipe::lora(const std::string& kind, const std::string& rank_key, const char* rank,
                  const std::string& dora_key, const std::string& rslora_key) {
  const bool dora = flag(dora_key), rslora = flag(rslora_key);
  out_["adapter.kind"] = dora ? "dora" : rslora ? "rslora" : kind;
  out_["adapter.rank"] = says(rank_key) ? values_.text(rank_key, "") : rank;
}

void Recipe::targets(const std::string& from, std::initializer_list<std::string_view> all) {
  if (!says(from)) return;
  const std::string text = values_.text(from, "");
  const bool whole = std::find(all.begin(), all.end(), text) != all.end();
  out_["adapter.targets"] = whole ? "all-linear" : text;
}

void Recipe::precision(bool bf16, bool fp16, bool weights_are_16_bit) {
  out_["train.precision"] = !bf16 && !fp16        ? "fp32"
                            : !weights_are_16_bit ? "autocast"
                            : bf16                ? "bf16"
                                                  : "fp16";
}

void Recipe::ignore(std::initializer_list<std::string_view> names) {
  for (const auto& entry : flat_) {
    const bool known = std::any_of(names.begin(), names.end(),
                                   [&](std::string_view name) { return is_key_named(entry.first, name); });
    if (known) values_.text(entry.first, "");
  }
}

void Recipe::refuse(const std::string& key, std::string_view why) {
  if (refused_.ok()) refused_ = Status::unsupported(fmt::format("{}: {}", key, why));
}

void Recipe::refuse_said(const std::string& key, std::string_view why) {
  if (says(key)) refuse(key, fmt::format("'{}' is not modelled: {}", values_.text(key, ""), why));
}

void Recipe::refuse_flag(const std::string& key, std::string_view why) {
  if (flag(key)) refuse(key, fmt::format("not modelled: {}", why));
}

// Adapters are counted beside transformers' own code, which has none of these.
void Recipe::drop_beside_adapter() {
  if (out_.count("adapter.kind") == 0) return;
  std::vector<std::string> dropped;
  for (const char* key : {"train.loss", "offload.optimizer", "offload.parameters", "offload.activations"}) {
    const auto found = out_.find(key);
    if (found == out_.end()) continue;
    dropped.push_back(fmt::format("{} = {}", key, found->second));
    out_.erase(found);
  }
  if (!dropped.empty())
    warnings_.push_back(
        fmt::format("not counted beside an adapter, which needs less with it: {}", fmt::join(dropped, ", ")));
}

// By its section where several keys of one are not read.
void Recipe::name_unread() {
  constexpr int kSeveral = 3;
  std::vector<std::string> unread;
  std::map<std::string, int> sections;
  for (const std::string& key : values_.unread()) {
    const std::string value = lower_case(values_.peek(key));
    if (value == "false" || value == "none" || value == "null" || value == "0") continue;
    unread.push_back(key);
    ++sections[key.substr(0, key.rfind('.') + 1)];
  }
  std::vector<std::string> named;
  for (const std::string& key : unread) {
    const std::string section = key.substr(0, key.rfind('.') + 1);
    const std::string name = section.empty() || sections[section] < kSeveral ? key : section + "*";
    if (named.empty() || named.back() != name) named.push_back(name);
  }
  if (!named.empty())
    warnings_.push_back(
        fmt::format("not read, so that what they change is not in the figures: {}", fmt::join(named, ", ")));
}

Result<RunKeys> Recipe::finish() {
  if (!refused_.ok()) return refused_;
  if (!values_.status().ok()) return values_.status();
  drop_beside_adapter();
  name_unread();
  add_warnings(warnings_, out_);
  return std::move(out_);
}

}  // namespace spillway::estimator
