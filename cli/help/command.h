// `spillway help`, `spillway completion`, `spillway man`: the command line about itself.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>

namespace spillway {

// Adds the commands; their functions look at all of `app`'s. Each answers the exit code; nothing where none
// of them was chosen.
std::function<std::optional<int>()> add_help_commands(CLI::App& app);

// Help on stdout, of the command, or of all where it is null. Returns the exit code.
int show_help(const CLI::App& app, const CLI::App* command);

}  // namespace spillway
