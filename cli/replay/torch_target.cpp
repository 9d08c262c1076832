// PyTorch's allocator as a replay target where the peer library is not part of the build.
#include "cli/replay/target.h"

namespace spillway {

Result<std::unique_ptr<ReplayTarget>> make_torch_target(bool expandable_segments) {
  return Status::unsupported(
      std::string("--allocator ") + (expandable_segments ? "expandable" : "native") +
      ": this build has no PyTorch peer; run scripts/quickstart, which installs torch, "
      "and build again");
}

}  // namespace spillway
