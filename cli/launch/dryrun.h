// `spillway dryrun`: a program on a simulated device, and what is said of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/launch/allocators.h"
#include "cli/launch/snapshots.h"

namespace spillway {

struct DryrunChoices {
  std::optional<std::string> gpu_memory;
  std::optional<std::string> gpus;  // names with commas between them
  int devices = 1;
  std::string allocator = "spillway";
  bool no_bytes = false;
  std::string values = "small";
  bool json = false;
  bool compare = false;
  std::string output;  // a file for the report; empty: stderr
  int world_size = 0;
  std::string ranks;
  SnapshotFiles files;
};

// Runs the program, with each allocator that is chosen; writes a report to the file that was asked for, or to
// stderr, where what went wrong with running it is said as well. Returns the command's exit code: 0 it fits,
// 2 it does not, others as documented.
int dryrun(const DryrunChoices& choices, std::vector<std::string> program);

}  // namespace spillway
