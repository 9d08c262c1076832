// Pins host memory before it is asked for, so that the first time something is spilled costs a copy and no
// pinning. What is pinned is the arena's, and stays.
//
// The thread lives while there is something to pin. A refused pin ends it: the arena has lowered what may be
// held then, and the program goes on with what there is.
//
// Thread-safe. The driver, the context and the arena must outlive it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <thread>

#include "driver/driver.h"
#include "offload/pinned_arena.h"
#include "stats/lock.h"

namespace spillway {

class PinnedGrowth {
 public:
  // The most that is pinned at a time: a block cannot be larger than the chunk that it is in, and a stop
  // waits for one.
  static constexpr uint64_t kStepBytes = uint64_t{1} << 30;

  PinnedGrowth(const Driver& driver, CUcontext context, PinnedArena& arena)
      : driver_(driver), context_(context), arena_(arena) {}
  ~PinnedGrowth() { stop(); }
  PinnedGrowth(const PinnedGrowth&) = delete;
  PinnedGrowth& operator=(const PinnedGrowth&) = delete;

  // The arena is to hold so many bytes in all, those in use included; returns at once. Errors: io (no
  // thread).
  Status reach(uint64_t bytes);
  // Waits until that is so, or was refused; how it went.
  Status wait();
  // Pins nothing more, once what is being pinned is; then there is no thread.
  void stop();

 private:
  void work();
  // There is no thread after all.
  void give_up();

  const Driver& driver_;
  const CUcontext context_;
  PinnedArena& arena_;

  BlockingMutex calls_;  // held while a thread is started or joined
  std::thread thread_ SPW_GUARDED_BY(calls_);

  BlockingMutex mutex_;
  uint64_t wanted_bytes_ SPW_GUARDED_BY(mutex_) = 0;
  bool is_working_ SPW_GUARDED_BY(mutex_) = false;
  Status status_ SPW_GUARDED_BY(mutex_);
};

}  // namespace spillway
