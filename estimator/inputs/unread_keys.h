// Keys of a model's file that would change its size, and that nothing was read from.
#pragma once

#include <string>
#include <vector>

namespace spillway::estimator {

class KeyValues;

// Their names without `prefix`, sorted: those that by their words say how many or how large something is, and
// do not say "none". A part in an object of its own ("vision_config") is named once.
std::vector<std::string> unread_sizes(const KeyValues& values, const std::string& prefix);

}  // namespace spillway::estimator
