// A pool whose memory can leave the device while its addresses stay: the allocator's part in that. What
// copies the bytes, and where to, is another's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "driver/status.h"

namespace spillway {

// Addresses of whole pages, in the home view.
struct PageRange {
  uint64_t va = 0;
  uint64_t bytes = 0;

  uint64_t end_va() const { return va + bytes; }
  bool contains(uint64_t address) const { return address >= va && address < end_va(); }
};

// Copies what lies in these ranges, all of it, to somewhere else. Called with no lock held; on failure there
// is no copy.
using CopyOut = std::function<Status(const std::vector<PageRange>& ranges)>;
// Copies it back into memory that is there again; then the copies are gone. On failure they are as they were.
// *is_settled becomes false where the device may still write to the ranges all the same.
using CopyBack = std::function<Status(const std::vector<PageRange>& ranges, bool* is_settled)>;
// Copies of this range are not needed any more: nothing lies there. Called with no lock held.
using GiveUpCopies = std::function<void(const PageRange& range)>;

struct MovablePool {
  // Whether a graph was captured over its memory, which may keep something in what the pool counts as free:
  // until the pool has no claim but its owner's, or for good.
  enum class Captured : uint8_t { kNever, kByAnother, kForGood };

  GiveUpCopies give_up;
  Captured captured = Captured::kNever;
  bool is_moving = false;  // out of the device, or back
  bool is_away = false;
  bool is_released = false;  // kept until nothing of it is away
};

}  // namespace spillway
