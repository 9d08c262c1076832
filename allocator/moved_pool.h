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

// Says where the memory of such a pool is, and which changes of that are legal. One that is left by a state
// ending in -ing is a mover's, who alone changes it.
//
//   kHere -> kLeaving -> kLeft -> kAway            failure: kLeaving -> kHere, nothing was given up
//   kAway -> kReturning -> kArriving -> kHere      failure: kArriving -> kReturning -> kAway
enum class PoolStay : uint8_t {
  kHere,
  kLeaving,
  kLeft,  // the mover's, and counted out already
  kAway,
  kReturning,
  kArriving,  // counted in already, so that nobody else takes the room
};
const char* name_of(PoolStay stay);
bool is_legal(PoolStay from, PoolStay to);

struct MovablePool {
  // Says whether a graph was captured over its memory, which may keep something in what the pool counts as
  // free: until the pool has no claim but its owner's, or for good.
  enum class Captured : uint8_t { kNever, kByAnother, kForGood };

  GiveUpCopies give_up;
  Captured captured = Captured::kNever;
  bool is_released = false;  // kept until nothing of it is away

  PoolStay stay() const { return stay_; }
  // Errors: internal, for a change that the table does not have; nothing has changed then.
  Status go(PoolStay to);
  // A mover has it.
  bool is_moving() const { return stay_ != PoolStay::kHere && stay_ != PoolStay::kAway; }
  // It counts for nothing on the device.
  bool is_away() const {
    return stay_ == PoolStay::kLeft || stay_ == PoolStay::kAway || stay_ == PoolStay::kReturning;
  }

 private:
  PoolStay stay_ = PoolStay::kHere;
};

}  // namespace spillway
