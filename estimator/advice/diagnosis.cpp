#include "estimator/advice/diagnosis.h"

#include <algorithm>

#include "estimator/advice/rules.h"

namespace spillway::estimator {

std::vector<Finding> diagnose(const std::vector<Measurement>& measurements, const MeasuredRun* run) {
  Findings out;
  const auto add = [&](const Measurement& measurement, Findings found) {
    for (Finding& finding : found) {
      finding.source = measurement.source;
      out.push_back(std::move(finding));
    }
  };
  for (const Measurement& each : measurements) {
    for (const auto rule : {model_states, external_fragmentation, caching, rounding_loss, outside_allocator})
      add(each, rule(each));
    if (run == nullptr) continue;
    for (const auto rule : {materialised_attention, activations_dominate, loss_window, sharding_units})
      add(each, rule(each, *run));
  }
  for (Finding& finding : growth(measurements)) out.push_back(std::move(finding));
  if (run != nullptr) {
    for (Finding& finding : expert_imbalance(measurements, *run)) out.push_back(std::move(finding));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Finding& a, const Finding& b) { return a.saved_bytes > b.saved_bytes; });
  return out;
}

Account account(const Measurement& measurement) {
  const Measurement& m = measurement;
  return {m.requested.current,
          m.allocated.current - m.requested.current,
          m.active.current - m.allocated.current,
          m.reserved.current - m.active.current - m.cached_free_bytes,
          m.cached_free_bytes,
          m.reserved.current};
}

}  // namespace spillway::estimator
