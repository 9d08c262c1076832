// spillway plot: a picture of a recorded run's memory over time. spillway convert: a recorded run in the
// other format.
#pragma once

#include <functional>
#include <optional>

namespace CLI {
class App;
}

namespace spillway {

// Adds both; what is returned runs the one that was chosen and answers its exit code, if one of them was.
std::function<std::optional<int>()> add_trace_commands(CLI::App& app);

}  // namespace spillway
