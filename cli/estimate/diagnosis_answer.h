// `spillway estimate --dump`: where the memory of a run that was measured went, and what would save some.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/estimate/question.h"
#include "estimator/advice/diagnosis.h"

namespace spillway {

// The accounts of all measurements and the findings, as text or JSON. `run` may be null, as for diagnose().
std::string diagnosis_text(const std::vector<estimator::Measurement>& measurements,
                           const estimator::MeasuredRun* run, bool json);

}  // namespace spillway
