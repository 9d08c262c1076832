// Holds what tests of regions and stashes say in one line: bytes of a region, and what its tiers hold.
#pragma once

#include "include/spillway/offload.h"
#include "include/spillway/pinned.h"
#include "tests/support/child.h"
#include "tests/support/filled.h"
#include "tests/support/sizes.h"

namespace spillway::test {

inline spw_region_stats region_stats(const char* tag) {
  spw_region_stats stats{};
  stats.size = sizeof stats;
  SPW_CHECK(spw_region_stats_get(0, tag, &stats) == SPW_OK);
  return stats;
}

inline int64_t pinned_bytes() {
  spw_pinned_stats stats{};
  stats.size = sizeof stats;
  SPW_CHECK(spw_pinned_stats_get(&stats) == SPW_OK);
  return stats.reserved_bytes.current;
}
inline spw_tier_stats tier_stats() {
  spw_tier_stats stats{};
  stats.size = sizeof stats;
  SPW_CHECK(spw_tier_stats_get(0, &stats) == SPW_OK);
  return stats;
}

inline int64_t allocated_bytes() {
  spw_stats stats{};
  stats.size = sizeof stats;
  SPW_CHECK(spw_stats_get(0, &stats) == SPW_OK);
  return stats.allocated_bytes.all.current;
}

inline void* allocate_in(const char* tag, size_t bytes) {
  void* block = nullptr;
  SPW_CHECK(spw_region_begin(0, tag) == SPW_OK);
  SPW_CHECK(spw_alloc(bytes, 0, nullptr, &block) == SPW_OK);
  SPW_CHECK(spw_region_end(0, tag) == SPW_OK);
  return block;
}

inline void* filled_in(const Driver& driver, const char* tag, unsigned char value, size_t bytes) {
  void* block = allocate_in(tag, bytes);
  fill(driver, block, value, bytes);
  return block;
}

}  // namespace spillway::test
