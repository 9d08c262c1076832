// Copies and fills on streams, for the entry points of both default-stream conventions.
#pragma once

#include "sim/cuda/call.h"

namespace spillway::sim {

enum class CopySide { kAny, kDevice, kHost };

struct Copy {
  EntryPoint entry;
  uint64_t to;
  uint64_t from;
  uint64_t bytes;
  CopySide to_side;
  CopySide from_side;
  // The peer form has these: each side is reached from the device of its own context.
  CUcontext to_context = nullptr;
  CUcontext from_context = nullptr;
};

// `synchronous` calls wait for the copy (and only those: a stream that is not ordered before it goes on).
CUresult copy_on(const Copy& copy, CUstream stream, bool synchronous);
CUresult fill_on(EntryPoint entry, uint64_t to, uint32_t value, uint32_t width, uint64_t count,
                 CUstream stream);

// What the stream does next waits for the 4 bytes at the address, of pinned memory or of the device's: flush
// flags are refused, captures too.
CUresult wait_value_on(CUdeviceptr address, uint32_t value, unsigned comparison, CUstream stream);

}  // namespace spillway::sim
