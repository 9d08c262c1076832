// Says of memory that was refused in a dry run whether a process died of it, or went on without.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spillway {

// A command that ended well (code 0) died of nothing: a refusal that came last was survived as well.
void forgive_refusals(std::vector<nlohmann::json>& processes, int code);
// Lines of a report on one process, from what it left: where it was refused how much, and what it did then.
std::string refusals(const nlohmann::json& process);

}  // namespace spillway
