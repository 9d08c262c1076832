// `spillway replay TRACE...`
#pragma once

#include <functional>
#include <optional>

namespace CLI {
class App;
}

namespace spillway {

// Adds the subcommand. The returned function runs it after parsing and returns the exit code: 0, 1 for an
// error in input or environment (one line on stderr), 2 where a trace ran out of memory; nothing where it was
// not chosen.
std::function<std::optional<int>()> add_replay_command(CLI::App& app);

}  // namespace spillway
