// An estimate as a table for people.
#pragma once

#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/verdict.h"

namespace spillway {

std::string answer_text(const estimator::TrainingRun& run, const estimator::Estimate& estimate,
                        const std::vector<estimator::GpuMemory>& gpus);

}  // namespace spillway
