// The pools that are open, and which of them serves a request. Their filters are the program's code: no lock
// is held while one runs.
//
// Thread-safe.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "allocator/arena_parts.h"
#include "allocator/pool.h"
#include "stats/lock.h"

namespace spillway {

// A pool that is open: which requests it serves.
struct OpenPool {
  OpenPool(PoolId pool, std::function<bool(CUstream)> asked) : id(pool), filter(std::move(asked)) {}

  const PoolId id;
  const std::function<bool(CUstream)> filter;  // null: every stream
  bool is_sourced = false;
  bool is_movable = false;
  bool by_owner = false;            // of a movable pool
  bool is_last = false;             // behind all others
  std::atomic<uint32_t> askers{0};  // threads that may be calling the filter
  // Says what it is open for, as far as its first request told: perhaps a capture, or whatever a thread does,
  // if the filter accepts a stream that nobody ever used.
  enum class Use : uint8_t { kUnknown, kCapture, kOther };
  std::atomic<Use> use{Use::kUnknown};
};

class OpenPools {
 public:
  explicit OpenPools(const ArenaParts& parts) : parts_(parts) {}

  bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  // Tells whether one may be open for a capture of a stream that the arena need not know.
  bool may_capture() const { return for_capture_.load(std::memory_order_acquire) != 0; }
  bool contains(PoolId id) const;
  // The pool that serves a request on the stream; null: the default pool.
  std::shared_ptr<const OpenPool> serving(CUstream stream);
  // Returns what `is_quiet()` answers while nobody opens a pool; false where one may be open for a capture.
  template <typename IsQuiet>
  bool without_captures(IsQuiet is_quiet) const {
    const Lock lock(mutex_);  // orders the answer before the next open()
    return for_capture_.load(std::memory_order_relaxed) == 0 && is_quiet();
  }

  void open(std::shared_ptr<OpenPool> pool);
  // When it answers, the filter is not running and will not be called again, but for the call that this is
  // called from. False where no pool by that id is open.
  bool close(PoolId id);
  // Nobody asks any more.
  void clear();

 private:
  // Notes the use by the stream of a request that the pool's filter accepted, on the thread that asked.
  void note_use(OpenPool& pool, CUstream stream);
  OpenPool::Use use_of(const OpenPool& pool, CUstream stream) const;

  const ArenaParts& parts_;
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<OpenPool>> pools_ SPW_GUARDED_BY(mutex_);  // those that are last come first
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> for_capture_{0};  // of them, those that may be open for a capture
};

}  // namespace spillway
