// Sizes in a configuration that are larger than what they are a part of: a limit that limits nothing is a
// mistake of whoever wrote it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "abi/config.h"

namespace spillway {

// What of `changed` is larger than the host's memory, within the control group of the process, or than the
// file system of spill_dir, one line each; those options are as in `before` again. What is not set otherwise
// than in `before` counts for nothing.
std::vector<std::string> refuse_beyond_machine(const Config& before, Config& changed);

// The first limit that is larger than the memory of the device.
std::optional<std::string> beyond_device(const Config& config, int device, uint64_t total_bytes);

// How many bytes the file system of a directory has; 0 where it cannot be asked.
uint64_t file_system_bytes(const std::string& directory);

}  // namespace spillway
