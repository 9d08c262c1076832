#include <fmt/format.h>

#include <array>

#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/key_values.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {
namespace {

// Sections that move or change what is held in a way that is not modelled.
constexpr std::array<const char*, 6> kRefused = {"zero_optimization.offload_optimizer.device",
                                                 "zero_optimization.offload_param.device",
                                                 "activation_checkpointing.cpu_checkpointing",
                                                 "activation_checkpointing.partition_activations",
                                                 "compression_training",
                                                 "zero_optimization.zero_quantized_weights"};

bool asks_for(const std::string& value) {
  return value != "none" && value != "false" && value != "null";
}

}  // namespace

Result<RunKeys> read_deepspeed_json(const std::string& text) {
  Result<std::map<std::string, std::string>> flat = flatten_json(text);
  if (!flat.ok()) return flat.take_status();
  for (const auto& [key, value] : flat.value()) {
    for (const char* refused : kRefused) {
      if (key.rfind(refused, 0) == 0 && asks_for(value))
        return Status::unsupported(fmt::format("{} is not modelled", key));
    }
  }
  KeyValues values(flat.value());
  RunKeys out;
  out["parallel.zero"] = std::to_string(values.whole("zero_optimization.stage", 0, 0, 3));
  const auto copy = [&](const char* from, const char* to) {
    if (values.has(from)) out[to] = values.text(from, "");
  };
  copy("train_micro_batch_size_per_gpu", "train.micro_batch");
  copy("gradient_accumulation_steps", "train.gradient_accumulation");
  const bool fp16 = values.flag("fp16.enabled");
  const bool bf16 = values.flag("bf16.enabled");
  out["train.precision"] = fp16 ? "fp16-mixed" : bf16 ? "bf16-mixed" : "fp32";
  if (!values.status().ok()) return values.status();
  return out;
}

}  // namespace spillway::estimator
