// The simulated driver, opened at run time: what replay needs of libcuda's entry points and of the
// simulation's own controls (sim/cuda/sim_control.h describes them; a test compares the types below with that
// header).
//
// One per process, opened once and never closed: the allocators under replay keep using the library until the
// end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "driver/status.h"

struct CUstream_st;
struct SpwSimRange;

namespace spillway {

struct SimDevice {
  using Stream = CUstream_st*;

  // Opens the library, which reads SPILLWAY_SIM, starts it, and makes device 0's primary context current.
  static Result<SimDevice> open(const std::string& path);

  // A stream that does not synchronise with the default stream, as PyTorch makes them.
  Result<Stream> create_stream() const;
  uint64_t calls(const std::vector<const char*>& names) const;

  int (*touch)(Stream, const SpwSimRange*, size_t, unsigned) = nullptr;
  uint64_t (*mark)(Stream) = nullptr;
  int (*complete_to)(Stream, uint64_t) = nullptr;
  uint64_t (*calls_of)(const char*) = nullptr;
  uint64_t (*total_calls)() = nullptr;
  const char* (*entry_point)(size_t) = nullptr;
  void (*reset_counters)() = nullptr;
  uint64_t (*host_waits)() = nullptr;
  uint64_t (*stream_waits)() = nullptr;
  uint64_t (*virtual_ns)() = nullptr;
  uint64_t (*peak_physical_bytes)(int) = nullptr;
  uint64_t (*peak_mappings)() = nullptr;

 private:
  int (*stream_create_)(Stream*, unsigned) = nullptr;
};

// Returns where the build put the simulated driver: ../lib/sim beside the running program's folder.
std::string default_sim_path();

}  // namespace spillway
