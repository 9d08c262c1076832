// `spillway estimate --what-if`: the run beside itself with other settings.
#pragma once

#include <string>
#include <vector>

#include "cli/estimate/question.h"

namespace spillway {

// "recompute=full", "optimizer=adamw8bit": all of them at once. The verdict is the changed run's. Errors: a
// setting that is not known or not allowed.
Result<Answer> answer_what_if(const Question& question, const std::vector<std::string>& changes);

}  // namespace spillway
