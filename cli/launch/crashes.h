// Says what a program did that ended it, where that is not a refusal of memory.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace spillway {

// A sentence, from what a process left: its result, and beside that in a file of the same name what Python
// wrote when a signal ended it. Empty where there is nothing to say.
std::string crash_of(const nlohmann::json& result, const std::filesystem::path& file);

}  // namespace spillway
