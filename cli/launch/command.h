// `spillway run` and `spillway dryrun`: programs under Spillway, on the device or on a simulated one;
// `spillway stand-ins`: what a simulated one needs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace spillway {

// Adds the commands. `program` is what stood after "--"; without it, it is what follows the options. The
// function runs the one that was chosen and answers the exit code; nothing where neither was.
std::function<std::optional<int>()> add_launch_commands(CLI::App& app, std::vector<std::string> program);

}  // namespace spillway
