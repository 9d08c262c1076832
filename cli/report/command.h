// `spillway report` and `spillway diff`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>

namespace spillway {

// Adds both; the function runs the one that was chosen and gives its exit code, or none where neither was.
std::function<std::optional<int>()> add_report_commands(CLI::App& app);

}  // namespace spillway
