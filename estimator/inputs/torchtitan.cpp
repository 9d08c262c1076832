#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <array>

#include "estimator/inputs/key_values.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {
namespace {

// torchtitan, models/llama3: the flavors' sizes.
struct Flavor {
  const char* name;
  int64_t hidden, ffn, layers, heads, key_value_heads, vocabulary;
};
constexpr std::array<Flavor, 3> kFlavors = {{{"8B", 4096, 14336, 32, 32, 8, 128256},
                                             {"70B", 8192, 28672, 80, 64, 8, 128256},
                                             {"405B", 16384, 53248, 126, 128, 8, 128256}}};

Status add_model(KeyValues& values, RunKeys& out) {
  const std::string name = values.text("model.name", "");
  const std::string flavor = values.text("model.flavor", "");
  for (const Flavor& known : kFlavors) {
    if (name != "llama3" || flavor != known.name) continue;
    out["model.model_type"] = "llama";
    out["model.hidden_size"] = std::to_string(known.hidden);
    out["model.intermediate_size"] = std::to_string(known.ffn);
    out["model.num_hidden_layers"] = std::to_string(known.layers);
    out["model.num_attention_heads"] = std::to_string(known.heads);
    out["model.num_key_value_heads"] = std::to_string(known.key_value_heads);
    out["model.vocab_size"] = std::to_string(known.vocabulary);
    out["model.max_position_embeddings"] = "131072";
    return {};
  }
  return Status::unsupported(fmt::format(
      "model.flavor: '{}' of model.name '{}' is not known; allowed: llama3 in 8B, 70B, 405B", flavor, name));
}

// The keys below one table, as "section.key".
void flatten(const toml::table& table, const std::string& prefix, std::map<std::string, std::string>& out) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    if (const auto* inner = node.as_table()) {
      flatten(*inner, key + ".", out);
    } else if (const auto* text = node.as_string()) {
      out[key] = text->get();
    } else if (const auto* whole = node.as_integer()) {
      out[key] = std::to_string(whole->get());
    } else if (const auto* truth = node.as_boolean()) {
      out[key] = truth->get() ? "true" : "false";
    } else if (const auto* list = node.as_array(); list != nullptr && !list->empty()) {
      out[key] = "[...]";
    }
  }
}

std::string first_of(KeyValues& values, std::initializer_list<const char*> keys, const char* otherwise) {
  for (const char* key : keys) {
    if (values.has(key)) return values.text(key, otherwise);
  }
  return otherwise;
}

// Keys of sections that change what is held, and that change nothing themselves.
constexpr std::array<std::string_view, 22> kWithoutEffect = {"training.steps",
                                                             "training.dataset",
                                                             "training.dataset_path",
                                                             "training.seed",
                                                             "training.deterministic",
                                                             "training.max_norm",
                                                             "training.gc_freq",
                                                             "training.gc_debug",
                                                             "training.warmup_steps",
                                                             "training.debug_moe_force_load_balance",
                                                             "training.global_batch_size",
                                                             "training.data_parallel_degree",
                                                             "model.name",
                                                             "model.tokenizer_path",
                                                             "model.hf_assets_path",
                                                             "model.norm_type",
                                                             "model.print_after_conversion",
                                                             "model.tokenizer_name",
                                                             "parallelism.fsdp_reshard_after_forward",
                                                             "parallelism.context_parallel_rotate_method",
                                                             "parallelism.disable_loss_parallel",
                                                             "activation_checkpoint.preserve_rng_state"};

std::vector<std::string> left_out(const KeyValues& values) {
  std::vector<std::string> out;
  for (const std::string& key : values.unread()) {
    const std::string section = key.substr(0, key.find('.'));
    const bool changes_memory = section == "training" || section == "model" || section == "parallelism" ||
                                section == "activation_checkpoint" || section == "compile" ||
                                section == "quantize" || section == "float8" || section == "mx" ||
                                section == "experimental";
    const std::string value = values.peek(key);
    const bool says_no = value == "false" || value == "0" || value == "1" || value == "none" || value.empty();
    if (!changes_memory || says_no) continue;
    if (std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) != kWithoutEffect.end()) continue;
    out.push_back(fmt::format("{}: not read: what it changes is not in the figures", key));
  }
  return out;
}

// Says how the optimizer steps, and whether it and the weights lie in host memory (FSDP's CPU offload).
void add_step(KeyValues& values, RunKeys& out) {
  const std::string implementation =
      values.choice("optimizer.implementation", "fused", {"for-loop", "foreach", "fused"});
  values.choice("optimizer.name", "AdamW", {"AdamW", "Adam"});
  const bool early = values.flag("optimizer.early_step_in_backward");
  out["train.optimizer_step"] = early ? "in-backward" : implementation;
  if (!values.flag("training.enable_cpu_offload")) return;
  out["offload.optimizer"] = "host";
  out["offload.parameters"] = "host";
}

}  // namespace

bool is_torchtitan_toml(const std::string& text) {
  return text.find("[training]") != std::string::npos && text.find("flavor") != std::string::npos;
}

Result<RunKeys> read_torchtitan_toml(const std::string& text, int64_t gpus) {
  std::map<std::string, std::string> flat;
  try {
    flatten(toml::parse(text), "", flat);
  } catch (const toml::parse_error& error) {
    return Status::invalid_argument(
        fmt::format("line {}: not TOML: {}", error.source().begin.line, error.description()));
  }
  KeyValues values(std::move(flat));
  RunKeys out;
  if (Status status = add_model(values, out); !status.ok()) return status;
  if (values.has("model.converters"))
    return Status::unsupported("model.converters is not modelled: they replace linear layers; allowed: none");
  out["train.micro_batch"] = first_of(values, {"training.local_batch_size", "training.batch_size"}, "8");
  out["train.sequence"] = values.text("training.seq_len", "2048");
  // FSDP's mixed precision: fp32 shards, 16-bit while gathered.
  const bool fp32 =
      values.choice("training.mixed_precision_param", "bfloat16", {"bfloat16", "float32"}) == "float32";
  out["train.precision"] = fp32 ? "fp32" : "autocast";
  add_step(values, out);
  const std::string mode = values.choice("activation_checkpoint.mode", "none", {"none", "full", "selective"});
  const std::string selective = values.text("activation_checkpoint.selective_ac_option", "2");
  if (mode == "selective" && selective != "op") {
    return Status::unsupported(fmt::format(
        "activation_checkpoint.selective_ac_option: '{}' is not modelled: it recomputes some layers; "
        "allowed: op",
        selective));
  }
  out["train.recompute"] = mode == "selective" ? "operators" : mode;
  out["parallel.gpus"] = std::to_string(gpus);
  const bool shards = values.text("parallelism.data_parallel_shard_degree", "-1") != "1";
  out["parallel.zero"] = shards && gpus > 1 ? "3" : "0";
  out["parallel.replicas"] = values.text("parallelism.data_parallel_replicate_degree", "1");
  out["parallel.tensor"] = values.text("parallelism.tensor_parallel_degree", "1");
  out["parallel.sequence_parallel"] = "true";
  out["parallel.pipeline"] = values.text("parallelism.pipeline_parallel_degree", "1");
  out["parallel.context"] = values.text("parallelism.context_parallel_degree", "1");
  if (!values.status().ok()) return values.status();
  add_warnings(left_out(values), out);
  return out;
}

}  // namespace spillway::estimator
