// YAML to named values as text.
#pragma once

#include <map>
#include <string>

#include "driver/status.h"

namespace spillway::estimator {

// Keys of nested mappings are joined by dots, entries of a list that are mappings have their number in it; a
// list of plain values is one text, divided by commas. What is null is left out, and "${key}" stands for that
// key's value. JSON is YAML too.
// Errors: a text that is no mapping, or nested deeper or with more values than any recipe.
Result<std::map<std::string, std::string>> flatten_yaml(const std::string& text);

}  // namespace spillway::estimator
