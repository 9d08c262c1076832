#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "estimator/inputs/deepspeed_keys.h"
#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/key_values.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {
namespace {

class Translator {
 public:
  Translator(std::map<std::string, std::string> flat, int64_t gpus) : values_(std::move(flat)), gpus_(gpus) {}

  Result<RunKeys> keys() {
    const int64_t stage = values_.whole("zero_optimization.stage", 0, 0, 3);
    out_["parallel.zero"] = std::to_string(stage);
    batch();
    precision();
    states();
    degrees();
    optimizer();
    if (stage > 0) buckets(stage);
    tier("zero_optimization.offload_optimizer", "offload.optimizer");
    tier("zero_optimization.offload_param", "offload.parameters");
    checkpointing();
    if (out_.count("offload.parameters") != 0 && stage < 3)
      values_.complain(
          "zero_optimization.offload_param: not allowed below zero_optimization.stage 3; allowed: device "
          "none");
    if (!values_.status().ok()) return values_.status();
    return std::move(out_);
  }

 private:
  bool says(const char* key) {
    return values_.has(key) && values_.text(key, "") != "auto" && values_.text(key, "") != "null";
  }
  void copy(const char* from, const char* to) {
    if (says(from)) out_[to] = values_.text(from, "");
  }

  // DeepSpeed, runtime/config.py: train_batch_size is the product of samples on a rank, accumulation and
  // ranks, and what is left out of the three follows from it; accumulation is 1 where only it is there.
  void batch() {
    constexpr const char* kAll = "train_batch_size";
    constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
    constexpr const char* kSteps = "gradient_accumulation_steps";
    copy(kMicro, "train.micro_batch");
    copy(kSteps, "train.gradient_accumulation");
    if (!says(kAll)) return;
    const int64_t all = values_.whole(kAll, 1, 1, int64_t{1} << 32);
    int64_t micro = says(kMicro) ? values_.required(kMicro) : 0;
    int64_t steps = says(kSteps) ? values_.required(kSteps) : micro > 0 && gpus_ > 0 ? 0 : 1;
    const int64_t gpus = gpus_ > 0 ? gpus_ : micro > 0 ? std::max<int64_t>(1, all / (micro * steps)) : 1;
    if (micro == 0) micro = std::max<int64_t>(1, all / (gpus * steps));
    if (steps == 0) steps = std::max<int64_t>(1, all / (gpus * micro));
    if (micro * steps * gpus != all) {
      values_.complain(
          fmt::format("{}: '{}' is not allowed; allowed: the product of {} {}, {} {} and {} GPUs", kAll, all,
                      kMicro, micro, kSteps, steps, gpus));
    }
    out_["train.micro_batch"] = std::to_string(micro);
    out_["train.gradient_accumulation"] = std::to_string(steps);
    out_["parallel.gpus"] = std::to_string(gpus);
  }

  bool flag(const char* key, bool otherwise) {
    const std::string text = values_.text(key, "null");
    return text == "null" || text == "auto" ? otherwise : values_.flag(key);
  }

  void precision() {
    // "auto" is filled in by the trainer: the run file's default is taken, and echoed.
    const auto automatic = [&](const char* key) { return values_.text(key, "") == "auto"; };
    const bool fp16 = flag("fp16.enabled", false);
    const bool bf16 = flag("bf16.enabled", false);
    if (fp16 && bf16)
      values_.complain("bf16.enabled: 'true' is not allowed beside fp16; allowed: one of them");
    if (fp16 || bf16 || (!automatic("fp16.enabled") && !automatic("bf16.enabled")))
      out_["train.precision"] = fp16 ? "fp16-mixed" : bf16 ? "bf16-mixed" : autocast() ? "autocast" : "fp32";
  }

  // torch.autocast over fp32 weights; beside bf16 and fp16, which make the weights 16-bit ones, it changes
  // nothing.
  bool autocast() {
    if (!flag("torch_autocast.enabled", false)) return false;
    const std::string type = values_.text("torch_autocast.dtype", "bfloat16");
    if (type.find("float16") != std::string::npos || type == "bf16" || type == "fp16" || type == "half")
      return true;
    values_.complain(
        fmt::format("torch_autocast.dtype: '{}' is not allowed; allowed: bfloat16, float16", type));
    return true;
  }

  // DeepSpeed, runtime/base_optimizer.py, _configure_master_weights: what is kept in 16 bits instead of 32.
  void states() {
    const bool bf16_master = flag("bf16.bf16_master_weights_and_grads", false);
    const bool bf16_states = flag("bf16.bf16_optimizer_states", false);
    const bool fp16_master = flag("fp16.fp16_master_weights_and_grads", false);
    const bool host = values_.text("zero_optimization.offload_optimizer.device", "none") != "none";
    if (bf16_states && !bf16_master)
      values_.complain(
          "bf16.bf16_optimizer_states: 'true' is not allowed without bf16.bf16_master_weights_and_grads");
    if (bf16_master && !bf16_states && !host)
      values_.complain(
          "bf16.bf16_master_weights_and_grads: 'true' is not allowed without bf16.bf16_optimizer_states, "
          "unless the "
          "optimizer is offloaded");
    if (bf16_master || fp16_master) out_["train.master_weights"] = "same";
    if (bf16_states || fp16_master) out_["train.optimizer_states"] = "same";
    const std::string type = values_.text("data_types.grad_accum_dtype", "null");
    if (type == "fp32" || type == "float32") out_["train.gradients"] = "fp32";
    const bool known = out_.count("train.gradients") != 0 || type == "null" || type == "auto" ||
                       type == "bf16" || type == "fp16" || type == "bfloat16" || type == "float16";
    if (!known)
      values_.complain(
          fmt::format("data_types.grad_accum_dtype: '{}' is not allowed; allowed: fp32, fp16, bf16", type));
  }

