// Says where a pool's memory comes from instead of the device: an allocator of the program's, as NCCL has
// one. It is asked for segments, and Spillway divides them.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "allocator/page_store.h"

namespace spillway {

// Called by the thread that needs memory or gives it up, with no lock held.
struct SegmentSource {
  // Device memory that `stream` may use at once; null when there is none.
  std::function<void*(uint64_t bytes, CUstream stream)> allocate;
  // Nothing uses it any more.
  std::function<void(const SegmentMemory& segment)> free;
};

// Keeps what one such pool holds, in a store of its own: its pages never serve another.
struct SourcedPool {
  SegmentSource source;
  bool no_split = false;  // each block has a segment of its own
  std::unique_ptr<PageStore> store;
};

}  // namespace spillway
