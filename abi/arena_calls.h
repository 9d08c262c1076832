// Holds what the bodies of the C ABI share: calls on the arena of a device, and rows as the ABI has them.
#pragma once

#include <algorithm>

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

// Returns what an allocation could still get, in bytes: what the driver calls free, and what the arena holds
// without a byte in use or has pending, within its limit.
inline uint64_t available_bytes(Arena& arena, uint64_t driver_free_bytes, uint64_t pending_bytes) {
  arena.complete_finished_frees();
  const DeviceStats stats = arena.stats();
  const uint64_t reusable = static_cast<uint64_t>(stats.cached_free_bytes) + pending_bytes;
  const auto held = static_cast<uint64_t>(stats.reserved_bytes.all.current);
  const uint64_t in_use = held > reusable ? held - reusable : 0;
  const uint64_t limit = arena.most_reserved_bytes();
  driver_free_bytes -= std::min(driver_free_bytes, arena.headroom_bytes());
  return std::min(driver_free_bytes + reusable, limit > in_use ? limit - in_use : 0);
}

// Returns what the arena could still take from the driver, in bytes: what it holds counts as taken, whether
// or not it is in use.
inline uint64_t untaken_bytes(const Arena& arena, uint64_t driver_free_bytes) {
  const auto held = static_cast<uint64_t>(arena.stats().reserved_bytes.all.current);
  const uint64_t limit = arena.most_reserved_bytes();
  driver_free_bytes -= std::min(driver_free_bytes, arena.headroom_bytes());
  return std::min(driver_free_bytes, limit > held ? limit - held : 0) / kPageBytes * kPageBytes;
}

// Returns what may be taken of a device that was not used yet.
inline uint64_t most_bytes(const Config& config, uint64_t device_bytes) {
  const uint64_t reserve = std::min(device_bytes, config.reserve.of(device_bytes));
  return std::min(config.limit.of(device_bytes), device_bytes - reserve) / kPageBytes * kPageBytes;
}

inline spw_block to_abi(const BlockRow& row) {
  spw_block_state state = SPW_BLOCK_INACTIVE;
  if (row.kind == BlockKind::kActiveAllocated) state = SPW_BLOCK_ALLOCATED;
  if (row.kind == BlockKind::kActivePendingFree) state = SPW_BLOCK_PENDING_FREE;
  return {row.address, row.bytes, row.requested_bytes, state};
}

}  // namespace spillway
