// Measures how fast a directory's disk is with the engine that spilling uses, and which block size and depth
// serve it best.
#pragma once

#include <cstdint>
#include <string>

#include "driver/status.h"
#include "offload/io/engine.h"

namespace spillway {

struct DiskSpeed {
  double write_bytes_per_s = 0;
  double read_bytes_per_s = 0;
  double write_cpu_s = 0;  // of this process, for all bytes
  double read_cpu_s = 0;
  uint64_t bytes = 0;  // that were written, and read
  uint64_t block_bytes = 0;
  uint32_t depth = 0;
  bool is_direct = false;
  std::string engine;   // what served, and why nothing better did
  std::string warning;  // of the directory; empty where all is well
};

// Writes `bytes`, rounded up to whole extents of 2 MiB, to a nameless file in the directory, and reads them
// again; they go through 64 MiB of memory. Errors: io (the directory, or the disk), out_of_memory (no room
// there, or in the host's memory).
Result<DiskSpeed> measure_disk(const std::string& directory, uint64_t bytes, const IoOptions& options,
                               bool want_direct);
// The settings of `options` with the block size and the depth that served best. Takes at most 5 seconds on a
// disk that moves 8 MB/s; `options` themselves where that was not enough for one trial.
Result<IoOptions> tune_disk(const std::string& directory, const IoOptions& options, bool want_direct);

}  // namespace spillway
