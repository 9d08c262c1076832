// Runs of addresses that are device memory of one stream and pool, and how two moments' runs differ: what a
// history tells of segments.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <vector>

namespace spillway_torch {

struct Segment {
  uint64_t address;
  uint64_t bytes;
  void* stream;  // a cudaStream_t
  c10::MempoolId_t pool;

  uint64_t end() const { return address + bytes; }
  bool is_like(const Segment& other) const { return stream == other.stream && pool == other.pool; }
};

// Ascending, no two overlap.
using Segments = std::vector<Segment>;

// Of a device, at this moment; those of none if it cannot be asked.
Segments segments_of(c10::DeviceIndex device);

// Whether one segment has all of these bytes.
bool holds(const Segments& segments, uint64_t address, uint64_t bytes);

// The parts of `segments` that are in no segment of `others` of the same stream and pool.
Segments difference(const Segments& segments, const Segments& others);

}  // namespace spillway_torch
