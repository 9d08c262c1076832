// `spillway estimate --sweep`: every combination of the values of some keys, estimated on all cores.
#pragma once

#include <string>
#include <vector>

#include "cli/estimate/question.h"

namespace spillway {

// "KEY=V1,V2,...": values, or ranges "1..8", "64..1024+64", "1..64x2". The first key turns slowest. A table,
// or one JSON object a line; a combination that contradicts itself is answered with the reason. No where
// nothing fits. Errors: a text that is no sweep, more than kMostCombinations, every combination refused.
constexpr size_t kMostCombinations = 10'000'000;
Result<Answer> answer_sweep(const Question& question, const std::vector<std::string>& sweeps);

}  // namespace spillway
