#include "estimator/inputs/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "estimator/diffusion/pipeline.h"
#include "estimator/inputs/json_object.h"
#include "estimator/inputs/nearest.h"

namespace spillway::estimator {
namespace {

using AdapterJson = nlohmann::json;

std::string joined(const AdapterJson& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string out;
  if (!value.is_array()) return out;
  for (const AdapterJson& each : value)
    out += (out.empty() ? "" : ",") + (each.is_string() ? each.get<std::string>() : each.dump());
  return out;
}

std::vector<std::string> listed(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const size_t first = text.find_first_not_of(' ', at);
    if (first < end) out.push_back(text.substr(first, text.find_last_not_of(' ', end - 1) + 1 - first));
    at = end + 1;
  }
  return out;
}

std::vector<std::string_view> denoiser_modules(const Pipeline& pipeline) {
  if (const auto* unet = std::get_if<UNet>(&pipeline.denoiser)) {
    std::vector<std::string_view> out = {"to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2"};
    if (unet->linear_projection) out.insert(out.end(), {"proj_in", "proj_out"});
    return out;
  }
  std::vector<std::string_view> out = {"to_q",
                                       "to_k",
                                       "to_v",
                                       "to_out.0",
                                       "add_q_proj",
                                       "add_k_proj",
                                       "add_v_proj",
                                       "to_add_out",
                                       "ff.net.0.proj",
                                       "ff.net.2",
                                       "ff_context.net.0.proj",
                                       "ff_context.net.2"};
  if (std::get<ImageTransformer>(pipeline.denoiser).rotary) out.emplace_back("proj_mlp");
  return out;
}

// What diffusers' examples adapt (text_to_image, dreambooth).
std::vector<std::string> usual_denoiser_targets(const Pipeline& pipeline) {
  std::vector<std::string> out = {"to_k", "to_q", "to_v", "to_out.0"};
  const auto* transformer = std::get_if<ImageTransformer>(&pipeline.denoiser);
  if (transformer == nullptr) return out;
  out.insert(out.end(), {"add_k_proj", "add_q_proj", "add_v_proj", "to_add_out"});
  if (transformer->rotary)
    out.insert(out.end(), {"ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"});
  return out;
}

using Names = std::vector<std::string_view>;

void append_modules(const std::monostate&, Names&) {}
void append_modules(const LayerInput&, Names& out) {
  out.insert(out.end(), {"per_layer_model_projection", "per_layer_input_gate", "per_layer_projection"});
}
void append_modules(const AltUp&, Names& out) {
  out.insert(out.end(), {"altup_projections", "altup_unembed_projections", "linear_left", "linear_right",
                         "modality_router", "prediction_coefs", "correction_coefs"});
}
void append_modules(const DeltaNet& net, Names& out) {
  if (net.joined)
    out.insert(out.end(), {"in_proj_qkvz", "in_proj_ba", "out_proj"});
  else
    out.insert(out.end(), {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"});
}
void append_modules(const OwnProjection&, Names& out) {
  out.insert(out.end(), {"linear", "0", "1"});
}
void append_modules(const ShortConvolution&, Names& out) {
  out.insert(out.end(), {"in_proj", "out_proj"});
}
void append_modules(const StateSpace&, Names& out) {
  out.insert(out.end(), {"in_proj", "out_proj"});
}

void append_modules(const SelectiveScan&, Names& out) {
  out.insert(out.end(), {"in_proj", "x_proj", "dt_proj", "out_proj"});
}

void append_modules(const LightningAttention&, Names& out) {
  out.insert(out.end(), {"qkv_proj", "output_gate", "out_proj"});
}

void append_mixers(const TrainingRun& run, Names& out) {
  for (const Layer& layer : run.model.towers.back().layers) {
    for (const Block& block : layer) {
      const auto* mixer = std::get_if<Mixer>(&block);
      if (mixer == nullptr) continue;
      std::visit([&](const auto& kind) { append_modules(kind, out); }, mixer->kind);
    }
  }
  // PEFT raises an error for this one (tuners_utils.py, _check_lora_target_modules_mamba).
  constexpr std::array kWithout = {"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"};
  if (std::find(kWithout.begin(), kWithout.end(), run.model.type) != kWithout.end())
    out.erase(std::remove(out.begin(), out.end(), "out_proj"), out.end());
}

bool attends(const Model& model) {
  return any_block(model, [](const Block& block) { return std::holds_alternative<Attention>(block); });
}

// Modules of the model's matrices, in the order of a layer.
std::vector<std::string_view> module_names(const TrainingRun& run) {
  if (run.model.pipeline) return denoiser_modules(*run.model.pipeline);
  const ModuleNames& names = run.code.names;
  std::vector<std::string_view> out;
  const auto* first = std::get_if<Attention>(&run.model.towers.back().layers.front().front());
  if (first != nullptr && first->latent) {
    if (first->latent->query_rank > 0)
      out = {"q_a_proj", "q_b_proj"};
    else
      out = {"q_proj"};
    out.insert(out.end(), {"kv_a_proj_with_mqa", "kv_b_proj"});
  } else if (!attends(run.model)) {
    append_mixers(run, out);
    return out;
  } else if (run.code.projection == ProjectionCode::kSeparate) {
    out = {names.query, names.key, names.value};
  } else {
    out = {names.joined};
  }
  out.emplace_back(names.output);
  append_mixers(run, out);
  for (const Tower& tower : run.model.towers) {
    for (const Layer& layer : tower.layers) {
      for (const Block& block : layer) {
        const auto* experts = std::get_if<Experts>(&block);
        if (experts != nullptr && experts->shared_ffn > 0)
          out.insert(out.end(), {names.gate, names.up, names.down});
        const auto* mlp = std::get_if<Mlp>(&block);
        if (mlp == nullptr) continue;
        if (mlp->gated) out.emplace_back(names.gate);
        if (!mlp->gated || !run.code.joined_feed_forward) out.emplace_back(names.up);
        out.emplace_back(names.down);
        break;
      }
    }
  }
  std::vector<std::string_view> unique;
  for (const std::string_view name : out) {
    if (std::find(unique.begin(), unique.end(), name) == unique.end()) unique.push_back(name);
  }
  return unique;
}

// Returns what PEFT takes where nobody says (utils/constants.py,
// TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING); empty where it asks.
std::vector<std::string> usual_targets(const TrainingRun& run) {
  if (run.model.pipeline) return usual_denoiser_targets(*run.model.pipeline);
  const std::string& type = run.model.type;
  struct Usual {
    std::vector<std::string> targets;
    std::vector<std::string_view> types;
  };
  // TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING, as far as names say which modules they are.
  static const std::vector<Usual> kScaled = {
      {{"k_proj", "v_proj", "down_proj"}, {"llama", "mistral"}},
      {{"q_proj", "v_proj", "down_proj"}, {"gemma", "gemma2", "gemma3_text", "qwen2", "qwen3", "llama4"}},
      {{"q_proj", "k_proj", "fc2"}, {"opt"}},
      {{"q_proj", "v_proj", "fc2"}, {"bart", "phi"}},
      {{"query_key_value", "dense_4h_to_h"}, {"gpt_neox", "bloom", "falcon"}},
      {{"q_proj", "v_proj", "fc_out"}, {"gptj"}},
      {{"k", "v", "wo"}, {"t5"}}};
  static const std::vector<Usual> kUsual = {
      {{"q_proj", "v_proj"},
       {"llama", "mistral", "mixtral", "stablelm", "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3", "opt",
        "bart", "gptj", "gpt_neo", "llama4"}},
      {{"query", "value"}, {"bert", "roberta", "xlm-roberta", "electra"}},
      {{"query_proj", "value_proj"}, {"deberta-v2"}},
      {{"query_key_value"}, {"gpt_neox", "bloom", "falcon"}},
      {{"c_attn"}, {"gpt2", "gpt_bigcode"}},
      {{"qkv_proj"}, {"codegen"}},
      {{"q", "v"}, {"t5", "mt5"}},
      {{"q_proj", "v_proj", "fc1", "fc2"}, {"phi"}}};
  for (const Usual& usual : run.training.adapter.kind == AdapterKind::kScaling ? kScaled : kUsual) {
    if (std::find(usual.types.begin(), usual.types.end(), type) != usual.types.end()) return usual.targets;
  }
  return {};
}

void read_targets(KeyValues& values, TrainingRun& run) {
  Adapter& adapter = run.training.adapter;
  const std::vector<std::string_view> names = module_names(run);
  const std::string text = values.text("adapter.targets", "");
  adapter.all_linear = text == "all-linear";
  adapter.targets = text.empty() ? usual_targets(run) : listed(text);
  // The examples name the modules of transformers' blocks with what they stand in.
  for (std::string& target : adapter.targets) {
    if (run.model.pipeline && target.starts_with("attn.")) target.erase(0, 5);
  }
  if (adapter.all_linear) return;
  if (adapter.targets.empty()) {
    values.complain(
        fmt::format("adapter.targets: missing; allowed: all-linear, or some of {}", fmt::join(names, ",")));
    return;
  }
  for (const std::string& target : adapter.targets) {
    if (std::find(names.begin(), names.end(), target) == names.end())
      values.complain(
          fmt::format("adapter.targets: no module of this model is called '{}'; allowed: all-linear, {}{}",
                      target, fmt::join(names, ", "), did_you_mean(target, names)));
  }
  if (text.empty()) values.assume("adapter.targets", fmt::format("{}", fmt::join(adapter.targets, ",")));
}

}  // namespace

Result<RunKeys> read_adapter_json(const std::string& text) {
  const Result<AdapterJson> root = read_json_object(text);
  if (!root.ok()) return root.status();
  const AdapterJson& file = root.value();
  const auto is = [&](const char* key) { return file.value(key, AdapterJson(false)) == AdapterJson(true); };
  const std::string type = file.contains("peft_type") ? joined(file["peft_type"]) : "LORA";
  if (type != "LORA" && type != "IA3" && type != "PROMPT_TUNING") {
    return Status::unsupported(
        fmt::format("peft_type: '{}' is not modelled; allowed: LORA, IA3, PROMPT_TUNING", type));
  }
  if (file.contains("bias") && joined(file["bias"]) != "none" && file["bias"].is_string())
    return Status::unsupported(
        fmt::format("bias: '{}' is not modelled; allowed: none", joined(file["bias"])));
  RunKeys out;
  const auto take = [&](const char* from, const char* to) {
    if (file.contains(from) && !joined(file[from]).empty()) out[to] = joined(file[from]);
  };
  if (type == "PROMPT_TUNING") {
    out["adapter.kind"] = "prompt";
    take("modules_to_save", "adapter.modules_to_save");
    if (file.contains("num_virtual_tokens") && !file["num_virtual_tokens"].is_null())
      out["adapter.virtual_tokens"] = file["num_virtual_tokens"].dump();
    return out;
  }
  if (file.contains("target_modules") && file["target_modules"].is_array() && file["target_modules"].empty())
    return Status::invalid_argument(
        "target_modules: '[]' names no module; allowed: names of modules, or null for what PEFT takes");
  if (type == "IA3") {
    out["adapter.kind"] = "ia3";
    take("target_modules", "adapter.targets");
    take("feedforward_modules", "adapter.scaled_inputs");
    if (file.contains("feedforward_modules") && file["feedforward_modules"].is_array() &&
        file["feedforward_modules"].empty())
      out["adapter.scaled_inputs"] = "none";
    take("modules_to_save", "adapter.modules_to_save");
    return out;
  }
  out["adapter.kind"] = is("use_dora") ? "dora" : is("use_rslora") ? "rslora" : "lora";
  if (file.contains("r")) out["adapter.rank"] = file["r"].dump();
  if (file.contains("lora_dropout")) out["adapter.dropout"] = file["lora_dropout"].dump();
  take("target_modules", "adapter.targets");
  take("modules_to_save", "adapter.modules_to_save");
  return out;
}

namespace {

struct KindName {
  const char* word;
  AdapterKind kind;
};
constexpr std::array<KindName, 7> kKinds = {{{"none", AdapterKind::kNone},
                                             {"lora", AdapterKind::kLowRank},
                                             {"rslora", AdapterKind::kLowRank},
                                             {"dora", AdapterKind::kLowRank},
                                             {"qlora", AdapterKind::kLowRank},
                                             {"ia3", AdapterKind::kScaling},
                                             {"prompt", AdapterKind::kPrompt}}};

struct KindKey {
  const char* key;
  std::vector<AdapterKind> kinds;  // that have it
  const char* words;
};

// A key of another kind changes nothing, so it is not what was meant.
void check_keys(KeyValues& values, AdapterKind kind) {
  using enum AdapterKind;
  constexpr const char* kLow = "lora, rslora, dora, qlora";
  static const std::vector<KindKey> kKeys = {
      {"rank", {kLowRank}, kLow},
      {"dropout", {kLowRank}, kLow},
      {"targets", {kLowRank, kScaling}, "lora, rslora, dora, qlora, ia3"},
      {"modules_to_save", {kLowRank, kScaling}, "lora, rslora, dora, qlora, ia3"},
      {"dtype", {kLowRank, kScaling}, "lora, rslora, dora, qlora, ia3"},
      {"scaled_inputs", {kScaling}, "ia3"},
      {"virtual_tokens", {kPrompt}, "prompt"}};
  for (const KindKey& each : kKeys) {
    const std::string key = fmt::format("adapter.{}", each.key);
    if (!values.has(key) || std::find(each.kinds.begin(), each.kinds.end(), kind) != each.kinds.end())
      continue;
    values.complain(kind == kNone
                        ? fmt::format("{}: not allowed without adapter.kind; allowed: {}", key, each.words)
                        : fmt::format("{}: not allowed beside adapter.kind '{}'; allowed: {}", key,
                                      values.peek("adapter.kind"), each.words));
  }
}

// peft/peft_model.py, PeftModelForCausalLM.forward: embeddings of the prompt stand before the text's, in a
// sequence that is so much longer, and are fp32 whatever the model is.
void read_prompt(KeyValues& values, TrainingRun& run) {
  Adapter& adapter = run.training.adapter;
  adapter.element = 4;
  adapter.virtual_tokens = values.whole("adapter.virtual_tokens", 20, 1, KeyValues::kMostEntries);
  if (run.model.pipeline || run.model.towers.size() > 1 || run.model.vocabulary == 0) {
    values.complain(
        "adapter.kind: 'prompt' is not modelled beside models of several parts; allowed: language "
        "models of one");
    return;
  }
  const int64_t sequence = run.model.towers.back().sequence;
  if (run.model.positions > 0 && sequence + adapter.virtual_tokens > run.model.positions)
    values.complain(
        fmt::format("adapter.virtual_tokens: '{}' is not allowed beside a sequence of {}; allowed: up to the "
                    "model's {} positions together",
                    adapter.virtual_tokens, sequence, run.model.positions));
}

// Of the targets that PEFT takes for feed-forward layers unless it is told, those that lead out of one.
void read_scaled_inputs(KeyValues& values, TrainingRun& run) {
  Adapter& adapter = run.training.adapter;
  const char* const key = "adapter.scaled_inputs";
  if (values.has(key)) {
    const std::string text = values.text(key, "");
    if (text != "none") adapter.scaled_inputs = listed(text);
  } else if (adapter.targets_module(run.code.names.down)) {
    adapter.scaled_inputs = {run.code.names.down};
    values.assume(key, run.code.names.down);
  }
  const std::vector<std::string_view> names = module_names(run);
  for (const std::string& name : adapter.scaled_inputs) {
    if (adapter.all_linear && std::find(names.begin(), names.end(), name) == names.end())
      values.complain(fmt::format("{}: no module of this model is called '{}'; allowed: {}", key, name,
                                  fmt::join(names, ", ")));
    if (!adapter.targets_module(name))
      values.complain(fmt::format("{}: '{}' is not allowed; allowed: some of adapter.targets, {}", key, name,
                                  fmt::join(adapter.targets, ", ")));
  }
  if (run.model.pipeline)
    values.complain(
        "adapter.kind: 'ia3' is not modelled beside models of images; allowed: lora, rslora, dora");
  if (run.training.frozen.on())
    values.complain(
        "adapter.kind: 'ia3' is not modelled beside quantised weights; allowed: qlora, or "
        "model.weights = trained");
}

}  // namespace

void read_adapter(KeyValues& values, TrainingRun& run) {
  const std::string word =
      values.choice("adapter.kind", "none", {"none", "lora", "rslora", "dora", "qlora", "ia3", "prompt"});
  Adapter& adapter = run.training.adapter;
  for (const KindName& each : kKinds) {
    if (word == each.word) adapter.kind = each.kind;
  }
  check_keys(values, adapter.kind);
  if (!adapter.on()) return;
  if (run.framework != Framework::kTransformers) {
    values.complain("adapter.kind: not modelled beside this train.framework; allowed: transformers");
    return;
  }
  if (adapter.kind == AdapterKind::kPrompt) return read_prompt(values, run);
  if (adapter.kind == AdapterKind::kLowRank) {
    adapter.rank = values.whole("adapter.rank", 8, 1, 1 << 16);
    adapter.dropout = values.number("adapter.dropout", 0, 0, 1) > 0;
  }
  adapter.dora = word == "dora";
  if (word == "qlora" && !run.training.frozen.on())
    values.complain(
        "adapter.kind: 'qlora' needs quantised weights; allowed: beside model.weights nf4, fp4 or int8");
  // PEFT casts adapters of 16-bit models to fp32 (autocast_adapter_dtype).
  const bool same = values.choice("adapter.dtype", "fp32", {"fp32", "same"}) == "same";
  adapter.element = same && run.training.precision != Precision::kFp32 && !run.training.autocast ? 2 : 4;
  adapter.trained_modules = listed(values.text("adapter.modules_to_save", ""));
  for (const std::string& module : adapter.trained_modules) {
    if (module != "lm_head" && module != "embed_tokens")
      values.complain(fmt::format(
          "adapter.modules_to_save: '{}' is not modelled; allowed: lm_head, embed_tokens", module));
  }
  read_targets(values, run);
  if (adapter.kind == AdapterKind::kScaling) read_scaled_inputs(values, run);
}

}  // namespace spillway::estimator
