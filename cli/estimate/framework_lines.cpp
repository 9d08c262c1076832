#include "cli/estimate/framework_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "estimator/inputs/nearest.h"

namespace spillway {
namespace {

using estimator::PlanSetting;
using estimator::PlanSettings;
using Json = nlohmann::ordered_json;

// One setting in one framework. "{}" is the value; "*" any value. A text that begins with "/" is a place in a
// JSON file and what stands there. A setting may have several rows.
struct LineRow {
  std::string_view framework;
  std::string_view key;
  std::string_view value;
  std::string_view place;
  std::string_view text;
};

constexpr std::string_view kArguments = "TrainingArguments(...)";
constexpr std::string_view kModel = "AutoModelForCausalLM.from_pretrained(...)";
constexpr std::string_view kPeft = "get_peft_model(model, ...)";
constexpr std::string_view kDeepspeed = "DeepSpeed's JSON";
constexpr std::string_view kFsdp = "Accelerate's YAML";
constexpr std::string_view kProgram = "the program";
constexpr std::string_view kYaml = "the recipe's YAML";
constexpr std::string_view kToml = "the job's TOML";

constexpr std::array<LineRow, 60> kLineRows = {{
    {"transformers", "train.micro_batch", "*", kArguments, "per_device_train_batch_size={},"},
    {"transformers", "train.gradient_accumulation", "*", kArguments, "gradient_accumulation_steps={},"},
    {"transformers", "train.recompute", "full", kArguments, "gradient_checkpointing=True,"},
    {"transformers", "train.loss", "fused-linear", kArguments, "use_liger_kernel=True,"},
    {"transformers", "train.attention", "flash", kModel, "attn_implementation=\"flash_attention_2\","},
    {"transformers", "train.optimizer_step", "fused", kArguments, "optim=\"adamw_torch_fused\","},
    {"transformers", "train.optimizer", "adamw8bit", kArguments, "optim=\"adamw_bnb_8bit\","},
    {"transformers", "train.optimizer", "adafactor", kArguments, "optim=\"adafactor\","},
    {"transformers", "train.precision", "bf16", kModel, "dtype=torch.bfloat16,"},
    {"transformers", "offload.activations", "host", kProgram,
     "with torch.autograd.graph.save_on_cpu(pin_memory=True): loss = model(**batch).loss"},
    {"transformers", "adapter.kind", "lora", kPeft, "LoraConfig(task_type=\"CAUSAL_LM\","},
    {"transformers", "adapter.kind", "qlora", kPeft, "LoraConfig(task_type=\"CAUSAL_LM\","},
    {"transformers", "adapter.rank", "*", kPeft, "           r={},"},
    {"transformers", "adapter.targets", "*", kPeft, "           target_modules=\"{}\")"},
    {"transformers", "model.weights", "nf4", kModel,
     "quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\", "
     "bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16),"},

    {"deepspeed", "train.micro_batch", "*", kDeepspeed, "/train_micro_batch_size_per_gpu {}"},
    {"deepspeed", "train.gradient_accumulation", "*", kDeepspeed, "/gradient_accumulation_steps {}"},
    {"deepspeed", "train.recompute", "full", kProgram, "model.gradient_checkpointing_enable()"},
    {"deepspeed", "train.loss", "fused-linear", kProgram,
     "liger_kernel.transformers.AutoLigerKernelForCausalLM instead of AutoModelForCausalLM"},
    {"deepspeed", "train.attention", "flash", kModel, "attn_implementation=\"flash_attention_2\","},
    {"deepspeed", "train.optimizer", "adamw8bit", kProgram, "bitsandbytes.optim.AdamW8bit as the optimizer"},
    {"deepspeed", "train.optimizer", "adafactor", kProgram, "transformers.Adafactor as the optimizer"},
    {"deepspeed", "offload.activations", "host", kProgram,
     "with torch.autograd.graph.save_on_cpu(pin_memory=True): loss = model(**batch).loss"},

    {"torchtitan", "train.micro_batch", "*", kToml, "training.local_batch_size = {}"},
    {"torchtitan", "train.gradient_accumulation", "*", kToml,
     "# training.global_batch_size stays: {} steps are accumulated"},
    {"torchtitan", "train.recompute", "full", kToml, "activation_checkpoint.mode = \"full\""},
    {"torchtitan", "parallel.tensor", "*", kToml, "parallelism.tensor_parallel_degree = {}"},
    {"torchtitan", "parallel.sequence_parallel", "true", kToml,
     "# sequence parallelism comes with tensor parallelism"},
    {"torchtitan", "parallel.pipeline", "*", kToml, "parallelism.pipeline_parallel_degree = {}"},
    {"torchtitan", "parallel.context", "*", kToml, "parallelism.context_parallel_degree = {}"},
    {"torchtitan", "parallel.expert", "*", kToml, "parallelism.expert_parallel_degree = {}"},
    {"torchtitan", "parallel.zero", "3", kToml, "parallelism.data_parallel_shard_degree = -1"},

    {"torchtune", "train.micro_batch", "*", kYaml, "batch_size: {}"},
    {"torchtune", "train.gradient_accumulation", "*", kYaml, "gradient_accumulation_steps: {}"},
    {"torchtune", "train.recompute", "full", kYaml, "enable_activation_checkpointing: True"},
    {"torchtune", "train.loss", "fused-linear", kYaml,
     "loss._component_: torchtune.modules.loss.LinearCrossEntropyLoss"},
    {"torchtune", "train.optimizer", "adamw8bit", kYaml,
     "optimizer._component_: bitsandbytes.optim.AdamW8bit"},
    {"torchtune", "train.precision", "bf16", kYaml, "dtype: bf16"},
    {"torchtune", "offload.activations", "host", kYaml, "enable_activation_offloading: True"},
    {"torchtune", "parallel.tensor", "*", kYaml, "tensor_parallel_dim: {}"},
    {"torchtune", "parallel.sequence_parallel", "true", kYaml,
     "# tensor_parallel_plan: the model's, which divides the sequence"},

    {"axolotl", "train.micro_batch", "*", kYaml, "micro_batch_size: {}"},
    {"axolotl", "train.gradient_accumulation", "*", kYaml, "gradient_accumulation_steps: {}"},
    {"axolotl", "train.recompute", "full", kYaml, "gradient_checkpointing: true"},
    {"axolotl", "train.loss", "fused-linear", kYaml, "plugins: [axolotl.integrations.liger.LigerPlugin]"},
    {"axolotl", "train.loss", "fused-linear", kYaml, "liger_fused_linear_cross_entropy: true"},
    {"axolotl", "train.attention", "flash", kYaml, "flash_attention: true"},
    {"axolotl", "train.optimizer_step", "fused", kYaml, "optimizer: adamw_torch_fused"},
    {"axolotl", "train.optimizer", "adamw8bit", kYaml, "optimizer: adamw_bnb_8bit"},
    {"axolotl", "train.optimizer", "adafactor", kYaml, "optimizer: adafactor"},
    {"axolotl", "train.precision", "bf16", kYaml, "bf16: full"},
    {"axolotl", "offload.activations", "host", kYaml, "activation_offloading: true"},
    {"axolotl", "adapter.kind", "lora", kYaml, "adapter: lora"},
    {"axolotl", "adapter.kind", "qlora", kYaml, "adapter: qlora"},
    {"axolotl", "adapter.rank", "*", kYaml, "lora_r: {}"},
    {"axolotl", "adapter.targets", "all-linear", kYaml, "lora_target_linear: true"},
    {"axolotl", "model.weights", "nf4", kYaml, "load_in_4bit: true"},

    // Of [serve] the option has the same name.
    {"vllm", "serve.enforce_eager", "true", "vllm serve MODEL", "--enforce-eager"},
    {"vllm", "model.weights", "fp8", "vllm serve MODEL", "--quantization fp8"},
    {"vllm", "model.weights", "int4", "vllm serve MODEL",
     "# a checkpoint of 4 bits (AWQ or GPTQ) in the place of MODEL"},
}};

// DeepSpeed's engine under DeepSpeed itself, transformers and axolotl.
constexpr std::array<LineRow, 14> kDeepspeedRows = {{
    {"", "parallel.zero", "*", kDeepspeed, "/zero_optimization/stage {}"},
    {"", "communication.engine", "deepspeed", kDeepspeed, "/zero_optimization/overlap_comm false"},
    {"", "offload.optimizer", "host", kDeepspeed, "/zero_optimization/offload_optimizer/device \"cpu\""},
    {"", "offload.optimizer", "host", kDeepspeed, "/zero_optimization/offload_optimizer/pin_memory true"},
    {"", "offload.parameters", "host", kDeepspeed, "/zero_optimization/offload_param/device \"cpu\""},
    {"", "offload.parameters", "host", kDeepspeed, "/zero_optimization/offload_param/pin_memory true"},
    {"", "communication.engine", "deepspeed", kDeepspeed, "/zero_optimization/reduce_bucket_size 500000000"},
    {"", "communication.engine", "deepspeed", kDeepspeed, "/bf16/enabled true"},
    // Their trainers name the file and fill in what it leaves to them.
    {"transformers", "communication.engine", "deepspeed", kArguments, "deepspeed=\"deepspeed.json\","},
    {"transformers", "communication.engine", "deepspeed", kDeepspeed,
     "/train_micro_batch_size_per_gpu \"auto\""},
    {"transformers", "communication.engine", "deepspeed", kDeepspeed,
     "/gradient_accumulation_steps \"auto\""},
    {"axolotl", "communication.engine", "deepspeed", kYaml, "deepspeed: deepspeed.json"},
    {"axolotl", "communication.engine", "deepspeed", kDeepspeed, "/train_micro_batch_size_per_gpu \"auto\""},
    {"axolotl", "communication.engine", "deepspeed", kDeepspeed, "/gradient_accumulation_steps \"auto\""},
}};

// Accelerate's FSDP under transformers and axolotl.
constexpr std::array<LineRow, 4> kFsdpRows = {{
    {"", "parallel.zero", "3", kFsdp, "distributed_type: FSDP"},
    {"", "parallel.zero", "3", kFsdp,
     "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true, fsdp_auto_wrap_policy: "
     "TRANSFORMER_BASED_WRAP}"},
    {"", "parallel.zero", "2", kFsdp, "distributed_type: FSDP"},
    {"", "parallel.zero", "2", kFsdp,
     "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, fsdp_auto_wrap_policy: "
     "TRANSFORMER_BASED_WRAP}"},
}};

bool matches(const LineRow& row, const PlanSetting& setting) {
  return row.key == setting.key && (row.value == "*" || row.value == setting.value);
}

std::string filled(std::string_view text, const std::string& value) {
  std::string out(text);
  if (const size_t at = out.find("{}"); at != std::string::npos) out.replace(at, 2, value);
  return out;
}

struct Line {
  std::string place;
  std::string text;
};

template <typename Rows>
void add_rows(const Rows& rows, std::string_view framework, const PlanSetting& setting,
              std::vector<Line>& out) {
  for (const LineRow& row : rows) {
    if (row.framework == framework && matches(row, setting))
      out.push_back({std::string(row.place), filled(row.text, setting.value)});
  }
}

bool has_deepspeed(std::string_view framework) {
  return framework == "transformers" || framework == "deepspeed" || framework == "axolotl";
}

// The framework's lines of one setting; none where it cannot be told.
std::vector<Line> lines_of(std::string_view framework, const PlanSetting& setting, bool deepspeed) {
  const auto& [key, value] = setting;
  if (framework == "run-file") return {{"the run file", fmt::format("{} = \"{}\"", key, value)}};
  if (framework == "megatron")
    return {{"arguments", value == "true" ? "--" + key : fmt::format("--{} {}", key, value)}};
  std::vector<Line> out;
  add_rows(kLineRows, framework, setting, out);
  if (!out.empty()) return out;
  if (framework == "vllm" && key.rfind("serve.", 0) == 0) {
    std::string option = key.substr(6);
    std::replace(option.begin(), option.end(), '_', '-');
    return {{"vllm serve MODEL", fmt::format("--{} {}", option, value)}};
  }
  if (!has_deepspeed(framework)) return out;
  if (!deepspeed && framework != "deepspeed") {
    add_rows(kFsdpRows, "", setting, out);
    return out;
  }
  add_rows(kDeepspeedRows, "", setting, out);
  add_rows(kDeepspeedRows, framework, setting, out);
  return out;
}

bool turns_to_deepspeed(const PlanSettings& settings) {
  return std::any_of(settings.begin(), settings.end(), [](const PlanSetting& setting) {
    return setting.key == "communication.engine" && setting.value == "deepspeed";
  });
}

// "/a/b 1" into {"a": {"b": 1}}.
void put(const std::string& text, Json& out) {
  const size_t space = text.find(' ');
  out[Json::json_pointer(text.substr(0, space))] = Json::parse(text.substr(space + 1));
}

void add_line(const Line& line, std::vector<FrameworkLines>& out) {
  auto at = std::find_if(out.begin(), out.end(), [&](const auto& each) { return each.place == line.place; });
  if (at == out.end()) at = out.insert(out.end(), {line.place, {}});
  if (std::find(at->lines.begin(), at->lines.end(), line.text) == at->lines.end())
    at->lines.push_back(line.text);
}

}  // namespace

const std::vector<std::string_view>& framework_names() {
  static const std::vector<std::string_view> kNames = {"run-file",   "transformers", "deepspeed", "megatron",
                                                       "torchtitan", "torchtune",    "axolotl",   "vllm"};
  return kNames;
}

Status check_framework(const std::string& name) {
  const std::vector<std::string_view>& names = framework_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return {};
  return Status::invalid_argument(fmt::format("--for '{}' is not allowed; allowed: {}{}", name,
                                              fmt::join(names, ", "), estimator::did_you_mean(name, names)));
}

bool framework_knows(std::string_view framework, const PlanSettings& settings, bool deepspeed) {
  const bool engine = deepspeed || turns_to_deepspeed(settings);
  return std::all_of(settings.begin(), settings.end(), [&](const PlanSetting& setting) {
    return !lines_of(framework, setting, engine).empty();
  });
}

std::vector<FrameworkLines> framework_lines(std::string_view framework, const PlanSettings& settings,
                                            bool deepspeed) {
  const bool engine = deepspeed || turns_to_deepspeed(settings);
  std::vector<FrameworkLines> out;
  Json file;
  for (const PlanSetting& setting : settings) {
    for (const Line& line : lines_of(framework, setting, engine)) {
      if (line.text.front() == '/')
        put(line.text, file);
      else
        add_line(line, out);
    }
  }
  if (file.is_null()) return out;
  std::istringstream text(file.dump(2));
  FrameworkLines json{std::string(kDeepspeed), {}};
  for (std::string line; std::getline(text, line);) json.lines.push_back(line);
  out.push_back(std::move(json));
  return out;
}

}  // namespace spillway
