#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/key_values.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {
namespace {

// Keys that move or change what is held in a way that is not modelled, by how they begin.
struct Refusal {
  const char* key;
  const char* reason;
};
constexpr std::array<Refusal, 13> kRefused = {
    {{"compression_training", "weights are pruned or quantised"},
     {"sparse_attention", "attention scores are kept in blocks"},
     {"zero_optimization.zero_quantized", "weights or gradients are quantised on their way"},
     {"zero_optimization.zero_hpz_partition_size", "a second copy of the weights is kept in each node"},
     {"zero_optimization.mics_shard_size", "weights are sharded in groups"},
     {"zero_optimization.zenflow", "some gradients stay on the device"},
     {"zero_optimization.offload_optimizer.ratio", "a part of the optimizer stays on the device"},
     {"zero_optimization.offload_optimizer.super_offload",
      "the optimizer is divided between device and host"},
     {"zero_optimization.legacy_stage1", "an older implementation is used"},
     {"zero_optimization.cpu_offload", "it is an older name of offload_optimizer and offload_param"},
     {"curriculum_learning.enabled", "sequences change their length"},
     {"data_efficiency.enabled", "sequences change their length"},
     {"pipeline", "stages are not described by the file"}}};

bool asks_for(const std::string& value) {
  return value != "none" && value != "false" && value != "null" && value != "1" && value != "1.0" &&
         value != "0";
}

Status refuse_unmodelled(const std::map<std::string, std::string>& flat) {
  for (const auto& [key, value] : flat) {
    for (const Refusal& refusal : kRefused) {
      if (key.rfind(refusal.key, 0) == 0 && asks_for(value))
        return Status::unsupported(fmt::format("{} is not modelled: {}", key, refusal.reason));
    }
  }
  return {};
}

class Translator {
 public:
  Translator(std::map<std::string, std::string> flat, int64_t gpus) : values_(std::move(flat)), gpus_(gpus) {}

  Result<RunKeys> keys() {
    const int64_t stage = values_.whole("zero_optimization.stage", 0, 0, 3);
    out_["parallel.zero"] = std::to_string(stage);
    batch();
    precision();
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
      out_["train.precision"] = fp16 ? "fp16-mixed" : bf16 ? "bf16-mixed" : "fp32";
    if (values_.text("data_types.grad_accum_dtype", "null") == "fp32") out_["train.gradients"] = "fp32";
  }

  void optimizer() {
    const std::string type = values_.text("optimizer.type", "");
    if (type.empty() || type == "Adam" || type == "AdamW") return;
    if (type == "Lion" || type == "Muon" || type == "SGD") {
      out_["train.optimizer"] = type == "Lion" ? "lion" : type == "Muon" ? "muon" : "sgd-momentum";
      return;
    }
    values_.complain(
        fmt::format("optimizer.type: '{}' is not modelled; allowed: Adam, AdamW, Lion, Muon, SGD", type));
  }

  void buckets(int64_t stage) {
    out_["communication.engine"] = "deepspeed";
    copy("zero_optimization.reduce_bucket_size", "communication.reduce_bucket_size");
    // One buffer is filled while the other is reduced; without contiguous gradients there is one flat copy.
    const bool overlaps = flag("zero_optimization.overlap_comm", stage == 3);
    const bool contiguous = flag("zero_optimization.contiguous_gradients", true);
    out_["communication.overlap_comm"] = overlaps && contiguous ? "true" : "false";
    if (stage < 3) return;
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
  if (Status status = refuse_unmodelled(flat.value()); !status.ok()) return status;
  return Translator(std::move(flat.value()), gpus).keys();
}

}  // namespace spillway::estimator
