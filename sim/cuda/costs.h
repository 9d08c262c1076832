// The time one call of each entry point takes on a device. The defaults are published figures (A100 and H100,
// driver calls measured one by one); a file measured by the driver probe replaces them row by row.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "sim/cuda/calls.h"

namespace spillway::sim {

// Fills the table from the defaults, then from the file unless its name is empty; "" or one line of what is
// wrong.
std::string load_costs(const std::string& file, std::array<uint64_t, kEntryPoints>* costs_ns);

}  // namespace spillway::sim
