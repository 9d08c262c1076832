// Declares what a trace is replayed against: one caching allocator, seen only through what every caching
// allocator offers.
//
// A target lives in a worker process of its own. Before it is made, the worker has opened the simulated
// libcuda.so.1 (its path is in SPILLWAY_LIBCUDA), called cuInit, and made device 0's primary context current;
// SPILLWAY_SIM holds the capacity and the completion mode. The replay makes all streams, so a target only
// receives them; nullptr is the legacy default stream. Driver calls, waits and physical bytes are counted by
// the simulated driver, never by the target.
//
// Calls come from one thread. A target must not call the driver on behalf of the replay, print, or exit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "driver/status.h"
#include "include/spillway/status.h"

struct CUstream_st;

namespace spillway {

class ReplayTarget {
 public:
  virtual ~ReplayTarget() = default;

  // SPW_OK and a block in *out; SPW_ERROR_OUT_OF_MEMORY when the device has no room even after the
  // allocator's own efforts (it stays usable); any other code is a failure of the run. bytes > 0.
  virtual spw_status allocate(uint64_t bytes, CUstream_st* stream, void** out) = 0;

  // Gives back a live block of allocate(); work on recorded streams may still be pending.
  virtual spw_status free(void* block) = 0;

  // The live block is also used by what was enqueued on `stream` so far (PyTorch's record_stream).
  virtual spw_status record_stream(void* block, CUstream_st* stream) = 0;

  // The most device memory the allocator ever held, by its own account.
  virtual uint64_t peak_reserved_bytes() = 0;
  // Host memory of the allocator's tables; 0 where it does not tell.
  virtual uint64_t metadata_bytes() { return 0; }

  // The text of the last failure, for the one-line error of the command.
  virtual std::string last_error() = 0;

  // Compares the allocator's counters with its structures, where it can; called after a run, outside any
  // timing.
  virtual Status validate() { return {}; }
};

// Spillway itself, through its C ABI.
Result<std::unique_ptr<ReplayTarget>> make_spillway_target();

// PyTorch's own CUDA allocator out of the torch wheel, with or without expandable segments.
// SPW_ERROR_UNSUPPORTED and a line that says what to install where it was not built or the wheel is not
// there.
Result<std::unique_ptr<ReplayTarget>> make_torch_target(bool expandable_segments);

}  // namespace spillway
