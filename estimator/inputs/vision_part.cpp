#include "estimator/inputs/vision_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "estimator/inputs/described_model.h"
#include "estimator/inputs/key_expression.h"
#include "estimator/inputs/model_descriptions.h"
#include "estimator/inputs/unread_keys.h"

namespace spillway::estimator {
namespace {

constexpr const char* kSection = "vision_config.";
// Qwen2.5-VL's model card: 1280 tokens of 28 x 28 pixels at most.
constexpr int64_t kUsualPixels = 1280 * 28 * 28;
constexpr int64_t kMostPixels = int64_t{1} << 28;
constexpr int64_t kMostImages = 4096;
// Products of two such widths fit 64 bits.
constexpr int64_t kMostWidth = int64_t{1} << 24;

bool has_type(std::string_view description, std::string_view type) {
  const std::vector<std::string_view> words = split(description.substr(0, description.find('\n')), ' ');
  return std::find(words.begin() + 1, words.end(), type) != words.end();
}

// Reads the lines of one composite type.
class VisionReader {
 public:
  VisionReader(KeyValues& values, const std::string& prefix, Model& model, Notes& notes)
      : values_(values), prefix_(prefix), model_(model), notes_(notes), in_(values, prefix) {
    in_.set("text", model.hidden);
    in_.set("layer", 0);
  }

  Tower read(std::string_view description) {
    for (const std::string_view line : split(description.substr(description.find('\n') + 1), '\n')) {
      const std::vector<std::string_view> words = split(line, ' ');
      if (words[0] == "vision") read_tower(std::string(words[1]));
      if (words[0] == "let") in_.define(words[1], words[2]);
      if (words[0] == "connector") tower_.connector = connector(words);
      if (words[0] == "passes") values_.count(prefix_ + std::string(words[1]));
      if (words[0] == "warn" && in_.evaluate(words[1]) != 0)
        notes_.warnings.push_back(fmt::format("{}", fmt::join(words.begin() + 2, words.end(), " ")));
    }
    return std::move(tower_);
  }

 private:
  // The type that the file names, where it is written down; else the usual one.
  void read_tower(const std::string& usual) {
    const std::string section = prefix_ + kSection;
    const std::string said = values_.text(section + "model_type", "");
    const bool known = !said.empty() && !find_description(said).empty();
    const std::string type = known ? said : usual;
    Model vision = read_described(values_, section, find_description(type), notes_);
    tower_ = std::move(vision.towers.back());
    if (tower_.sequence > KeyValues::kMostEntries || tower_.patch_pixels > kMostPixels)
      values_.complain(fmt::format("{}image_size: more patches than any machine holds", section));
    tower_.sequence = std::min(tower_.sequence, KeyValues::kMostEntries);
    tower_.name = "vision";
    tower_.type = type;
    tower_.hidden = vision.hidden;
    tower_.fixed = true;
    tower_.divided = false;
    tower_.final_norm_parameters += vision.head_parameters;
    in_.set("v", vision.hidden);
    in_.set("tokens", tower_.sequence);
  }

  Connector connector(const std::vector<std::string_view>& words) {
    std::map<std::string_view, std::string_view> sizes;
    for (size_t i = 1; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      sizes[words[i].substr(0, equals)] = words[i].substr(equals + 1);
    }
    const auto size = [&](std::string_view name, int64_t otherwise) {
      const auto found = sizes.find(name);
      return found == sizes.end() ? otherwise : in_.evaluate(found->second);
    };
    Connector out;
    out.merged = std::max<int64_t>(1, size("merged", 1));
    out.in = size("in", 1);
    out.inner = size("inner", 0);
    out.out = size("out", model_.hidden);
    out.halves = size("halves", 0) != 0;
    out.bias = size("bias", 0) != 0;
    out.count = std::max<int64_t>(1, size("count", 1));
    out.other_parameters = size("other", 0);
    for (int64_t* width : {&out.in, &out.inner, &out.out, &out.count, &out.other_parameters}) {
      if (*width >= 0 && (*width <= kMostWidth || width == &out.other_parameters)) continue;
      values_.complain(fmt::format("{}{}: widths of more than any machine holds", prefix_, kSection));
      *width = 1;
    }
    return out;
  }

  KeyValues& values_;
  const std::string& prefix_;
  Model& model_;
  Notes& notes_;
  KeyExpressions in_;
  Tower tower_ = {};
};

}  // namespace

std::vector<std::string_view> vision_language_types() {
  std::vector<std::string_view> out;
  for (const std::string_view description : vision_language_descriptions()) {
    const std::vector<std::string_view> words = split(description.substr(0, description.find('\n')), ' ');
    out.insert(out.end(), words.begin() + 1, words.end());
  }
  return out;
}

bool add_vision(KeyValues& values, const std::string& prefix, const std::string& whole, Model& model,
                Notes& notes) {
  if (!values.has_any(prefix + kSection)) return false;
  for (const std::string_view description : vision_language_descriptions()) {
    if (!has_type(description, whole)) continue;
    model.towers.insert(model.towers.begin(), VisionReader(values, prefix, model, notes).read(description));
    values.text(prefix + kSection + "vocab_size", "");  // PaliGemma's, of the text
    for (const std::string& key : unread_sizes(values, prefix + kSection))
      notes.warnings.push_back(
          fmt::format("{}{}{}: not read: what it changes is not in the figures", prefix, kSection, key));
    values.count(prefix + kSection);  // the rest of the section changes no size
    return true;
  }
  return false;
}

void read_images(KeyValues& values, TrainingRun& run) {
  Tower& tower = run.model.towers.front();
  if (!tower.connector) {
    for (const char* key : {"train.images", "train.image_pixels", "train.freeze_vision"}) {
      if (values.has(key))
        values.complain(fmt::format("{}: not allowed; the model has no tower of images", key));
    }
    return;
  }
  tower.sequences = values.whole("train.images", 1, 0, kMostImages);
  tower.frozen = values.truth("train.freeze_vision");
  if (tower.patch_pixels > 0) {
    const int64_t pixels = values.whole("train.image_pixels", kUsualPixels, tower.patch_pixels, kMostPixels);
    tower.sequence = pixels / tower.patch_pixels;
  } else if (values.has("train.image_pixels")) {
    values.complain(fmt::format(
        "train.image_pixels: not allowed; an image of this type of model has {} patches", tower.sequence));
  }
  const int64_t tokens = tower.sequences * tower.sequence / tower.connector->merged;
  if (const int64_t all = run.model.towers.back().sequence; tokens > all)
    values.complain(fmt::format("train.images: '{}' have {} tokens; allowed: up to the {} of train.sequence",
                                tower.sequences, tokens, all));
}

}  // namespace spillway::estimator
