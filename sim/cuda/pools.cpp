#include "sim/cuda/pools.h"

#include <algorithm>

#include "sim/cuda/call.h"

namespace spillway::sim {
namespace {

bool host_knows(const State& state, const MemoryPool::Free& block) {
  return state.scheduler.host_knows(block.freed);
}

// Tells whether what the stream does next comes after the free as it is.
bool comes_after(const State& state, const MemoryPool& pool, const Stream& stream,
                 const MemoryPool::Free& block) {
  const WorkPoint& freed = block.freed;
  if (freed.timeline == stream.timeline || host_knows(state, block)) return true;
  if (pool.follows_events && state.scheduler.clock(stream.timeline).reached(freed.timeline, freed.position))
    return true;
  return pool.is_opportunistic && state.scheduler.is_complete(freed);
}

// A freed block of so many bytes that the stream may use; null if there is none.
const MemoryPool::Free* reusable(const State& state, const MemoryPool& pool, const Stream& stream,
                                 uint64_t reserved_bytes) {
  const MemoryPool::Free* to_wait_for = nullptr;
  for (const MemoryPool::Free& block : pool.free) {
    if (block.reserved_bytes != reserved_bytes) continue;
    if (comes_after(state, pool, stream, block)) return &block;
    if (to_wait_for == nullptr && pool.adds_dependencies) to_wait_for = &block;
  }
  return to_wait_for;
}

// Oldest first, down to so many bytes that the pool holds.
template <typename MayGo>
void release_down_to(State& state, MemoryPool& pool, uint64_t kept_bytes, MayGo may_go) {
  const std::vector<MemoryPool::Free> blocks = pool.free;
  for (const MemoryPool::Free& block : blocks) {
    if (pool.reserved.current <= kept_bytes) return;
    if (may_go(block)) free_allocation(state, state.memory.find(block.start));
  }
}

// Where the device is full, its pools keep nothing that is freed.
void release_all(State& state, int device, Lock& lock) {
  std::vector<MemoryPool*> pools;
  state.pools.all.for_each([&](MemoryPool& pool) {
    if (pool.device == device) pools.push_back(&pool);
  });
  for (MemoryPool* pool : pools) {
    const std::vector<MemoryPool::Free> blocks = pool->free;
    for (const MemoryPool::Free& block : blocks) state.scheduler.force(block.freed, lock);
    release_down_to(state, *pool, 0,
                    [&](const MemoryPool::Free& block) { return state.scheduler.is_complete(block.freed); });
  }
}

CUdeviceptr take_free(State& state, MemoryPool& pool, const Stream& stream, uint64_t bytes,
                      uint64_t reserved_bytes) {
  const MemoryPool::Free* found = reusable(state, pool, stream, reserved_bytes);
  if (found == nullptr) return 0;
  const MemoryPool::Free block = *found;
  pool.free.erase(pool.free.begin() + (found - pool.free.data()));
  state.scheduler.order_after(stream.timeline, block.freed);
  state.memory.find(block.start)->bytes = bytes;
  return block.start;
}

}  // namespace

void Pools::reset() {
  all.drop_all();
  usual.fill(nullptr);
  current.fill(nullptr);
  blocks.clear();
}

MemoryPool* find_pool(CUmemoryPool handle) {
  auto* pool = reinterpret_cast<MemoryPool*>(handle);
  return Slots<MemoryPool>::is_alive(pool) && !pool->destroyed ? pool : nullptr;
}

MemoryPool* make_pool(State& state, int device) {
  MemoryPool* pool = state.pools.all.make();
  pool->device = device;
  return pool;
}

MemoryPool* usual_pool(State& state, int device) {
  MemoryPool*& usual = state.pools.usual[static_cast<size_t>(device)];
  if (usual == nullptr) usual = make_pool(state, device);
  return usual;
}

MemoryPool* current_pool(State& state, int device) {
  MemoryPool* chosen = state.pools.current[static_cast<size_t>(device)];
  return chosen != nullptr ? chosen : usual_pool(state, device);
}

void destroy_pool(State& state, MemoryPool* pool) {
  pool->destroyed = true;
  pool->release_threshold = 0;
  std::replace(state.pools.current.begin(), state.pools.current.end(), pool,
               static_cast<MemoryPool*>(nullptr));
  if (pool->reserved.current == 0) return state.pools.all.drop(pool);
  trim_pool(state, *pool, 0);
}

CUresult allocate_from_pool(Call& call, MemoryPool& pool, Stream* stream, CUdeviceptr* out, uint64_t bytes) {
  State& state = call.state();
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > state.config.capacity_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = enqueue(state, stream, nullptr, {}, "cuMemAllocAsync", call.lock());
  if (result != CUDA_SUCCESS) return result;
  const uint64_t reserved_bytes = whole_pages(state, bytes);
  CUdeviceptr start = take_free(state, pool, *stream, bytes, reserved_bytes);
  if (start == 0) {
    result = allocate_block(call, &start, bytes, pool.device);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      release_all(state, pool.device, call.lock());
      result = allocate_block(call, &start, bytes, pool.device);
    }
    if (result != CUDA_SUCCESS) return result;
    pool.reserved.add(reserved_bytes);
  }
  pool.used.add(bytes);
  state.pools.blocks[start] = {&pool, bytes, reserved_bytes};
  state.detector.note_alloc(start, bytes, stream->id);
  *out = start;
  return CUDA_SUCCESS;
}

