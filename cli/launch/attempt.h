// One run of a program on a simulated device, on one allocator.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/launch/results.h"
#include "driver/status.h"

namespace spillway {

// Holds what is the same for all runs of a command.
struct AttemptSetting {
  std::vector<std::string> program;
  std::string libraries;  // the folder of the simulated ones
  int ranks = 0;          // that run, of a job that has more; 0: all
  int devices = 1;
  bool keeps_bytes = true;
  bool keeps_snapshots = false;
};

struct Attempt {
  std::string allocator;
  uint64_t capacity_bytes = 0;  // of each device
  DryrunResults results;
  int code = 0;
  int signal = 0;  // by which somebody ended it, or asked it to end; 0: nobody did
  DryrunVerdict verdict = DryrunVerdict::kNotKnown;
  std::shared_ptr<const std::filesystem::path> folder;  // removed with the last copy
};

// The signal after which nothing more is to be run; 0: none came.
int signal_after(const Attempt& made);

// Errors: io, invalid_argument.
Result<Attempt> attempt(const AttemptSetting& setting, const std::string& allocator, uint64_t capacity_bytes);

}  // namespace spillway
