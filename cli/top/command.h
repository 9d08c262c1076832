// `spillway top`: what every Spillway process of the machine holds, live.
#pragma once

#include <functional>
#include <optional>

#include <CLI/CLI.hpp>

namespace spillway {

// Adds the command. The function runs it and answers the exit code; nothing where it was not chosen.
std::function<std::optional<int>()> add_top_command(CLI::App& app);

}  // namespace spillway
