#include "estimator/calibration/calibrated.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace spillway::estimator {
namespace {

// The latest of the observations of this very run, on ranks of which the same is predicted.
const Observation* same_run(const std::vector<Observation>& observations, const Signature& signature,
                            double predicted_peak) {
  const Observation* found = nullptr;
  for (const Observation& each : observations) {
    if (each.kernels == signature.kernels && each.shape == signature.shape &&
        std::abs(each.predicted_peak - predicted_peak) < 1)
      found = &each;
  }
  return found;
}

}  // namespace

Result<CalibratedEstimator> CalibratedEstimator::open(std::shared_ptr<const Catalog> catalog,
                                                      const TrainingRun& run, const std::string& hardware) {
  const std::vector<std::string> known = catalog->hardware_for(run);
  if (known.empty()) {
    return Status::invalid_argument(
        "no line is of this model, parallel and state settings and this version of the estimator");
  }
  if (hardware.empty() && known.size() == 1)
    return CalibratedEstimator(std::move(catalog), signature_of(run, known.front()));
  for (const std::string& name : known) {
    if (name == hardware) return CalibratedEstimator(std::move(catalog), signature_of(run, name));
  }
  return Status::invalid_argument(
      fmt::format("--hardware '{}' is not allowed; allowed: '{}'", hardware, fmt::join(known, "', '")));
}

std::vector<Observation> CalibratedEstimator::observations(const Signature& signature) const {
  std::vector<Observation> known = catalog_->observations(signature.key());
  if (!known.empty() || signature.model != base_.model || signature.parallel != base_.parallel) return known;
  known = catalog_->observations(base_.key());
  for (Observation& each : known) {
    for (size_t group = 0; group < static_cast<size_t>(Group::kTransient); ++group) each.measured[group] = {};
  }
  return known;
}

Result<Estimate> CalibratedEstimator::operator()(const TrainingRun& run) const {
  Result<Estimate> predicted = estimate(run);
  if (!predicted.ok()) return predicted;
  const Signature signature = signature_of(run, base_.hardware);
  const std::vector<Observation> known = observations(signature);
  if (known.empty()) return predicted;
  return Factors(known, signature.kernels).apply(predicted.value());
}

Result<Calibration> CalibratedEstimator::explain(const TrainingRun& run) const {
  Result<Estimate> predicted = estimate(run);
  if (!predicted.ok()) return predicted.take_status();
  const Signature signature = signature_of(run, base_.hardware);
  Calibration out{signature.key(), base_.hardware};
  const std::vector<Observation> known = observations(signature);
  const Factors factors(known, signature.kernels);
  const Estimate calibrated = factors.apply(predicted.value());
  const RankClass& before = predicted->ranks[calibrated.peak_rank];
  const GroupBytes predicted_bytes = predicted_groups(before);
  const GroupBytes calibrated_bytes = predicted_groups(calibrated.peak());
  const Observation* measured = same_run(known, signature, before.peak_bytes);
  for (size_t i = 0; i < kGroups; ++i) {
    if (!predicted_bytes[i] || !calibrated_bytes[i]) continue;
    const auto group = static_cast<Group>(i);
    CalibratedGroup row{group, *predicted_bytes[i], *calibrated_bytes[i]};
    row.factor = group == Group::kTransient ? factors.of_phase(peak_phase(before)) : factors.of(group);
    if (measured != nullptr) row.measured_bytes = measured->measured[i];
    out.groups.push_back(row);
  }
  out.predicted_peak = before.peak_bytes;
  if (measured != nullptr) out.measured_peak = measured->measured_peak;
  return out;
}

}  // namespace spillway::estimator
