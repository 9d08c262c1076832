// Where a pool's memory comes from instead of the device: an allocator of the program's, as NCCL has one. It
// is asked for segments, and Spillway divides them.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "allocator/page_store.h"
#include "driver/status.h"

namespace spillway {

// Called by the thread that needs memory or gives it up, with no lock held.
struct SegmentSource {
  // Device memory that `stream` may use at once; null when there is none.
  std::function<void*(uint64_t bytes, CUstream stream)> allocate;
  // Nothing uses it any more.
  std::function<void(const SegmentMemory& segment)> free;
};

// What one such pool holds, in a store of its own: its pages never serve another.
struct SourcedPool {
  SegmentSource source;
  std::unique_ptr<PageStore> store;
  bool is_moving = false;  // out of the device, or back
};

// Moves the bytes of these segments out of the device, or back to it; addresses stay. Called with no lock
// held. On failure everything is where it was.
using MoveSegments = std::function<Status(const std::vector<SegmentMemory>& segments)>;

}  // namespace spillway
