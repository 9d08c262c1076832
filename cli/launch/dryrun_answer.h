// Says what a dry run answers: text for people, JSON for programs (docs/schema/dryrun.schema.json).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/launch/attempt.h"
#include "cli/launch/gpus.h"

namespace spillway {

std::string dryrun_text(const Attempt& made, const FixedParts& fixed, const std::vector<GpuAnswer>& gpus);
nlohmann::json dryrun_json(const Attempt& made, const FixedParts& fixed, const std::vector<GpuAnswer>& gpus);

// If several allocators ran: one line for each, of the rank and the device that has most.
std::string comparison_text(const std::vector<Attempt>& attempts);
nlohmann::json comparison_json(const std::vector<Attempt>& attempts, const FixedParts& fixed);

}  // namespace spillway
