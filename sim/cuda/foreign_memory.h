// Says where a piece of device memory is found by another process: what an exported file descriptor holds,
// and a handle of cuIpcGetMemHandle.
#pragma once

#include <cstdint>

#include "sim/cuda/state.h"

namespace spillway::sim {

struct ForeignMemory {
  static constexpr uint64_t kMagic = 0x6d656d2d6d6973;

  uint64_t magic;
  int32_t pid;
  int32_t file;  // in that process; -1 where nothing is backed
  uint64_t generation;
  uint64_t id;
  uint64_t offset;
  uint64_t bytes;
  int64_t device;
};

ForeignMemory describe(const State& state, const Physical& physical);
bool is_own(const ForeignMemory& memory);
// The memory, seen through a window; null when its process is gone.
Physical* open_foreign(State& state, const ForeignMemory& memory, Physical::Kind kind);

}  // namespace spillway::sim
