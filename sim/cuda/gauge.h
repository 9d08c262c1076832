// Bytes that come and go, and the most that there were since that was last asked to be forgotten: the
// attributes of pools and of graphs' memory that count.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/cuda/cuda_api.h"

namespace spillway::sim {

struct Gauge {
  uint64_t current = 0;
  uint64_t high = 0;

  void add(uint64_t bytes) {
    current += bytes;
    high = std::max(high, current);
  }
  void take(uint64_t bytes) { current -= bytes; }
  // A watermark may be set to zero alone: what is there now is the highest since.
  CUresult set_high(uint64_t value) {
    if (value != 0) return CUDA_ERROR_INVALID_VALUE;
    high = current;
    return CUDA_SUCCESS;
  }
};

}  // namespace spillway::sim
