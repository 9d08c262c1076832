// Would a request of some size be served, and what would have to happen first?
#pragma once

#include <cstdint>
#include <optional>

#include "cli/report/view.h"

namespace spillway {

// The largest request that each step can serve, as far as the file tells: none where the file does not say
// what the device has free. Each includes the one before it.
struct Fits {
  uint64_t within = 0;                  // from what is reserved, nothing waited for
  std::optional<uint64_t> now;          // or from new memory of the device
  std::optional<uint64_t> after_trim;   // when cached memory went back to the device
  std::optional<uint64_t> after_evict;  // and regions that nobody has pinned left the device
};

// Spillway joins free pages that are apart; PyTorch's allocator needs one free range, or new memory. Memory
// of other streams counts for what it is after a wait.
Fits fits_of(const MemoryView& view);

}  // namespace spillway