  // Ulysses divides each sequence over ranks, AutoTP the layers' matrices.
  void degrees() {
    copy("sequence_parallel_size", "parallel.context");
    copy("tensor_parallel.tp_size", "parallel.tensor");
    copy("tensor_parallel.tp.tp_size", "parallel.tensor");
    copy("tensor_parallel.tensor_parallel.tp_size", "parallel.tensor");
    copy("tensor_parallel.autotp_size", "parallel.tensor");
    if (out_.count("parallel.tensor") != 0 && out_["parallel.tensor"] == "0") out_.erase("parallel.tensor");
  }

  // DeepSpeed compares names in lower case.
  void optimizer() {
    std::string type = values_.text("optimizer.type", "");
    const std::string written = type;
    std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
    if (type.empty() || type == "auto" || type == "adam" || type == "adamw" || type == "lamb") return;
    if (type == "sgd") {
      const bool momentum =
          says("optimizer.params.momentum") && values_.number("optimizer.params.momentum", 0, 0, 1) > 0;
      out_["train.optimizer"] = momentum ? "sgd-momentum" : "sgd";
    } else if (type == "lion" || type == "muon") {
      out_["train.optimizer"] = type;
    } else if (type == "adagrad") {
      out_["train.optimizer"] = "sgd-momentum";  // one state of a weight's size
    } else {
      values_.complain(fmt::format(
          "optimizer.type: '{}' is not modelled; allowed: Adam, AdamW, Lamb, Adagrad, Lion, Muon, SGD",
          written));
    }
  }

  void buckets(int64_t stage) {
    out_["communication.engine"] = "deepspeed";
    copy("zero_optimization.reduce_bucket_size", "communication.reduce_bucket_size");
    // One buffer is filled while the other is reduced; without contiguous gradients there is one flat copy.
    const bool overlaps = flag("zero_optimization.overlap_comm", stage == 3);
    const bool contiguous = flag("zero_optimization.contiguous_gradients", true);
    out_["communication.overlap_comm"] = overlaps && contiguous ? "true" : "false";
    if (stage < 3) return;
    // Without it, or in a release before July 2026 that wraps no model made outside zero.Init, autograd holds
    // what the forward pass gathered.
    if (says("zero_optimization.memory_efficient_linear"))
      out_["communication.keeps_gathered_weights"] =
          flag("zero_optimization.memory_efficient_linear", true) ? "false" : "true";
    copy("zero_optimization.stage3_max_live_parameters", "communication.max_live_parameters");
    copy("zero_optimization.stage3_prefetch_bucket_size", "communication.prefetch_bucket_size");
  }

  void tier(const std::string& section, const char* to) {
    const std::string device = values_.text(section + ".device", "none");
    if (device == "none") return;
    if (device != "cpu" && device != "nvme") {
      values_.complain(
          fmt::format("{}.device: '{}' is not allowed; allowed: none, cpu, nvme", section, device));
      return;
    }
    out_[to] = device == "cpu" ? "host" : "nvme";
    if (device != "nvme") return;
    // Of the two sections the larger pool is taken for both.
    const auto at_least = [&](const char* key, double value) {
      const double before = out_.count(key) != 0 ? std::stod(out_[key]) : 0;
      out_[key] = fmt::format("{:.0f}", std::max(before, value));
    };
    if (values_.has(section + ".buffer_count"))
      at_least("offload.buffers", static_cast<double>(values_.whole(section + ".buffer_count", 4, 1, 1024)));
    if (values_.has(section + ".buffer_size"))
      at_least("offload.buffer", 2 * values_.number(section + ".buffer_size", 1e8, 0, 1e12));
  }

  // Layers are checkpointed by the model's code; a file that configures it is taken to say that they are.
  void checkpointing() {
    const bool partition = flag("activation_checkpointing.partition_activations", false);
    const bool host = flag("activation_checkpointing.cpu_checkpointing", false);
    const std::string count = values_.text("activation_checkpointing.number_checkpoints", "null");
    if (!partition && !host && count == "null") return;
    out_["train.recompute"] = "full";
    if (partition) out_["train.partition_checkpoints"] = "true";
    if (host) out_["offload.activations"] = "host";
    if (count != "null") out_["train.checkpoints"] = count;
  }

  KeyValues values_;
  int64_t gpus_;
  RunKeys out_ = {};
};

}  // namespace

Result<RunKeys> read_deepspeed_json(const std::string& text, int64_t gpus) {
  Result<std::map<std::string, std::string>> flat = flatten_json(text);
  if (!flat.ok()) return flat.take_status();
  if (Status status = refuse_deepspeed_keys(flat.value()); !status.ok()) return status;
  const std::vector<std::string> warnings = deepspeed_warnings(flat.value());
  Result<RunKeys> keys = Translator(std::move(flat.value()), gpus).keys();
  if (keys.ok()) add_warnings(warnings, keys.value());
  return keys;
}

}  // namespace spillway::estimator
