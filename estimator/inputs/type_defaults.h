// Sizes that transformers' configuration classes take where a file does not say them. A config.json that a
// program saved says them all; one that was written by hand may not.
#pragma once

#include <string>
#include <string_view>

#include "estimator/inputs/key_values.h"

namespace spillway::estimator {

// Offers the defaults of a type for keys that begin with `prefix`, but for those whose size the file says
// under another name. A model's main sizes (width, layers, heads, vocabulary) have none.
void offer_type_defaults(KeyValues& values, const std::string& prefix, std::string_view type);

}  // namespace spillway::estimator
