#include "estimator/inputs/described_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "estimator/inputs/hugging_face_heads.h"
#include "estimator/inputs/key_expression.h"
#include "estimator/inputs/model_descriptions.h"
#include "estimator/inputs/transformers_release.h"

namespace spillway::estimator {
namespace {

constexpr int64_t kMostLayers = 10000;
constexpr int64_t kMostElements = int64_t{1} << 46;

// A block of a layer: what it is, its sizes, and in which layers it is.
struct BlockLine {
  std::string_view kind;
  std::map<std::string_view, std::string_view> sizes = {};
  std::string_view condition = "1";
};

BlockLine block_line(const std::vector<std::string_view>& words) {
  BlockLine out{words.front()};
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "if" && i + 1 < words.size()) {
      out.condition = words[++i];
    } else if (const size_t equals = words[i].find('='); equals != std::string_view::npos) {
      out.sizes[words[i].substr(0, equals)] = words[i].substr(equals + 1);
    }
  }
  return out;
}

class Describer {
 public:
  Describer(KeyValues& values, const std::string& prefix, Notes& notes)
      : values_(values), prefix_(prefix), notes_(notes), in_(values, prefix) {
    in_.set("layer", 0);
    in_.set("labels", label_count(values, prefix));
    in_.set("four", transformers_release(values, prefix) < kFive ? 1 : 0);
    model_.tied = false;
    model_.vocabulary_head = false;
  }

  Model build(std::string_view description) {
    wanted_ = class_name(values_, prefix_);
    for (const std::string_view line : split(description, '\n')) statement(split(line, ' '));
    finish_layers();
    check_shared_keys();
    // A composite model's class is named for the whole, and has the language part's usual head.
    const bool is_whole = values_.has(prefix_ + "part_of") && wanted_.ends_with("ForConditionalGeneration");
    if (!wanted_.empty() && !found_class_ && !is_whole) {
      notes_.warnings.push_back(fmt::format(
          "architectures: '{}' is not modelled: the usual class of its type is counted", wanted_));
    }
    if (!model_.vocabulary_head) model_.tied = true;
    return std::move(model_);
  }

 private:
  void statement(const std::vector<std::string_view>& words) {
    const std::string_view what = words.front();
    if (words.size() < 2) return;
    if (what == "let") {
      in_.define(words[1], words[2]);
    } else if (what == "tower") {
      finish_layers();
      model_.towers.push_back({});
      model_.towers.back().name = words[1];
      model_.towers.back().sequence = std::max<int64_t>(1, value(words[2]));
      model_.towers.back().fixed = words.size() > 3;
      if (words.size() > 4) model_.towers.back().patch_pixels = value(words[4]);
    } else if (what == "layers") {
      finish_layers();
      layers_ = value(words[1]);
      if (layers_ > kMostLayers) {
        values_.complain(fmt::format("{}{}: '{}' is not allowed; allowed: up to {} layers", prefix_, words[1],
                                     layers_, kMostLayers));
        layers_ = 1;
      }
    } else if (what == "class") {
      set_class(words);
    } else if (what == "refuse") {
      if (value(words[1]) != 0) refuse(words);
    } else if (what == "warn") {
      if (value(words[1]) != 0)
        notes_.warnings.push_back(fmt::format("{}", fmt::join(words.begin() + 2, words.end(), " ")));
    } else if (what == "passes") {
      for (size_t i = 1; i < words.size(); ++i) values_.pass(prefix_ + std::string(words[i]));
    } else if (layers_ >= 0) {
      blocks_.push_back(block_line(words));
    } else {
      set_size(what, value(words[1]));
    }
  }

  // "refuse EXPRESSION KEY [ALLOWED...]"
  void refuse(const std::vector<std::string_view>& words) {
    const std::string key = prefix_ + std::string(words[2]), text = values_.text(key, "");
    if (words.size() == 3) {
      values_.complain(fmt::format("{}: '{}' is not modelled for this type", key, text));
    } else {
      values_.complain(fmt::format("{}: {}; allowed: {}", key,
                                   values_.has(key) ? fmt::format("'{}' is not allowed", text) : "missing",
                                   fmt::join(words.begin() + 3, words.end(), " ")));
    }
  }

