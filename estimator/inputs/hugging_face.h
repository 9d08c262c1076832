// Hugging Face `config.json` as a model. Every listed type has its exact parameter count; of an unknown type
// the generic keys are read and a warning is left in `assumptions`.
#pragma once

#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/inputs/key_values.h"
#include "estimator/model.h"

namespace spillway::estimator {

// Keys are read with `prefix` before their names ("model."), so that a run file can hold them too.
Result<Model> read_hugging_face(KeyValues& values, const std::string& prefix,
                                std::vector<std::string>& assumptions);

// The values of a JSON object whose members are scalars or lists; nested objects become "outer.inner".
Result<std::map<std::string, std::string>> flatten_json(const std::string& text);

}  // namespace spillway::estimator
