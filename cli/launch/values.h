// What a dry run says of the values that its program computed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spillway {

// Lines of a report, from what the processes left: where the program looked at values that are not real; none
// where it did not.
std::string unreal_reads(const std::vector<nlohmann::json>& processes);
// What of the run is not to be believed.
std::string caveat(const std::vector<nlohmann::json>& processes);

}  // namespace spillway
