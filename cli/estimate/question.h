// Holds what is asked of `spillway estimate`, ready to be answered.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/estimate/input.h"
#include "estimator/advice/solve.h"
#include "estimator/calibration/calibrated.h"
#include "estimator/verdict.h"

namespace spillway {

struct Question {
  RunSource source;
  estimator::TrainingRun run;
  estimator::Estimator estimator;  // with what the catalog knows, where there is one
  std::optional<estimator::CalibratedEstimator> calibrated;
  std::vector<estimator::GpuMemory> gpus;
  bool json = false;
};

struct Answer {
  std::string text;
  bool yes = true;  // exit code 0, else 2
};

// The worst verdict over the GPUs; fits where there is none.
estimator::Verdict worst_verdict(double needed_bytes, const std::vector<estimator::GpuMemory>& gpus);

}  // namespace spillway
