#include "estimator/inputs/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "estimator/inputs/code_rows.h"
#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/key_values.h"
#include "estimator/inputs/nearest.h"
#include "estimator/inputs/quantization.h"
#include "estimator/inputs/run_sections.h"

namespace spillway::estimator {
namespace {

constexpr int64_t kMostServers = int64_t{1} << 16;
const std::string kModel = "model.";

// Says which layers see only the newest tokens where a type's file names no list of layers. Sources: vLLM,
// model_executor/models/<type>.py; transformers, configuration_<type>.py.
struct WindowRow {
  std::string_view type;
  int64_t reach;    // where the file does not say
  int64_t pattern;  // each n-th layer sees all; 0: none does
  bool chunks = false;
};
constexpr std::array<WindowRow, 12> kWindows = {{{"mistral", 4096, 0},
                                                 {"mixtral", 0, 0},
                                                 {"phi3", 0, 0},
                                                 {"starcoder2", 0, 0},
                                                 {"gemma2", 4096, 2},
                                                 {"gemma3_text", 4096, 6},
                                                 {"gemma3", 4096, 6},
                                                 {"gemma3n_text", 512, 5},
                                                 {"gemma4_text", 512, 6},
                                                 {"gpt_oss", 128, 2},
                                                 {"cohere2", 4096, 4},
                                                 {"llama4_text", 8192, 4, true}}};

struct Reach {
  CacheKind kind = CacheKind::kFull;
  int64_t tokens = 0;
};

class WindowReader {
 public:
  WindowReader(KeyValues& values, const std::string& type, size_t layers)
      : values_(values), row_(std::find_if(kWindows.begin(), kWindows.end(), [&](const WindowRow& row) {
          return row.type == type;
        })) {
    const bool chunks = row_ != kWindows.end() && row_->chunks;
    const char* const key = chunks ? "attention_chunk_size" : "sliding_window";
    const int64_t otherwise = row_ == kWindows.end() ? 0 : row_->reach;
    const std::string said = values.text(kModel + key, "absent");
    const bool none = said == "null" || (type.rfind("qwen", 0) == 0 && !switched_on());
    const int64_t tokens = none               ? 0
                           : said == "absent" ? otherwise
                                              : values.whole(kModel + key, otherwise, 1, int64_t{1} << 40);
    if (tokens == 0) {
      reaches_.assign(layers, {});
      return;
    }
    const Reach reach{chunks ? CacheKind::kChunk : CacheKind::kWindow, tokens};
    if (!listed(reach, layers)) patterned(reach, layers);
    if (type == "gemma4_text" && layers > 0) reaches_.back() = {};  // Gemma4TextConfig.__post_init__
  }

  std::vector<Reach> take() { return std::move(reaches_); }

 private:
  bool switched_on() { return values_.truth(kModel + "use_sliding_window", false); }

  // A list as JSON writes it: "full_attention", "sliding_attention", ...
  bool listed(const Reach& reach, size_t layers) {
    const std::string types = values_.text(kModel + "layer_types", "");
    for (size_t at = 0; reaches_.size() < layers;) {
      const size_t begin = types.find('"', at);
      const size_t end = begin == std::string::npos ? begin : types.find('"', begin + 1);
      if (end == std::string::npos) break;
      const std::string word = types.substr(begin + 1, end - begin - 1);
      reaches_.push_back(word == "sliding_attention" || word == "chunked_attention" ? reach : Reach{});
      at = end + 1;
    }
    if (reaches_.empty()) return false;
    reaches_.resize(layers);
    return true;
  }

  void patterned(const Reach& reach, size_t layers) {
    const std::string_view key =
        row_ != kWindows.end() && row_->chunks ? "no_rope_layer_interval" : "sliding_window_pattern";
    const int64_t otherwise = row_ == kWindows.end() ? 0 : row_->pattern;
    const std::string name = kModel + std::string(key);
    const int64_t pattern = values_.has(name) ? values_.whole(name, otherwise, 1, 10000) : otherwise;
    for (size_t i = 0; i < layers; ++i) {
      const bool sees_all = pattern > 0 && (i + 1) % static_cast<size_t>(pattern) == 0;
      reaches_.push_back(sees_all ? Reach{} : reach);
    }
  }

  KeyValues& values_;
  const WindowRow* row_;
  std::vector<Reach> reaches_ = {};
};

class CacheLister {
 public:
  CacheLister(const Reach& reach, std::vector<CacheLayer>& out) : reach_(reach), out_(out) {}

