#include "allocator/pool.h"

#include <fmt/format.h>

namespace spillway {

Status pool_refused(PoolId id, const char* why) {
  return Status::invalid_state(fmt::format("pool {{{}, {}}} {}", id.first, id.second, why));
}

}  // namespace spillway
