// The largest request that free memory serves without new memory from the driver: what "the largest range" of
// the counters and of reports is. Exact where the device has virtual memory management: a request of so many
// bytes is served, one of a quantum more is not.
//
// A request takes whole pages wherever they lie, and what is free at the ends of two partly used pages, the
// end of one and the beginning of another; or a piece inside one page. Without views it takes what lies in a
// row. Small requests take a slot where nothing else is left.
#pragma once

#include <cstdint>

namespace spillway {

// Holds what one heap could serve a request from, slabs without a live slot given up.
struct FreeSpace {
  uint32_t free_pages = 0;
  uint32_t end_quanta = 0;    // of two pages or extents, the end of one and the beginning of the other
  uint32_t piece_quanta = 0;  // the largest inside one page
  uint64_t run_quanta = 0;    // in a row in the home view
  uint64_t run_pages = 0;     // the same of free pages alone
  uint64_t slot_bytes = 0;    // of the largest free slot
};

struct RequestLimits {
  bool views = true;  // false: what lies in a row
  bool share_edges = true;
  uint64_t small_limit_bytes = 0;  // requests up to this take slots
};

// Returns the largest request that is served with so many free pages of others, which views join.
uint64_t largest_request_bytes(const FreeSpace& space, uint64_t other_pages, const RequestLimits& limits);

}  // namespace spillway
