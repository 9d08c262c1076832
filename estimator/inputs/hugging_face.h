// Hugging Face `config.json` as a model. Every known type has the parameters that transformers gives it;
// another is refused by its name, unless `read_as` names a type to read it as.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "driver/status.h"
#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

// Keys are read with `prefix` before their names ("model."), so that a run file can hold them too.
Result<Model> read_hugging_face(KeyValues& values, const std::string& prefix, Notes& notes);

// Values of `model_type`.
std::vector<std::string_view> known_types();

// The values of a JSON object whose members are scalars or lists; nested objects become "outer.inner".
Result<std::map<std::string, std::string>> flatten_json(const std::string& text);

}  // namespace spillway::estimator