CUresult free_into_pool(State& state, Mapping* mapping, Stream* stream, Lock& lock) {
  const CUdeviceptr start = mapping->start;
  Pools::Block& block = state.pools.blocks.at(start);
  MemoryPool& pool = *block.pool;
  if (block.used_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  WorkPoint freed;
  if (stream != nullptr) {
    const RangeAccess whole{start, mapping->bytes, true, false, pool.device};
    const CUresult result = enqueue(state, stream, nullptr, {whole}, "cuMemFreeAsync", lock);
    if (result != CUDA_SUCCESS) return result;
    freed = state.scheduler.end_of(stream->timeline);
  } else {
    state.detector.before_unmap(*mapping);
  }
  state.detector.note_free(start);
  pool.used.take(block.used_bytes);
  block.used_bytes = 0;
  pool.free.push_back({start, block.reserved_bytes, std::move(freed)});
  if (stream == nullptr) release_beyond_thresholds(state);
  return CUDA_SUCCESS;
}

void release_beyond_thresholds(State& state) {
  if (state.pools.blocks.empty()) return;
  std::vector<MemoryPool*> pools;
  state.pools.all.for_each([&](MemoryPool& pool) { pools.push_back(&pool); });
  for (MemoryPool* pool : pools) {
    release_down_to(state, *pool, pool->release_threshold,
                    [&](const MemoryPool::Free& block) { return host_knows(state, block); });
  }
}

void trim_pool(State& state, MemoryPool& pool, uint64_t kept_bytes) {
  release_down_to(state, pool, kept_bytes, [&](const MemoryPool::Free& block) {
    return host_knows(state, block) && pool.reserved.current - block.reserved_bytes >= kept_bytes;
  });
}

void forget_pool_block(State& state, CUdeviceptr start) {
  const auto found = state.pools.blocks.find(start);
  if (found == state.pools.blocks.end()) return;
  state.detector.forget(start);
  const Pools::Block block = found->second;
  MemoryPool& pool = *block.pool;
  state.pools.blocks.erase(found);
  std::erase_if(pool.free, [&](const MemoryPool::Free& free) { return free.start == start; });
  pool.used.take(block.used_bytes);
  pool.reserved.take(block.reserved_bytes);
  if (pool.destroyed && pool.reserved.current == 0) state.pools.all.drop(&pool);
}

}  // namespace spillway::sim
