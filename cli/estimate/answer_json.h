// An estimate as JSON, the format of `spillway estimate --json` and of each line of --jsonl.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/verdict.h"

namespace spillway {

// With no GPU to judge by there is no verdict, and mitigations are not searched for.
nlohmann::ordered_json answer_json(const estimator::TrainingRun& run, const estimator::Estimate& estimate,
                                   const std::vector<estimator::GpuMemory>& gpus = {});

}  // namespace spillway
