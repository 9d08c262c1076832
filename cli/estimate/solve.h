// `spillway estimate --solve`: the setting that just fits each GPU, and its neighbour that does not.
#pragma once

#include <string>

#include "cli/estimate/question.h"

namespace spillway {

// `unknown`: batch, seq, gpus, tp, recompute. No where one GPU has no setting that fits.
Result<Answer> answer_solve(const Question& question, const std::string& unknown);

}  // namespace spillway
