// `spillway estimate --plan`: the cheapest changes that make a run or a server fit each GPU, with the lines
// to put into the user's framework.
#pragma once

#include <string>
#include <vector>

#include "cli/estimate/question.h"

namespace spillway {

struct PlanChoices {
  bool plan = false;
  std::vector<std::string> allow;  // what is tried although it changes the result
  std::string framework;           // of the lines; empty: by the file
};

// No where one GPU has no answer.
Result<Answer> answer_plan(const Question& question, const PlanChoices& choices);

// `gpus`: how many there are; 0: as many as the run has.
Result<Answer> answer_serving_plan(const RunSource& source, const std::vector<estimator::GpuMemory>& list,
                                   const PlanChoices& choices, int64_t gpus, bool json);

}  // namespace spillway
