// Which release of transformers runs a model, where its file says so.
#pragma once

#include <string>

#include "estimator/inputs/key_values.h"

namespace spillway::estimator {

// The first and the second number as one: 524 for 5.24.
constexpr int kFive = 500;
constexpr int kNoRelease = 100000;
constexpr int kNewest = kNoRelease - 1;  // later than all that are told apart

// Releases from the first on, before the end.
struct Releases {
  int first = 0;
  int end = kNoRelease;
  bool has(int release) const { return release >= first && release < end; }
};

// Of the text of `transformers_version`; 457 where a file says none, or none that can be read.
int transformers_release(const std::string& text);
int transformers_release(KeyValues& values, const std::string& prefix);

}  // namespace spillway::estimator