  void set_size(std::string_view what, int64_t size) {
    if (what == "hidden") model_.hidden = std::max<int64_t>(1, size);
    if (what == "embedding") model_.embedding = size;
    if (what == "vocabulary") model_.vocabulary = size;
    if (what == "tied") model_.tied = size != 0;
    if (what == "positions") model_.positions = size;
    if (what == "segments") model_.token_types = size;
    if (what == "bias") bias_ = size != 0;
    if (what == "input") model_.towers.back().input_parameters = size;
    if (what == "sharded") model_.towers.back().sharded_input_parameters = size;
    if (what == "norm") model_.towers.back().final_norm_parameters = size;
  }

  // "class ENDING PARAMETERS [vocabulary]": the first is the usual one.
  void set_class(const std::vector<std::string_view>& words) {
    const std::string_view ending = words[1];
    const bool is_it =
        wanted_.size() >= ending.size() && wanted_.substr(wanted_.size() - ending.size()) == ending;
    if (found_class_ || (seen_class_ && !is_it)) return;
    seen_class_ = true;
    found_class_ = is_it;
    model_.head_parameters = value(words[2]);
    model_.vocabulary_head = words.size() > 3;
    model_.output_bias = model_.vocabulary_head && bias_;
  }

  int64_t value(std::string_view expression) { return in_.evaluate(expression); }

  void finish_layers() {
    for (int64_t i = 0; i < layers_; ++i) {
      in_.set("layer", i);
      Layer layer;
      for (const BlockLine& line : blocks_) {
        if (value(line.condition) != 0) layer.push_back(block(line));
      }
      if (layer.empty())
        values_.complain(
            fmt::format("{}layers: layer {} is of no kind that is known for this type", prefix_, i));
      model_.towers.back().layers.push_back(std::move(layer));
    }
    in_.set("layer", 0);
    layers_ = -1;
    blocks_.clear();
  }

  // A layer that makes no keys and values needs one of its kind before it that does.
  void check_shared_keys() {
    std::vector<bool> made;
    for (const Layer& layer : model_.towers.empty() ? std::vector<Layer>() : model_.towers.back().layers) {
      const auto* attention = layer.empty() ? nullptr : std::get_if<Attention>(&layer.front());
      if (attention == nullptr) continue;
      if (!attention->shares_keys) made.push_back(attention->sees_all);
      if (std::find(made.begin(), made.end(), attention->sees_all) != made.end()) continue;
      values_.complain(fmt::format(
          "{0}num_kv_shared_layers: '{1}' is not allowed; allowed: as many as leave a layer of each kind of "
          "attention before them",
          prefix_, values_.text(prefix_ + "num_kv_shared_layers", "")));
      return;
    }
  }

  int64_t size(const BlockLine& line, const char* name, int64_t otherwise = 0) {
    const auto found = line.sizes.find(name);
    return found == line.sizes.end() ? otherwise : value(found->second);
  }

  Block block(const BlockLine& line) {
    if (line.kind == "attention") return attention(line);
    if (line.kind == "mlp")
      return Mlp{std::max<int64_t>(1, size(line, "ffn")), size(line, "gated") != 0, size(line, "bias") != 0,
                 size(line, "norm"), shared_weights(line)};
    if (line.kind == "experts") return experts(line);
    Mixer out{size(line, "matrix"), size(line, "other"), size(line, "norm"),
              size(line, "saved"),  size(line, "conv"),  size(line, "state")};
    out.kind = mixer_kind(line);
    return out;
  }

  std::optional<SharedWeights> shared_weights(const BlockLine& line) {
    if (line.sizes.count("set") == 0) return {};
    return SharedWeights{size(line, "set"), size(line, "first") != 0, size(line, "rank")};
  }

