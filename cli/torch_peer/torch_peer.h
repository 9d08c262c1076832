// PyTorch's own CUDA allocator behind a table of plain functions, so that a program can drive it without
// being compiled or linked against torch.
//
// The table comes out of libspillway_torch_peer.so, which is compiled against the torch wheel's headers and
// loads only its libc10.so and libc10_cuda.so. Those keep their settings and state per process: one process
// runs either with expandable segments or without, and starts fresh only by being a new process.
//
// Thread-safe as PyTorch's allocator is; last_error() is per thread.
#pragma once

#include <cstdint>

#include "driver/status.h"
#include "include/spillway/status.h"

struct CUstream_st;

namespace spillway {

struct TorchPeer {
  // Once, before anything else: the number of devices, as torch.cuda's own initialisation gives it.
  spw_status (*init)(int device_count);

  // On the calling thread's current device. SPW_ERROR_OUT_OF_MEMORY after PyTorch's whole ladder failed.
  spw_status (*allocate)(uint64_t bytes, CUstream_st* stream, void** out);
  spw_status (*free)(void* block);
  spw_status (*record_stream)(void* block, CUstream_st* stream);
  spw_status (*empty_cache)();

  // The calling thread's current device from now on.
  spw_status (*set_device)(int device);

  // Since the beginning, or since reset_peaks().
  uint64_t (*peak_reserved_bytes)(int device);
  spw_status (*reset_peaks)(int device);
  uint64_t (*reserved_bytes)(int device);

  // Calls on_segment for each segment taken from the driver from now on, in order, with its size: what a
  // snapshot records as segment_alloc (or segment_map). At most one watcher; it stays for good.
  spw_status (*watch_segments)(void (*on_segment)(void* context, uint64_t bytes), void* context);

  const char* (*last_error)();
};

// Loads the stand-in CUDA runtime and the peer, both from ../lib beside the running program's folder, sets
// PYTORCH_CUDA_ALLOC_CONF for this process, and initialises the allocator for `device_count` devices.
// SPW_ERROR_UNSUPPORTED with a line that says what to install where the peer or the wheel is not there.
Result<const TorchPeer*> load_torch_peer(bool expandable_segments, int device_count);

}  // namespace spillway

// The one symbol of libspillway_torch_peer.so.
extern "C" const spillway::TorchPeer* spw_torch_peer();
