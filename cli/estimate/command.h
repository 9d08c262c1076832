// `spillway estimate`: will this run fit, and what takes the memory.
#pragma once

#include <functional>
#include <optional>

#include <CLI/CLI.hpp>

namespace spillway {

// Adds the subcommand. The returned function runs it once `app` is parsed and gives its exit code (0 fits, 1
// bad input, 2 does not fit), or nothing where another command was asked for.
std::function<std::optional<int>()> add_estimate_command(CLI::App& app);

}  // namespace spillway
