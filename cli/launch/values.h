// Judges the values that the program of a dry run computed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spillway {

// Lines of a report, from what the processes left: where the program looked at values that are not real; none
// where it did not.
std::string unreal_reads(const std::vector<nlohmann::json>& processes);
// Says what of the run is not to be believed.
std::string caveat(const std::vector<nlohmann::json>& processes);

}  // namespace spillway
