// Says of a peak of a dry run when it was, what its bytes are, and which lines of the program hold them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace spillway {

// Lines of a report, of one device's row in what a process left; none where nobody looked.
std::string peak_holders(const nlohmann::json& device);

}  // namespace spillway
