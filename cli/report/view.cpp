#include "cli/report/view.h"

#include <fmt/format.h>

#include <algorithm>

namespace spillway {

std::string MemoryView::label() const {
  return rank ? fmt::format("rank {}, device {}", *rank, device) : fmt::format("device {}", device);
}

Parts parts_of(const std::vector<SegmentView>& segments) {
  Parts out;
  for (const SegmentView& segment : segments) {
    uint64_t active = 0;
    for (const BlockView& block : segment.blocks) {
      if (block.state == BlockState::kInactive) continue;
      active += block.bytes;
      (block.state == BlockState::kLive ? out.live : out.pending) += block.requested_bytes;
      out.rounding += block.bytes - block.requested_bytes;
    }
    (active > 0 ? out.inactive_split : out.cached) += segment.bytes - active;
  }
  return out;
}

uint64_t largest_free_range(const std::vector<SegmentView>& segments) {
  uint64_t largest = 0;
  for (const SegmentView& segment : segments) {
    uint64_t run = 0;
    for (const BlockView& block : segment.blocks) {
      run = block.state == BlockState::kInactive ? run + block.bytes : 0;
      largest = std::max(largest, run);
    }
  }
  return largest;
}

}  // namespace spillway
