// The name that a mistyped one was meant to be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::estimator {

// The name fewest edits away from `word`; empty where none is near, or within `most_edits`.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& names,
                         size_t most_edits = SIZE_MAX);

// "; did you mean 'name'?", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& names);

}  // namespace spillway::estimator
