#include "estimator/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>

#include "estimator/measured.h"

namespace spillway::estimator {
namespace {

struct Size {
  const char* name;
  double mebibytes;  // as nvidia-smi reports the whole
};
constexpr std::array<Size, 14> kSizes = {{{"a100-40", 40960},
                                          {"a100-80", 81920},
                                          {"h100-80", 81559},
                                          {"h100-94", 95830},
                                          {"h200", 143771},
                                          {"b200", 183359},
                                          {"gb200", 189471},
                                          {"l4", 23034},
                                          {"l40s", 46068},
                                          {"a10", 23028},
                                          {"t4", 15360},
                                          {"v100-32", 32768},
                                          {"rtx3090", 24576},
                                          {"rtx4090", 24564}}};

constexpr double kTightShare = 0.1;

std::string names() {
  std::string out;
  for (const Size& size : kSizes) out += (out.empty() ? "" : ", ") + std::string(size.name);
  return out;
}

struct Option {
  std::function<bool(const TrainingRun&)> applies;
  std::function<void(TrainingRun&)> change;
  const char* keys;
  const char* cost;
};

bool divides_states(const TrainingRun& run) {
  return run.parallel.data() * run.parallel.context > 1;
}

// Ordered by what they cost.
std::vector<Option> options() {
  return {
      {[](const TrainingRun& run) { return run.training.cross_entropy == CrossEntropy::kEager; },
       [](TrainingRun& run) { run.training.cross_entropy = CrossEntropy::kFusedLinear; },
       "train.loss = fused-linear", "none: another loss kernel"},
      {[](const TrainingRun& run) { return run.training.attention != AttentionKernel::kFlash; },
       [](TrainingRun& run) { run.training.attention = AttentionKernel::kFlash; }, "train.attention = flash",
       "none: another attention kernel"},
      {[](const TrainingRun& run) { return run.parallel.tensor > 1 && !run.parallel.sequence; },
       [](TrainingRun& run) { run.parallel.sequence = true; }, "parallel.sequence_parallel = true",
       "none: the same bytes are communicated"},
      {[](const TrainingRun& run) {
         return divides_states(run) && run.parallel.sharding == DataSharding::kNone;
       },
       [](TrainingRun& run) { run.parallel.sharding = DataSharding::kOptimizer; }, "parallel.zero = 1",
       "none: gathers replace an all-reduce"},
      {[](const TrainingRun& run) {
         return divides_states(run) && run.parallel.sharding < DataSharding::kParameters;
       },
       [](TrainingRun& run) { run.parallel.sharding = DataSharding::kParameters; }, "parallel.zero = 3",
       "half as much communication again"},
      {[](const TrainingRun& run) { return run.training.optimizer == OptimizerKind::kAdam; },
       [](TrainingRun& run) { run.training.optimizer = OptimizerKind::kAdam8bit; },
       "train.optimizer = adamw8bit", "8-bit optimizer states"},
      {[](const TrainingRun& run) {
         return run.training.recompute == Recompute::kNone &&
                run.training.attention != AttentionKernel::kFlash;
       },
       [](TrainingRun& run) {
         run.training.recompute = Recompute::kSelective;
         run.training.modules.attention_core = true;
       },
       "train.recompute = selective", "about 2 % more arithmetic"},
      {[](const TrainingRun& run) {
         return run.training.micro_batch > 1 && run.training.micro_batch % 2 == 0;
       },
       [](TrainingRun& run) {
         run.training.micro_batch /= 2;
         run.training.microbatches *= 2;
       },
       "train.micro_batch / 2, train.gradient_accumulation x 2", "smaller products"},
      {[](const TrainingRun& run) { return run.training.recompute != Recompute::kFull; },
       [](TrainingRun& run) {
         run.training.recompute = Recompute::kFull;
         run.training.modules = {};
       },
       "train.recompute = full", "a third more arithmetic"},
  };
}

}  // namespace

Result<GpuMemory> gpu_memory(const std::string& text) {
  for (const Size& size : kSizes) {
    if (text == size.name) return GpuMemory{text, size.mebibytes * kMiB};
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const double scale = unit == "GiB" ? 1024 * kMiB : unit == "MiB" ? kMiB : 0;
  if (error == std::errc() && scale > 0 && number > 0 && number * scale < 1e15)
    return GpuMemory{text, number * scale};
  return Status::invalid_argument(
      fmt::format("--gpu '{}' is not allowed; allowed: {}, or a size such as 24GiB", text, names()));
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFits:
      return "FITS";
    case Verdict::kTight:
      return "TIGHT";
    case Verdict::kNo:
      return "NO";
  }
  return "";
}

double needed_bytes(const TrainingRun& run, const Estimate& estimate) {
  return estimate.peak().peak_bytes + run.reserve.context_bytes + run.reserve.communicator_bytes;
}

Verdict verdict(double needed, const GpuMemory& gpu) {
  if (needed > gpu.bytes) return Verdict::kNo;
  return needed > (1 - kTightShare) * gpu.bytes ? Verdict::kTight : Verdict::kFits;
}

std::vector<Mitigation> mitigations(const TrainingRun& run) {
  std::vector<Mitigation> out;
  const Result<Estimate> base = estimate(run);
  if (!base.ok()) return out;
  const double before = base.value().peak().peak_bytes;
  for (const Option& option : options()) {
    if (!option.applies(run)) continue;
    TrainingRun changed = run;
    option.change(changed);
    const Result<Estimate> after = estimate(changed);
    if (!after.ok()) continue;
    const double saved = before - after.value().peak().peak_bytes;
    // Less than the interval is wide says nothing.
    if (saved < 0.01 * before) continue;
    out.push_back({option.keys, saved, option.cost});
  }
  std::stable_sort(out.begin(), out.end(), [](const Mitigation& a, const Mitigation& b) {
    return std::floor(10 * std::log2(a.saved_bytes)) > std::floor(10 * std::log2(b.saved_bytes));
  });
  return out;
}

}  // namespace spillway::estimator
