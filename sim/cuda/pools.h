// Memory pools of the stream-ordered allocator. A block that is freed stays with its pool, at its address and
// with its memory, until a stream that comes after the free asks for as many pages, or it is released: by
// waits of the host, where the pool holds more than its release threshold, by a trim, or where a pool finds
// the device full.
//
// Which streams come after a free is for the attributes to say; the stream that freed does always, and every
// stream once the host has waited for the free. A free counts as a write of the whole block, for the race
// detector. Guarded by State's lock; Pools is part of State, and the functions join it with the other parts.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/cuda/config.h"
#include "sim/cuda/cuda_api.h"
#include "sim/cuda/gauge.h"
#include "sim/cuda/scheduler.h"
#include "sim/cuda/slots.h"

namespace spillway::sim {

class Call;
struct Mapping;
struct State;
struct Stream;

struct MemoryPool {
  struct Free {
    CUdeviceptr start;
    uint64_t reserved_bytes;
    WorkPoint freed;
  };

  bool alive = false;
  bool destroyed = false;  // alive until its last block is
  int device = 0;
  bool follows_events = true;
  bool is_opportunistic = true;
  bool adds_dependencies = true;
  uint64_t release_threshold = 0;
  Gauge used;              // as asked for
  Gauge reserved;          // whole pages, those of freed blocks included
  std::vector<Free> free;  // oldest first
};

struct Pools {
  struct Block {
    MemoryPool* pool;
    uint64_t used_bytes;  // 0: freed
    uint64_t reserved_bytes;
  };

  Slots<MemoryPool> all;
  std::array<MemoryPool*, kMaxDevices> usual{};    // every device's own, made when first asked for
  std::array<MemoryPool*, kMaxDevices> current{};  // as chosen; null: the usual one
  std::unordered_map<CUdeviceptr, Block> blocks;

  void reset();
};

inline CUmemoryPool handle_of(MemoryPool* pool) {
  return reinterpret_cast<CUmemoryPool>(pool);
}
// Null where the handle is of no pool, or of one that was destroyed.
MemoryPool* find_pool(CUmemoryPool handle);
MemoryPool* make_pool(State& state, int device);
MemoryPool* usual_pool(State& state, int device);
MemoryPool* current_pool(State& state, int device);
void destroy_pool(State& state, MemoryPool* pool);

CUresult allocate_from_pool(Call& call, MemoryPool& pool, Stream* stream, CUdeviceptr* out, uint64_t bytes);
// Null: the host has waited for all that used the block.
CUresult free_into_pool(State& state, Mapping* mapping, Stream* stream, Lock& lock);
// After a wait of the host's.
void release_beyond_thresholds(State& state);
// Leaves at least so many bytes reserved.
void trim_pool(State& state, MemoryPool& pool, uint64_t kept_bytes);
// The block's memory goes, whoever says so.
void forget_pool_block(State& state, CUdeviceptr start);

}  // namespace spillway::sim
