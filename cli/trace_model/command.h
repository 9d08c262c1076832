// `spillway trace-model`: the memory of a model's training step, from its own code on fake tensors, on a
// machine without a GPU.
#pragma once

#include <functional>
#include <optional>

#include <CLI/CLI.hpp>

namespace spillway {

// Adds the command. The function answers its exit code where it was chosen: 0, 1 for an error, 2 where the
// capacity that was asked for is too small.
std::function<std::optional<int>()> add_trace_model_command(CLI::App& app);

}  // namespace spillway
