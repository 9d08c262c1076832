// An estimate as JSON, the format of `spillway estimate --json` and of each line of --jsonl.
#pragma once

#include <nlohmann/json.hpp>

#include "estimator/estimate.h"

namespace spillway {

nlohmann::ordered_json answer_json(const estimator::Run& run, const estimator::Estimate& estimate);

}  // namespace spillway
