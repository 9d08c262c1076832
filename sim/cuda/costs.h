// The time one call of each entry point takes on a device. The defaults are published figures (A100, driver
// calls measured one by one): the cheap ones, or those of a dearer run of the same program. A file measured
// by the driver probe replaces the cheap ones row by row.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "sim/cuda/calls.h"

namespace spillway::sim {

// Fills the table from the defaults; "dear" is the dearer run, "h100" what was measured there, "cheap" or ""
// the other run, and any other name is that of a file, whose rows come on top; "" or one line of what is
// wrong.
std::string load_costs(const std::string& file, std::array<uint64_t, kEntryPoints>* costs_ns);

}  // namespace spillway::sim
