// A section of the report in a process of its own: whatever the driver does to that process is a result.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/driver_probe/arguments.h"

namespace spillway::probe {

// Starts this program again with --alone `name` and returns the JSON that it printed, {"error": text} or
// {"absent": text} where the driver refused or lacks what was needed. Where it printed none:
// {"crashed": the signal} of a process that a signal ended, {"ended_after_seconds": N} of one that did not
// end in time, {"error": its exit code} of another.
nlohmann::ordered_json measure_alone(const Options& options, const std::string& name);

}  // namespace spillway::probe
