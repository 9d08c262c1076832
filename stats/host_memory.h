// Tells how much memory the host has left, for those who lock a part of it: what the kernel could give,
// within the limit of the control group that the process runs in.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

struct HostMemory {
  static constexpr uint64_t kBoundless = uint64_t{1} << 60;

  uint64_t total_bytes = kBoundless;
  uint64_t available_bytes = kBoundless;  // without driving anything into swap
};

// Reads /proc/meminfo and the files of control groups, version 2 or 1, below `root` (empty is /). A group
// without a limit, and files that are not there, count for nothing; without meminfo the host is boundless.
// Some 50 microseconds.
HostMemory read_host_memory(const std::string& root = {});

}  // namespace spillway
