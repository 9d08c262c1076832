// `spillway calibrate`: what a run was measured to take, beside what was predicted, into a catalog.
#pragma once

#include <functional>
#include <optional>

#include <CLI/CLI.hpp>

namespace spillway {

// Adds the subcommand. The returned function runs it once `app` is parsed and gives its exit code (0, or 1
// for bad input), or nothing where another command was asked for.
std::function<std::optional<int>()> add_calibrate_command(CLI::App& app);

}  // namespace spillway
