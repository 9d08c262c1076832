// Settings of a plan in the words of the user's framework.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "driver/status.h"
#include "estimator/advice/plan.h"

namespace spillway {

// Holds what goes into one place: a file, or a call of the user's program.
struct FrameworkLines {
  std::string place;
  std::vector<std::string> lines;
};

// run-file, transformers, deepspeed, megatron, torchtitan, torchtune, axolotl, vllm.
const std::vector<std::string_view>& framework_names();
Status check_framework(const std::string& name);

// Can the framework be told each of these settings? `deepspeed`: its data parallelism is DeepSpeed's already.
bool framework_knows(std::string_view framework, const estimator::PlanSettings& settings, bool deepspeed);

// The settings by place, in the order of the table.
std::vector<FrameworkLines> framework_lines(std::string_view framework,
                                            const estimator::PlanSettings& settings, bool deepspeed);

}  // namespace spillway
