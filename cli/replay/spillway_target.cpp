// Spillway as a replay target, through nothing but its C ABI.
#include "cli/replay/target.h"

namespace spillway {

Result<std::unique_ptr<ReplayTarget>> make_spillway_target() {
  return Status::unsupported("--allocator spillway: this build has no libspillway");
}

}  // namespace spillway
