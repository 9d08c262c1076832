// `spillway estimate --html`: the estimate as one page that needs no network.
#pragma once

#include <string>

#include "cli/estimate/question.h"
#include "estimator/estimate.h"

namespace spillway {

// Memory by phase of a step, and the buckets of each rank class, as pictures (SVG) with the figures beside
// them.
std::string answer_html(const Question& question, const estimator::Estimate& estimate);

}  // namespace spillway
