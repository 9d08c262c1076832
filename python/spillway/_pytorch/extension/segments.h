// Runs of addresses that are device memory of one stream and pool, and how two moments' runs differ: what a
// history tells of segments.
#pragma once

#include <c10/core/Allocator.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace spillway_torch {

struct Segment {
  uint64_t address;
  uint64_t bytes;
  cudaStream_t stream;
  c10::MempoolId_t pool;
  std::shared_ptr<c10::GatheredContext> context = nullptr;  // where it was mapped, as far as that is known

  uint64_t end() const { return address + bytes; }
  bool is_like(const Segment& other) const { return stream == other.stream && pool == other.pool; }
};

// Ascending, no two overlap.
using Segments = std::vector<Segment>;

// Lists those of a device, at this moment; those of none if it cannot be asked.
Segments segments_of(c10::DeviceIndex device);

// Tells whether all of these bytes are in segments of that stream and pool.
bool holds(const Segments& segments, const Segment& bytes);

// The parts of `segments` that are in no segment of `others` of the same stream and pool.
Segments difference(const Segments& segments, const Segments& others);

// Both, of which no two overlap.
Segments together(Segments segments, const Segments& others);

// The segment that has this byte; null if none.
const Segment* find(const Segments& segments, uint64_t address);

}  // namespace spillway_torch
