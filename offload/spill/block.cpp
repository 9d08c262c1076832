#include "offload/spill/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace spillway {
namespace {

using Change = std::pair<BlockPlace, BlockPlace>;

constexpr std::array kLegal = {
    Change{BlockPlace::kResident, BlockPlace::kEvicting},  //
    Change{BlockPlace::kEvicting, BlockPlace::kHost},
    Change{BlockPlace::kEvicting, BlockPlace::kDisk},
    Change{BlockPlace::kEvicting, BlockPlace::kResident},
    Change{BlockPlace::kHost, BlockPlace::kWriting},
    Change{BlockPlace::kWriting, BlockPlace::kDisk},
    Change{BlockPlace::kWriting, BlockPlace::kHost},
    Change{BlockPlace::kDisk, BlockPlace::kReading},
    Change{BlockPlace::kReading, BlockPlace::kHost},
    Change{BlockPlace::kReading, BlockPlace::kDisk},
    Change{BlockPlace::kReading, BlockPlace::kPoisoned},
    Change{BlockPlace::kHost, BlockPlace::kRestoring},
    Change{BlockPlace::kDisk, BlockPlace::kRestoring},
    Change{BlockPlace::kRestoring, BlockPlace::kResident},
    Change{BlockPlace::kRestoring, BlockPlace::kHost},
    Change{BlockPlace::kRestoring, BlockPlace::kDisk},
    Change{BlockPlace::kRestoring, BlockPlace::kPoisoned},
    Change{BlockPlace::kResident, BlockPlace::kDiscarded},
    Change{BlockPlace::kDiscarded, BlockPlace::kRestoring},
    Change{BlockPlace::kRestoring, BlockPlace::kDiscarded},
    Change{BlockPlace::kPoisoned, BlockPlace::kDiscarded},
};

}  // namespace

const char* name_of(BlockPlace place) {
  constexpr std::array kNames = {"on the device",         "being moved out", "in host memory",
                                 "being written to disk", "on disk",         "being read from disk",
                                 "being brought back",    "discarded",       "lost"};
  return kNames[static_cast<size_t>(place)];
}

Status SpillBlock::go(BlockPlace to) {
  if (std::find(kLegal.begin(), kLegal.end(), Change{place_, to}) == kLegal.end()) {
    return Status::internal(
        fmt::format("a block that is {} cannot become one that is {}", name_of(place_), name_of(to)));
  }
  place_ = to;
  return {};
}

SpillBlock SpillBlock::split(uint64_t kept) {
  SpillBlock rest(bytes - kept, place_);
  if (spilled.host != nullptr) rest.spilled.host = spilled.host + kept;
  if (const size_t pieces = piece_count(kept); spilled.pieces.size() > pieces) {
    rest.spilled.pieces.assign(spilled.pieces.begin() + static_cast<ptrdiff_t>(pieces), spilled.pieces.end());
    spilled.pieces.resize(pieces);
  }
  bytes = kept;
  return rest;
}

}  // namespace spillway
