// `spillway doctor`: what this machine offers, probed, and whether Spillway can serve here.
#pragma once

#include <functional>
#include <optional>

#include <CLI/CLI.hpp>

namespace spillway {

// Adds the command. The function runs it and answers the exit code, 2 where Spillway cannot serve; nothing
// where it was not chosen.
std::function<std::optional<int>()> add_doctor_command(CLI::App& app);

}  // namespace spillway
