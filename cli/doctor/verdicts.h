// Keeps what `spillway doctor --probe` found for install(): the file driver-profiles.json in the folder that
// python/spillway/_cache.py describes. By driver, then by device, the word of the option `profile`:
//
//   {"schema_version": 1, "drivers": {"580.159.04, CUDA 13.0": {"NVIDIA H100 80GB HBM3": "ordinary"}}}
//
// Read by python/spillway/_pytorch/profile.py, which names the driver by the same rule.
#pragma once

#include <string>

#include "driver/driver.h"
#include "driver/status.h"

namespace spillway {

// The kernel's part of the driver, unless SPILLWAY_LIBCUDA names another library, and the CUDA version of
// that library: what can be told without using a device.
std::string driver_name(const Driver& driver);

// Written whole or not at all; returns the file. One that cannot be read is replaced. Errors: io.
Result<std::string> keep_verdict(const std::string& driver, const std::string& device,
                                 const std::string& profile);

}  // namespace spillway
