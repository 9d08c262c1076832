// Recorded runs, one JSON object a line, estimated one by one.
#pragma once

#include <string>
#include <vector>

#include "cli/estimate/accuracy.h"
#include "driver/status.h"

namespace spillway {

struct LineAnswers {
  std::string json;  // one object a line
  std::vector<Comparison> comparisons;
};

// Errors: a line that is no recorded run, by its number. A run that cannot be estimated is an answer,
// `refused`.
Result<LineAnswers> estimate_lines(const std::string& path);

}  // namespace spillway
