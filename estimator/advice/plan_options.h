// Lists what plan.h may change of a run: axes, each with the run as it is as its first option.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "estimator/advice/plan.h"

namespace spillway::estimator {

enum class PlanAxis {
  kParallel,
  kSharding,
  kRecompute,
  kMicroBatch,
  kLoss,
  kAttention,
  kStep,
  kOptimizer,
  kOffloadOptimizer,
  kOffloadParameters,
  kOffloadActivations,
  kAdapter,
  kPrecision,
};
constexpr size_t kPlanAxes = 13;

struct PlanOption {
  Effect effect = Effect::kExact;
  PlanSettings settings;
  std::function<void(StepShape&)> apply;
};

struct PlanOptions {
  std::array<const char*, kPlanAxes> names = {};
  // These are of one axis in the order of what they cost; the strongest is the last.
  std::array<std::vector<PlanOption>, kPlanAxes> axes;

  const std::vector<PlanOption>& of(PlanAxis axis) const { return axes[static_cast<size_t>(axis)]; }
};

PlanOptions plan_options(const TrainingRun& run, const PlanRequest& request);

// One option of each axis.
using PlanChoice = std::array<uint8_t, kPlanAxes>;

// Options that do without each other: a rate of DeepSpeed's host optimizer beside another optimizer's states.
bool go_together(const PlanOptions& options, const PlanChoice& choice);

// The step of a choice. False where the samples of a step cannot be divided so.
bool shape_of(const TrainingRun& run, const PlanOptions& options, const PlanChoice& choice, StepShape& out);

// All settings of a choice, axis by axis. What follows from several (how many microbatches a step has) is
// the parallelism's or the micro-batch's.
std::array<PlanSettings, kPlanAxes> settings_of(const TrainingRun& run, const PlanOptions& options,
                                                const PlanChoice& choice, bool megatron);

}  // namespace spillway::estimator
