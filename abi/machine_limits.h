// Sizes in a configuration that are larger than what they are a part of: a limit that limits nothing is a
// mistake of whoever wrote it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "abi/config.h"

namespace spillway {

// Lists what of `changed` is larger than the host's memory, within the control group of the process, or than
// the file system of spill_dir, one line each; those options are as in `before` again. What is not set
// otherwise than in `before` counts for nothing.
std::vector<std::string> refuse_beyond_machine(const Config& before, Config& changed);

// The first limit that is set otherwise than in `before`, and larger than the memory of the largest device,
// which `most_bytes` answers.
std::optional<std::string> beyond_devices(const Config& before, const Config& changed,
                                          const std::function<uint64_t()>& most_bytes);

// Returns how many bytes the file system of a directory has; 0 where it cannot be asked.
uint64_t file_system_bytes(const std::string& directory);

}  // namespace spillway
