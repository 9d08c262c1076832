// Spillway as PyTorch's allocator of pinned host memory: spillway/pinned.h, and the memory of CUDA graphs.
//
// A block that was asked for while the pool of a graph was open is the pool's until the pool is gone and the
// cache is emptied. If no stream was recorded on it, no graph uses it, and once it is freed it serves
// requests of the same pool, as it does in PyTorch's own allocator.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "release.h"

namespace spillway_torch {

class HostAllocator final : public HostAllocatorOfRelease {
 public:
  at::DataPtr allocate(size_t bytes) override;
  at::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  void free(void* pointer);

  bool record_event(void* pointer, void* context, c10::Stream stream) override;
  void empty_cache() override;

  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

  void begin_allocate_to_pool(c10::MempoolId_t id, std::function<bool(c10::Stream)> filter) override;
  void end_allocate_to_pool(c10::MempoolId_t id) override;
  void release_pool(c10::MempoolId_t id) override;

 private:
  struct Pool {
    int claims = 0;
    std::vector<void*> freed;                  // that its graphs may still use
    std::multimap<size_t, void*> free_unused;  // that none of them uses, by bytes
  };
  struct PoolBlock {
    size_t bytes = 0;
    c10::MempoolId_t pool;
    bool is_used = false;  // on a stream
  };

  // The pool that is open for the current stream, or null. With the mutex held, like the next one.
  const c10::MempoolId_t* open_pool() const;
  void add_pool_block(void* pointer, const PoolBlock& block);
  // A free block of the pool that is open for the current stream; null where there is none.
  void* take_of_pool(size_t bytes);
  // Notes that the block is of the pool that is open for the current stream, if one is.
  void note_pool(void* pointer, size_t bytes);
  // Notes that a stream uses the block around the address, if it is of a pool.
  void note_use(const void* pointer);
  // False for a block of no pool.
  bool keep_for_pool(void* pointer);
  void free_released();

  std::mutex mutex_;
  std::vector<std::pair<c10::MempoolId_t, std::function<bool(c10::Stream)>>> open_;
  std::map<c10::MempoolId_t, Pool> pools_;
  std::map<uintptr_t, PoolBlock> pool_blocks_;  // in use, by address
  std::vector<void*> released_;                 // of pools that are gone; replays may be in progress
  std::atomic<size_t> open_count_{0};
  std::atomic<size_t> pool_block_count_{0};
};

}  // namespace spillway_torch
