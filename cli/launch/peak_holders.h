// Says of a peak of a dry run when it was, what its bytes are, and which lines of the program hold them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace spillway {

// Lines of a report, of one device's row in what a process left; none where nobody looked.
std::string peak_holders(const nlohmann::json& device);

// Says when a peak was: "the peak is in forward of step 2, at train.py:7: ...".
std::string moment_of(const nlohmann::json& peak);
// Says what the bytes of one of its lines are: "parameters", or the phase in which others came.
std::string what_is_held(const nlohmann::json& line);

}  // namespace spillway
