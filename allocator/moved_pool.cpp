#include "allocator/moved_pool.h"

#include <fmt/format.h>

namespace spillway {

const char* name_of(PoolStay stay) {
  switch (stay) {
    case PoolStay::kHere:
      return "here";
    case PoolStay::kLeaving:
      return "leaving";
    case PoolStay::kLeft:
      return "left";
    case PoolStay::kAway:
      return "away";
    case PoolStay::kReturning:
      return "returning";
    case PoolStay::kArriving:
      return "arriving";
  }
  return "unknown";
}

bool is_legal(PoolStay from, PoolStay to) {
  using enum PoolStay;
  switch (from) {
    case kHere:
      return to == kLeaving;
    case kLeaving:
      return to == kLeft || to == kHere;
    case kLeft:
      return to == kAway;
    case kAway:
      return to == kReturning;
    case kReturning:
      return to == kArriving || to == kAway;
    case kArriving:
      return to == kHere || to == kReturning;
  }
  return false;
}

Status MovablePool::go(PoolStay to) {
  if (!is_legal(stay_, to)) {
    return Status::internal(fmt::format("a pool that is {} cannot become {}", name_of(stay_), name_of(to)));
  }
  stay_ = to;
  return {};
}

}  // namespace spillway
