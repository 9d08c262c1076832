// Describes what dumps show of the device's memory: segments, runs of owned bytes that are contiguous in
// addresses, and the blocks they are divided into. A page that several views show is counted once: its used
// bytes at the address where they are used, its free bytes at its own address in the home view. So the sum of
// total_bytes is the reserved memory.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway {

enum class BlockKind : uint8_t { kActiveAllocated, kActivePendingFree, kInactive };

struct BlockRow {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t requested_bytes = 0;
  BlockKind kind = BlockKind::kInactive;
  uint32_t stack = 0;  // where it was allocated: a number of whoever captured it; 0: not known
};

struct FoundBlock {
  BlockRow row;
  int device = 0;
  uint64_t stream = 0;  // as in SegmentRow, like those below
  uint64_t pool_first = 0;
  uint64_t pool_second = 0;
};

struct SegmentRow {
  uint64_t address = 0;
  uint64_t total_bytes = 0;
  uint64_t allocated_bytes = 0;
  uint64_t active_bytes = 0;
  uint64_t requested_bytes = 0;
  uint64_t stream = 0;  // the handle's value
  uint64_t pool_first = 0;
  uint64_t pool_second = 0;
  std::vector<BlockRow> blocks;  // ascending, covering the segment without gaps
};

}  // namespace spillway
