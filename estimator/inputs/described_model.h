// Types of models that a short description says all of: model_descriptions.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "driver/status.h"
#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

// The lines that describe a type; empty where none do.
std::string_view find_description(std::string_view type);
std::vector<std::string_view> described_types();

// Complains through `values`.
Model read_described(KeyValues& values, const std::string& prefix, std::string_view description,
                     Notes& notes);

}  // namespace spillway::estimator
