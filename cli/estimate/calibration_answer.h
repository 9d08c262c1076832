// Says what a catalog changed in an estimate, group by group.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "estimator/calibration/calibrated.h"

namespace spillway {

// `calibrated_peak`: of the rank class that peaks.
std::string calibration_text(const estimator::Calibration& calibration, double calibrated_peak);
nlohmann::ordered_json calibration_json(const estimator::Calibration& calibration, double calibrated_peak);

}  // namespace spillway
