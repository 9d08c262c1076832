// Recorded runs that their inputs do not tell apart: how far their measurements are from each other bounds
// from below how near any estimate can come.
#pragma once

#include <string>
#include <vector>

#include "cli/estimate/accuracy.h"

namespace spillway {

// A section of Markdown; empty where no two estimated runs have the same arguments, environment, GPU, number
// of GPUs and date.
std::string repeats_markdown(const std::vector<Comparison>& comparisons);

}  // namespace spillway
