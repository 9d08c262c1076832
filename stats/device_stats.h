// The counters of one device as plain data: the public structure, born empty with its size and version filled
// in.
#pragma once

#include <cstdint>

#include "include/spillway/stats.h"

namespace spillway {

struct DeviceStats : spw_stats {
  DeviceStats() : spw_stats{} {
    size = sizeof(spw_stats);
    version = SPW_STATS_VERSION;
    max_split_size = -1;
    limit_bytes = INT64_MAX;
  }
};

// Counts what one heap holds. owned = active + inactive_split + cached_free; the free part is what its stream
// strands.
struct HeapStats {
  int64_t owned_bytes = 0;
  int64_t active_bytes = 0;
  int64_t requested_bytes = 0;
  int64_t inactive_split_bytes = 0;
  int64_t cached_free_bytes = 0;
  int64_t pending_bytes = 0;
};

// A private pool, and the bytes it holds of the device.
struct PoolRow {
  uint64_t first = 0;
  uint64_t second = 0;
  spw_stat reserved_bytes{};
};

}  // namespace spillway
