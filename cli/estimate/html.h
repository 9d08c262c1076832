// `spillway estimate --html`: the estimate as one page that needs no network.
#pragma once

#include <string>

#include "cli/estimate/question.h"
#include "estimator/estimate.h"

namespace spillway {

// Memory by phase of a step, and the buckets of each rank class, as pictures (SVG) with the figures beside
// them. `made`: by whom and when, below it.
std::string answer_html(const Question& question, const estimator::Estimate& estimate,
                        const std::string& made);

}  // namespace spillway
