// A file's JSON, checked before anything walks it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "driver/status.h"

namespace spillway::estimator {

// Errors: text that is no JSON object, with the line; one nested deeper than any config, which would overflow
// the stack of whoever walks it.
Result<nlohmann::json> read_json_object(const std::string& text);

}  // namespace spillway::estimator
