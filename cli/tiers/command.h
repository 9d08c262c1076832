// `spillway tiers` and `spillway bench-tiers`: what memory this machine has below the device, and how fast it
// is.
#pragma once

#include <functional>
#include <optional>

#include <CLI/CLI.hpp>

namespace spillway {

// Adds the commands. The function runs the one that was chosen and answers the exit code; nothing where
// neither was.
std::function<std::optional<int>()> add_tiers_commands(CLI::App& app);

}  // namespace spillway