  MixerKind mixer_kind(const BlockLine& line) {
    if (size(line, "projection") != 0) return OwnProjection{};
    const int64_t kernel = size(line, "kernel");
    if (const int64_t width = size(line, "input"); width > 0) return LayerInput{width};
    if (const int64_t versions = size(line, "versions"); versions > 0)
      return AltUp{versions, size(line, "rank")};
    if (const int64_t heads = size(line, "value_heads"); heads > 0)
      return DeltaNet{size(line, "key_heads"), heads,  size(line, "key_dim"),
                      size(line, "value_dim"), kernel, size(line, "joined") != 0};
    if (const int64_t tokens = size(line, "block"); tokens > 0)
      return LightningAttention{size(line, "heads"), size(line, "dim"), tokens};
    if (const int64_t inner = size(line, "inner"); inner > 0)
      return SelectiveScan{inner,
                           size(line, "states"),
                           size(line, "rank"),
                           kernel,
                           size(line, "bias") != 0,
                           size(line, "conv_bias") != 0,
                           static_cast<SelectiveScan::Norms>(std::clamp<int64_t>(size(line, "norms"), 0, 2))};
    if (const int64_t heads = size(line, "heads"); heads > 0)
      return StateSpace{heads,
                        size(line, "dim"),
                        size(line, "states"),
                        std::max<int64_t>(1, size(line, "groups")),
                        kernel,
                        std::max<int64_t>(1, size(line, "chunk")),
                        size(line, "bias") != 0,
                        size(line, "out_bias") != 0,
                        size(line, "conv_bias") != 0,
                        size(line, "normed") != 0};
    if (kernel > 0) return ShortConvolution{kernel, size(line, "bias") != 0};
    return {};
  }

  Attention attention(const BlockLine& line) {
    const int64_t heads = std::max<int64_t>(1, size(line, "heads"));
    Attention out{heads, std::max<int64_t>(1, size(line, "kv", heads)),
                  std::max<int64_t>(1, size(line, "dim", model_.hidden / heads))};
    const int64_t bias = size(line, "bias");
    out.query_key_value_bias = size(line, "qkv_bias", bias) != 0;
    out.output_bias = size(line, "out_bias", bias) != 0;
    out.norm_parameters = size(line, "norm");
    out.head_norm_parameters = size(line, "head_norms");
    out.extra_parameters = size(line, "extra");
    out.cross = size(line, "cross") != 0;
    out.shares_keys = size(line, "shares_keys") != 0;
    out.makes_keys = size(line, "makes_keys") != 0;
    out.keys_are_values = size(line, "keys_are_values") != 0;
    out.sees_all = size(line, "sees_all", 1) != 0;
    out.gated = size(line, "gated") != 0;
    out.input = size(line, "input");
    out.shared = shared_weights(line);
    if (line.sizes.count("kv_rank") != 0) {
      out.latent = LatentAttention{size(line, "q_rank"), size(line, "kv_rank"), size(line, "nope"),
                                   size(line, "rope"), size(line, "value")};
      out.head_norm_parameters = out.latent->query_rank + out.latent->key_value_rank;
    }
    return out;
  }

  Experts experts(const BlockLine& line) {
    Experts out;
    out.count = size(line, "count");
    out.top_k = std::max<int64_t>(1, size(line, "top"));
    out.ffn = std::max<int64_t>(1, size(line, "ffn"));
    out.shared_ffn = size(line, "shared");
    out.gated = size(line, "gated", 1) != 0;
    out.bias = size(line, "bias") != 0;
    out.router_bias = size(line, "router_bias") != 0;
    out.shared_gate = size(line, "shared_gate") != 0;
    out.norm_parameters = size(line, "norm");
    return out;
  }

  KeyValues& values_;
  const std::string& prefix_;
  Notes& notes_;
  KeyExpressions in_;
  Model model_ = {};
  std::vector<BlockLine> blocks_ = {};
  int64_t layers_ = -1;  // of the group that is being described; negative: none is
  std::string wanted_ = {};
  bool found_class_ = false, seen_class_ = false, bias_ = false;
};

}  // namespace

Model read_described(KeyValues& values, const std::string& prefix, std::string_view description,
                     Notes& notes) {
  Model model = Describer(values, prefix, notes).build(description);
  if (model.towers.empty() || model.towers.back().layers.empty())
    values.complain(fmt::format("{}layers: '0' is not allowed; allowed: numbers from 1", prefix));
  if (model.vocabulary > KeyValues::kMostEntries || model.head_parameters > kMostElements)
    values.complain(fmt::format("{}vocab_size: more than any machine holds", prefix));
  return model;
}

}  // namespace spillway::estimator
