#include "offload/spill/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace spillway {
namespace {

using Change = std::pair<SpillState, SpillState>;

constexpr std::array kLegal = {
    Change{SpillState::kResident, SpillState::kEvicting},  //
    Change{SpillState::kEvicting, SpillState::kHost},
    Change{SpillState::kEvicting, SpillState::kDisk},
    Change{SpillState::kEvicting, SpillState::kResident},
    Change{SpillState::kHost, SpillState::kWriting},
    Change{SpillState::kWriting, SpillState::kDisk},
    Change{SpillState::kWriting, SpillState::kHost},
    Change{SpillState::kDisk, SpillState::kReading},
    Change{SpillState::kReading, SpillState::kHost},
    Change{SpillState::kReading, SpillState::kDisk},
    Change{SpillState::kReading, SpillState::kPoisoned},
    Change{SpillState::kHost, SpillState::kRestoring},
    Change{SpillState::kDisk, SpillState::kRestoring},
    Change{SpillState::kRestoring, SpillState::kResident},
    Change{SpillState::kRestoring, SpillState::kHost},
    Change{SpillState::kRestoring, SpillState::kDisk},
    Change{SpillState::kRestoring, SpillState::kPoisoned},
    Change{SpillState::kResident, SpillState::kDiscarded},
    Change{SpillState::kDiscarded, SpillState::kRestoring},
    Change{SpillState::kRestoring, SpillState::kDiscarded},
    Change{SpillState::kPoisoned, SpillState::kDiscarded},
};

}  // namespace

const char* name_of(SpillState state) {
  constexpr std::array kNames = {"on the device",         "being moved out", "in host memory",
                                 "being written to disk", "on disk",         "being read from disk",
                                 "being brought back",    "discarded",       "lost"};
  return kNames[static_cast<size_t>(state)];
}

Status SpillBlock::go(SpillState to) {
  if (std::find(kLegal.begin(), kLegal.end(), Change{state_, to}) == kLegal.end()) {
    return Status::internal(
        fmt::format("a block that is {} cannot become one that is {}", name_of(state_), name_of(to)));
  }
  state_ = to;
  return {};
}

SpillBlock SpillBlock::split(uint64_t kept) {
  SpillBlock rest(bytes - kept, state_);
  if (spilled.host != nullptr) rest.spilled.host = spilled.host + kept;
  if (const size_t pieces = piece_count(kept); spilled.pieces.size() > pieces) {
    rest.spilled.pieces.assign(spilled.pieces.begin() + static_cast<ptrdiff_t>(pieces), spilled.pieces.end());
    spilled.pieces.resize(pieces);
  }
  bytes = kept;
  return rest;
}

}  // namespace spillway
