// `spillway exporter`: the counters of all processes of the machine, served to Prometheus.
#pragma once

#include <functional>
#include <optional>

#include <CLI/CLI.hpp>

namespace spillway {

// Adds the command. The function runs it and answers the exit code; nothing where it was not chosen.
std::function<std::optional<int>()> add_exporter_command(CLI::App& app);

}  // namespace spillway
