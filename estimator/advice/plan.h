// The cheapest changes of a run that make it fit a GPU. Candidates are combinations of options, cheapest
// first by step_cost.h; each answer is read and estimated in full, and so is the answer without each of its
// changes, which says what that one saves. Changes that keep what is computed go before those that do not.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/advice/step_cost.h"
#include "estimator/estimate.h"
#include "estimator/verdict.h"

namespace spillway::estimator {

// A key of a run file, or an argument of Megatron-LM's.
struct PlanSetting {
  std::string key;
  std::string value;
};
using PlanSettings = std::vector<PlanSetting>;

enum class Effect {
  kExact,    // the same results, bit for bit
  kSame,     // mathematically the same, with sums in another order
  kChanged,  // other results
};
const char* effect_name(Effect effect);

struct PlanChange {
  const char* name = "";  // of what is changed: "recompute"
  PlanSettings settings;
  Effect effect = Effect::kExact;
  std::optional<double> saved_bytes;  // the answer without this change needs so much more; none where a
                                      // run without it contradicts itself
  StepWork added;                     // by this change
  double added_seconds = 0;           // of a step, at most; less than none where it saves time
};

struct PlanAnswer {
  std::vector<PlanChange> changes;
  Effect effect = Effect::kExact;
  TrainingRun run;
  Estimate estimate;
  double needed_bytes = 0;
  double added_seconds = 0;
  double step_seconds = 0;  // of the changed run, by the same published rates
};

struct Plan {
  double needed_bytes = 0;  // of the run as it is
  bool fits = false;        // as it is
  std::vector<PlanAnswer> answers;
  std::optional<PlanAnswer> least;  // where there are none: what needs the fewest bytes of all
};

constexpr size_t kMostAnswers = 5;

struct PlanRequest {
  GpuMemory gpu;
  // What changes the result so far that nobody would take it for the same run is tried where it is allowed.
  bool adapter = false;
  bool quant = false;      // with an adapter: weights of few bits are not trained
  bool precision = false;  // 16-bit weights without fp32 copies
  bool megatron = false;   // settings are Megatron-LM's arguments
  // The run with other settings, by the reader of its file.
  std::function<Result<TrainingRun>(const PlanSettings&)> read;
  // Can the user's framework be told so?
  std::function<bool(const PlanSettings&)> expressible;
};

// Errors: sizes of the run that contradict each other. Cost: some dozens to some thousands of estimates.
Result<Plan> plan(const TrainingRun& run, const PlanRequest& request, const Estimator& estimator);

}  // namespace spillway::estimator
