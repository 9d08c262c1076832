// Knows what DeepSpeed's configuration file may say: keys that are not modelled, and those that are none.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "driver/status.h"

namespace spillway::estimator {

// Errors: a key that moves or changes what is held in a way that is not modelled, by its name.
Status refuse_deepspeed_keys(const std::map<std::string, std::string>& flat);

// A line for each key that DeepSpeed does not know, and so passes over, and for each whose effect is not
// counted.
std::vector<std::string> deepspeed_warnings(const std::map<std::string, std::string>& flat);

}  // namespace spillway::estimator