  void operator()(const Attention& block) const {
    if (block.shares_keys) return;
    CacheLayer layer;
    if (block.latent.has_value()) {
      layer.heads = 1;
      layer.width = block.latent->key_value_rank + block.latent->rotary_dim;
      layer.latent = true;
    } else {
      layer.kind = reach_.kind;
      layer.reach = reach_.tokens;
      layer.heads = block.key_value_heads;
      layer.width = 2 * block.head_dim;
    }
    out_.push_back(layer);
  }
  void operator()(const Mixer& block) const {
    if (block.convolution_state + block.recurrent_state == 0) return;
    CacheLayer layer;
    layer.kind = CacheKind::kState;
    layer.convolution = block.convolution_state;
    layer.recurrent = block.recurrent_state;
    out_.push_back(layer);
  }
  void operator()(const Mamba& block) const {
    const int64_t inner = block.heads * block.head_dim;
    CacheLayer layer;
    layer.kind = CacheKind::kState;
    layer.convolution = (inner + 2 * block.groups * block.state) * (block.convolution - 1);
    layer.recurrent = inner * block.state;
    out_.push_back(layer);
  }
  template <typename Other>
  void operator()(const Other&) const {}

 private:
  Reach reach_;
  std::vector<CacheLayer>& out_;
};

double bytes_of(const std::string& dtype) {
  if (dtype.rfind("fp8", 0) == 0 || dtype == "int8" || dtype.rfind("float8", 0) == 0) return 1;
  if (dtype == "float32" || dtype == "fp32" || dtype == "float") return 4;
  return 2;
}

EngineVersion read_version(KeyValues& values) {
  EngineVersion out;
  const std::string key = "serve.vllm_version";
  if (!values.has(key)) {
    values.assume(key, fmt::format("{}.{}", out.major, out.minor));
    return out;
  }
  const std::string text = values.text(key, "");
  const char* const end = text.data() + text.size();
  const auto [dot, first] = std::from_chars(text.data(), end, out.major);
  const bool halved = first == std::errc() && dot != end && *dot == '.';
  const auto [rest, second] = halved ? std::from_chars(dot + 1, end, out.minor)
                                     : std::from_chars_result{text.data(), std::errc::invalid_argument};
  const bool whole = second == std::errc() && (rest == end || *rest == '.');
  if (!whole || out.major < 0 || out.minor < 0)
    values.complain(
        fmt::format("{}: '{}' is not allowed; allowed: versions such as 0.11 or 0.24.0", key, text));
  return out;
}

ServingSettings read_settings(KeyValues& values) {
  ServingSettings out;
  out.tensor = values.whole("serve.tensor_parallel_size", 1, 1, kMostServers);
  out.pipeline = values.whole("serve.pipeline_parallel_size", 1, 1, kMostServers);
  out.data = values.whole("serve.data_parallel_size", 1, 1, kMostServers);
  out.expert_parallel = values.truth("serve.enable_expert_parallel");
  out.utilization = values.number("serve.gpu_memory_utilization", 0.9, 0.001, 1);
  const auto if_said = [&](const char* key, int64_t most) {
    return values.has(key) ? values.whole(key, 1, 1, most) : 0;
  };
  if (values.has("serve.mem_fraction_static"))
    out.static_fraction = values.number("serve.mem_fraction_static", 0.9, 0.001, 1);
  out.length = if_said("serve.max_model_len", KeyValues::kMostEntries);
  out.batched_tokens = if_said("serve.max_num_batched_tokens", KeyValues::kMostEntries);
  out.sequences = if_said("serve.max_num_seqs", 1 << 20);
  const std::string dtype =
      values.choice("serve.dtype", "auto", {"auto", "bfloat16", "float16", "half", "float32", "float"});
  // Both engines run a checkpoint of 32 bits in 16.
  out.element_bytes = dtype == "auto" ? 2 : bytes_of(dtype);
  const std::string cache =
      values.choice("serve.kv_cache_dtype", "auto",
                    {"auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"});
  out.cache_bytes = cache == "auto" ? out.element_bytes : bytes_of(cache);
  out.block = values.whole("serve.block_size", 16, 1, 1 << 16);
  out.graphs = !values.truth("serve.enforce_eager");
  out.prefix_caching = values.truth("serve.enable_prefix_caching", true);
  if (values.has("serve.kv_cache_memory_bytes")) {
    out.cache_memory = read_size(values, "serve.kv_cache_memory_bytes", 0);
    if (out.cache_memory == 0)
      values.complain("serve.kv_cache_memory_bytes: '0' is not allowed; allowed: sizes such as 8GiB");
  }
  out.requests = values.whole("serve.requests", 1, 1, 1 << 20);
  out.version = read_version(values);
  return out;
}

// States of linear attention, whose file may say so; Kimi's are always in 32 bits.
double recurrent_bytes(KeyValues& values, const std::string& type, double otherwise) {
  if (type == "kimi_linear") return 4;
  for (const char* key : {"mamba_ssm_dtype", "mamba_ssm_cache_dtype"}) {
    const std::string said = values.text(kModel + key, "");
    if (!said.empty() && said != "null" && said != "auto") return bytes_of(said);
  }
  return otherwise;
}

// vLLM keeps sines and cosines for every position (rotary_embedding/base.py).
double rotary_bytes(KeyValues& values, const Model& model, const ServingSettings& settings) {
  if (model.positions > 0) return 0;
  std::string key = "partial_rotary_factor";
  for (const char* other : {"rotary_pct", "rope_parameters.partial_rotary_factor"}) {
    if (values.has(kModel + other)) key = other;
  }
  const CodeRow* const row = find_code_row(model.type);
  const double share = values.number(kModel + key, row == nullptr ? 1 : row->rotary, 0, 1);
  const Tower& tower = model.towers.back();
  for (const Layer& layer : tower.layers) {
    for (const Block& block : layer) {
      const auto* const attention = std::get_if<Attention>(&block);
      if (attention == nullptr) continue;
      const double rotated = attention->latent.has_value()
                                 ? static_cast<double>(attention->latent->rotary_dim)
                                 : share * static_cast<double>(attention->head_dim);
      return static_cast<double>(std::max(tower.sequence, settings.length)) * rotated *
             settings.element_bytes;
    }
  }
  return 0;
}

std::string cannot_serve(const Model& model) {
  const bool has_images = model.towers.size() == 2 && model.towers.front().connector;
  if ((model.towers.size() != 1 && !has_images) || !model.vocabulary_head)
    return fmt::format("model_type '{}' generates no text by itself; allowed: decoders with a language head",
                       model.type);
  for (const Layer& layer : model.towers.back().layers) {
    for (const Block& block : layer) {
      const auto* const attention = std::get_if<Attention>(&block);
      if (attention != nullptr && attention->cross)
        return fmt::format("model_type '{}' has an encoder, which is not modelled; allowed: decoders",
                           model.type);
    }
  }
  return {};
}

std::string contradiction(const ServingRun& run) {
  const ServingSettings& settings = run.settings;
  const auto layers = static_cast<int64_t>(run.caches.size());
  if (run.settings.pipeline > 1 && shares_weights(run.model))
    return fmt::format(
        "serve.pipeline_parallel_size: '{}' is not allowed; allowed: 1 for a model whose layers share "
        "weights",
        run.settings.pipeline);
  if (settings.pipeline > layers)
    return fmt::format("serve.pipeline_parallel_size: '{}' is not allowed; allowed: up to {} layers",
                       settings.pipeline, layers);
  for (const Layer& layer : run.model.towers.back().layers) {
    for (const Block& block : layer) {
      const auto* const attention = std::get_if<Attention>(&block);
      if (attention != nullptr && attention->heads % settings.tensor != 0)
        return fmt::format(
            "serve.tensor_parallel_size: '{}' is not allowed; allowed: divisors of {} attention heads",
            settings.tensor, attention->heads);
      const auto* const experts = std::get_if<Experts>(&block);
      const int64_t ranks = settings.tensor * settings.data;
      if (experts != nullptr && settings.expert_parallel && experts->count < ranks)
        return fmt::format(
            "serve.enable_expert_parallel: {} ranks for {} experts; allowed: no more ranks than experts",
            ranks, experts->count);
    }
  }
  return {};
}

bool is_encoder(const std::string& type) {
  constexpr std::array kTypes = {std::string_view("bert"),
                                 std::string_view("roberta"),
                                 std::string_view("xlm-roberta"),
                                 std::string_view("camembert"),
                                 std::string_view("electra"),
                                 std::string_view("distilbert"),
                                 std::string_view("albert"),
                                 std::string_view("mpnet"),
                                 std::string_view("modernbert"),
                                 std::string_view("deberta"),
                                 std::string_view("deberta-v2"),
                                 std::string_view("data2vec-text"),
                                 std::string_view("megatron-bert"),
                                 std::string_view("xlm-roberta-xl"),
                                 std::string_view("roberta-prelayernorm")};
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

}  // namespace

const std::vector<std::string_view>& serving_key_names() {
  static const std::vector<std::string_view> kNames = {"serve.tensor_parallel_size",
                                                       "serve.pipeline_parallel_size",
                                                       "serve.data_parallel_size",
                                                       "serve.enable_expert_parallel",
                                                       "serve.gpu_memory_utilization",
                                                       "serve.mem_fraction_static",
                                                       "serve.max_model_len",
                                                       "serve.max_num_batched_tokens",
                                                       "serve.max_num_seqs",
                                                       "serve.dtype",
                                                       "serve.kv_cache_dtype",
                                                       "serve.block_size",
                                                       "serve.enforce_eager",
                                                       "serve.enable_prefix_caching",
                                                       "serve.kv_cache_memory_bytes",
                                                       "serve.requests",
                                                       "serve.vllm_version"};
  return kNames;
}

const std::vector<std::string_view>& image_key_names() {
  static const std::vector<std::string_view> kNames = {"serve.images",  "serve.resolution",
                                                       "serve.dtype",   "serve.guidance",
                                                       "serve.offload", "serve.vae_slicing"};
  return kNames;
}

bool asks_to_serve(const RunKeys& keys) {
  const auto found = keys.lower_bound("serve.");
  return found != keys.end() && found->first.rfind("serve.", 0) == 0;
}

std::string serving_key(const std::string& name) {
  std::string plain = name;
  plain.erase(0, plain.rfind("--", 0) == 0 ? 2 : 0);
  std::replace(plain.begin(), plain.end(), '-', '_');
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kWords = {
      {{"tp", "tensor_parallel_size"},
       {"tp_size", "tensor_parallel_size"},
       {"pp", "pipeline_parallel_size"},
       {"pp_size", "pipeline_parallel_size"},
       {"dp", "data_parallel_size"},
       {"dp_size", "data_parallel_size"},
       {"context_length", "max_model_len"},
       {"max_running_requests", "max_num_seqs"},
       {"kv_cache_memory", "kv_cache_memory_bytes"}}};
  const bool sectioned = plain.rfind("serve.", 0) == 0;
  std::string bare = sectioned ? plain.substr(6) : plain;
  for (const auto& [word, key] : kWords) {
    if (bare == word) bare = key;
  }
  std::string full = "serve." + bare;
  const auto has = [&](const std::vector<std::string_view>& names) {
    return std::find(names.begin(), names.end(), full) != names.end();
  };
  if (has(serving_key_names()) || has(image_key_names())) return full;
  return name;
}

void mark_serving_model_keys(KeyValues& values) {
  for (const char* key : {"sliding_window", "use_sliding_window", "attention_chunk_size", "layer_types",
                          "sliding_window_pattern", "no_rope_layer_interval", "mamba_ssm_dtype",
                          "mamba_ssm_cache_dtype", "partial_rotary_factor", "rotary_pct"})
    values.text(kModel + key, "");
}

Result<ServingRun> read_serving(const RunKeys& written) {
  RunKeys keys;
  for (const auto& [name, value] : written)
    keys[name.rfind("serve.", 0) == 0 ? serving_key(name) : name] = value;
  KeyValues values(keys);
  ServingRun run;
  for (auto at = keys.lower_bound("warning."); at != keys.end() && at->first.rfind("warning.", 0) == 0; ++at)
    run.notes.warnings.push_back(values.text(at->first, ""));
  Result<Model> model = read_hugging_face(values, kModel, run.notes);
  if (!model.ok()) return model.take_status();
  run.model = std::move(model.value());
  if (const std::string problem = cannot_serve(run.model); !problem.empty())
    return Status::unsupported(problem);
  if (is_encoder(run.model.type))
    return Status::unsupported(
        fmt::format("model_type '{}' generates no text by itself; allowed: decoders with a language head",
                    run.model.type));
  run.settings = read_settings(values);
  const std::string as = values.text(kModel + "read_as", "");
  const std::string type = as.empty() ? run.model.type : as;
  run.settings.recurrent_bytes = recurrent_bytes(values, type, run.settings.element_bytes);
  const QuantisedWeights quantised = read_quantised_weights(values, kModel, run.notes);
  run.frozen = quantised.weights;
  run.padded_experts = quantised.weights.only_experts;
  const std::vector<Layer>& layers = run.model.towers.back().layers;
  const std::vector<Reach> reaches = WindowReader(values, type, layers.size()).take();
  for (size_t i = 0; i < layers.size(); ++i) {
    run.caches.emplace_back();
    for (const Block& block : layers[i]) std::visit(CacheLister(reaches[i], run.caches.back()), block);
  }
  run.rotary_bytes = rotary_bytes(values, run.model, run.settings);
  if (!values.status().ok()) return values.status();
  for (const std::string& key : values.unread()) {
    // What is said of training is another question's.
    if (key.rfind("serve.", 0) != 0) continue;
    return Status::invalid_argument(
        fmt::format("{}: not known; allowed: the keys listed in docs/estimate-serving.md{}", key,
                    did_you_mean(key, serving_key_names())));
  }
  if (const std::string text = contradiction(run); !text.empty()) return Status::invalid_argument(text);
  for (const std::string& assumed : values.assumed()) {
    if (assumed.rfind("train.", 0) != 0) run.notes.assumptions.push_back(assumed);
  }
  return run;
}

}  // namespace spillway::estimator
