// A model of a type that hugging_face_families.h has, from its config.json.
#pragma once

#include <string>

#include "estimator/inputs/hugging_face_families.h"
#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

// Complains through `values`.
Model read_family(KeyValues& values, const std::string& prefix, const Family& family, Notes& notes);

}  // namespace spillway::estimator
