// The cheapest changes of a server's options with which its cache holds the requests that are asked for.
// Every combination is estimated in full; the cheapest are those that take the fewest seconds of GPUs for a
// generated token, by the published rates of step_cost.h. Changes of what the server answers go last.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "estimator/advice/plan.h"
#include "estimator/serving/serving.h"

namespace spillway::estimator {

struct ServingChange {
  const char* name = "";
  PlanSettings settings;  // keys of [serve], or model.weights
  Effect effect = Effect::kExact;
  double saved_bytes = 0;  // of the cache that the answer without this change has less room for
  std::string cost;
};

struct ServingAnswer {
  std::vector<ServingChange> changes;
  Effect effect = Effect::kExact;
  ServingRun run;
  ServingEstimate estimate;
  int64_t gpus = 1;
  double token_seconds = 0;  // of one generated token of a batch, at least
};

struct ServingPlan {
  ServingEstimate base;
  bool fits = false;
  std::vector<ServingAnswer> answers;
  std::optional<ServingAnswer> least;  // where there are none: what comes nearest
};

struct ServingRequest {
  GpuMemory gpu;
  int64_t gpus = 1;  // that there are
  bool quant = false;
  bool length = false;  // shorter requests
  std::function<Result<ServingRun>(const PlanSettings&)> read;
};

// Errors: those of the run as it is.
Result<ServingPlan> plan_serving(const ServingRequest& request);

}  // namespace spillway::estimator
