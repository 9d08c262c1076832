// An estimate and the same with what a catalog knows of its run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/calibration/catalog.h"
#include "estimator/estimate.h"

namespace spillway::estimator {

struct CalibratedGroup {
  Group group;
  double predicted_bytes = 0;
  double calibrated_bytes = 0;
  Factor factor = {};
  std::optional<double> measured_bytes = {};  // where this very run was measured
};

struct Calibration {
  std::string key;
  std::string hardware;
  std::vector<CalibratedGroup> groups = {};  // of the rank class that peaks as calibrated
  double predicted_peak = 0;
  std::optional<double> measured_peak = {};
};

// estimate(), corrected by a catalog's lines of the same hardware, model, parallel and state settings. Lines
// of other kernels say nothing about activations. Immutable; safe to use from any number of threads.
class CalibratedEstimator {
 public:
  // `hardware` may be empty where the catalog has this run on one only. Errors: the catalog knows nothing of
  // the run, or more than one hardware.
  static Result<CalibratedEstimator> open(std::shared_ptr<const Catalog> catalog, const TrainingRun& run,
                                          const std::string& hardware);

  // A run of another key, as another optimizer makes it, is corrected by what was measured of activations
  // where model and parallel settings are the same; else not at all.
  Result<Estimate> operator()(const TrainingRun& run) const;

  // Tells how the answer for one run comes about. Errors: as estimate().
  Result<Calibration> explain(const TrainingRun& run) const;

 private:
  CalibratedEstimator(std::shared_ptr<const Catalog> catalog, Signature base)
      : catalog_(std::move(catalog)), base_(std::move(base)) {}

  std::vector<Observation> observations(const Signature& signature) const;

  std::shared_ptr<const Catalog> catalog_;
  Signature base_;  // of the run it was opened with
};

}  // namespace spillway::estimator
