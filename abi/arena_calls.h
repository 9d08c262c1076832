// What the bodies of the C ABI share: calls on the arena of a device, and rows as the ABI has them.
#pragma once

#include "abi/boundary.h"
#include "abi/process.h"
#include "include/spillway/spillway.h"
#include "stats/segment_row.h"

namespace spillway {

// Runs `body` on the arena of a device, made if need be.
template <typename Body>
spw_status with_arena(int device, Body body) noexcept {
  return guarded([&]() -> Status {
    Result<Arena*> arena = Process::instance().arena(device);
    return arena.ok() ? body(*arena.value()) : arena.take_status();
  });
}

// Runs `body` on the arena of a device if it was used already; there is nothing to do otherwise.
template <typename Body>
spw_status with_used_arena(int device, Body body) noexcept {
  return guarded([&]() -> Status {
    Result<Arena*> arena = Process::instance().used_arena(device);
    if (!arena.ok()) return arena.take_status();
    return arena.value() == nullptr ? Status() : body(*arena.value());
  });
}

inline spw_block to_abi(const BlockRow& row) {
  spw_block_state state = SPW_BLOCK_INACTIVE;
  if (row.kind == BlockKind::kActiveAllocated) state = SPW_BLOCK_ALLOCATED;
  if (row.kind == BlockKind::kActivePendingFree) state = SPW_BLOCK_PENDING_FREE;
  return {row.address, row.bytes, row.requested_bytes, state};
}

}  // namespace spillway
