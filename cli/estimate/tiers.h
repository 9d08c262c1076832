// Says what lies below the device, and what moving it costs a step, in both shapes of the answer.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "estimator/estimate.h"

namespace spillway {

// Empty where nothing is offloaded.
std::string tier_rows(const estimator::RankClass& rank);
// Null where nothing is offloaded.
nlohmann::ordered_json tiers_json(const estimator::RankClass& rank);

}  // namespace spillway
