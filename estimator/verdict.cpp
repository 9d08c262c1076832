#include "estimator/verdict.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "estimator/reserved.h"

namespace spillway::estimator {
namespace {

constexpr double kTightShare = 0.1;

struct Option {
  std::function<bool(const TrainingRun&)> applies;
  std::function<void(TrainingRun&)> change;
  const char* keys;
  const char* cost;
};

bool divides_states(const TrainingRun& run) {
  return !run.model.pipeline && run.parallel.data() * run.parallel.context > 1 &&
         !needs_whole_weights(run.training);
}

// For images that are made; ordered by what they cost.
std::vector<Option> options_of_generation() {
  return {{[](const TrainingRun& run) { return run.training.micro_batch > 1 && !run.imaging.sliced; },
           [](TrainingRun& run) { run.imaging.sliced = true; }, "serve.vae_slicing = true",
           "images are decoded one after the other"},
          {[](const TrainingRun& run) { return !run.imaging.offloads; },
           [](TrainingRun& run) { run.imaging.offloads = true; }, "serve.offload = model",
           "each part is copied to the device when it works"}};
}

// Ordered by what they cost.
std::vector<Option> options(const TrainingRun& run) {
  if (run.imaging.generates) return options_of_generation();
  return {
      {[](const TrainingRun& run) {
         return !run.model.pipeline && run.training.cross_entropy == CrossEntropy::kEager;
       },
       [](TrainingRun& run) { run.training.cross_entropy = CrossEntropy::kFusedLinear; },
       "train.loss = fused-linear", "none: another loss kernel"},
      {[](const TrainingRun& run) { return run.training.attention != AttentionKernel::kFlash; },
       [](TrainingRun& run) { run.training.attention = AttentionKernel::kFlash; }, "train.attention = flash",
       "none: another attention kernel"},
      {[](const TrainingRun& run) { return run.parallel.tensor > 1 && !run.parallel.sequence; },
       [](TrainingRun& run) { run.parallel.sequence = true; }, "parallel.sequence_parallel = true",
       "none: the same bytes are communicated"},
      {[](const TrainingRun& run) { return run.model.pipeline && run.imaging.encodes; },
       [](TrainingRun& run) { run.imaging.encodes = false; }, "train.encodes = false",
       "images and texts are encoded before, and read from disk"},
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
      {[](const TrainingRun& run) { return has_plain_adam(run.training); },
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
  const RankClass& rank = estimate.peak();
  return reserved_bytes(run, rank.held_bytes()).expected + rank.engine_bytes + run.reserve.context_bytes +
         run.reserve.communicator_bytes;
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
  for (const Option& option : options(run)) {
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
