#include "allocator/pool.h"

#include <fmt/format.h>

namespace spillway {

Status pool_refused(PoolId id, const char* why) {
  return Status::invalid_state(fmt::format("pool {{{}, {}}} {}", id.first, id.second, why));
}

void Pool::claim(uint64_t stamp) {
  if (claims_++ == 0) birth_ = stamp;
}

bool Pool::unclaim() {
  if (--claims_ > 0) return false;
  birth_ = 0;
  if (movable_ != nullptr) movable_->is_released = true;
  return true;
}

bool Pool::is_forgotten() const {
  return !is_claimed() && source_ == nullptr && movable_ == nullptr && bytes.peak == 0 &&
         bytes.allocated == 0 && bytes.freed == 0;
}

Status Pool::check_source() const {
  if (source_ != nullptr) return pool_refused(id, "has a source already");
  if (movable_ != nullptr) return pool_refused(id, "is a region's, whose memory is the device's");
  if (lends()) return pool_refused(id, "lends its memory");
  return {};
}

Status Pool::check_movable() const {
  if (movable_ != nullptr) return pool_refused(id, "can be moved already");
  if (source_ != nullptr) return pool_refused(id, "has a source of its own");
  return {};
}

void Pool::make_movable(GiveUpCopies give_up) {
  movable_ = std::make_unique<MovablePool>();
  movable_->give_up = std::move(give_up);
}

Status Pool::check_present() const {
  if (movable_ == nullptr) return {};
  if (movable_->is_moving()) return pool_refused(id, "is being moved");
  if (movable_->is_away()) return pool_refused(id, "is not on the device: bring it back first");
  return {};
}

}  // namespace spillway
