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

  // Uncorrected where the run's key differs from all lines'.
  Result<Estimate> operator()(const TrainingRun& run) const;

  // How the answer for one run comes about. Errors: as estimate().
  Result<Calibration> explain(const TrainingRun& run) const;

 private:
  CalibratedEstimator(std::shared_ptr<const Catalog> catalog, std::string hardware)
      : catalog_(std::move(catalog)), hardware_(std::move(hardware)) {}

  std::shared_ptr<const Catalog> catalog_;
  std::string hardware_;
};

}  // namespace spillway::estimator
