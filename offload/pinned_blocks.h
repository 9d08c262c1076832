// Blocks of pinned memory in the program's hands, and those that it freed while streams still use them.
//
// A free marks each stream that the block was recorded on with an event; the block serves again when all of
// them are reached, which is looked at when memory is asked for. A block that is freed while one of its
// streams is being captured belongs to a graph that may be replayed at any time: its memory is kept for ever.
// One whose streams cannot be marked (they are gone) waits for trim().
//
// Thread-safe; no lock is held during a driver call that may block.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "driver/context.h"
#include "driver/driver.h"
#include "driver/event.h"
#include "offload/pinned_arena.h"
#include "stats/lock.h"

namespace spillway {

class PinnedBlocks {
 public:
  PinnedBlocks(std::shared_ptr<const Driver> driver, PinnedArenaOptions options)
      : driver_(std::move(driver)), arena_(*driver_, std::move(options)) {}

  // See spw_pinned_alloc, and so on.
  Status allocate(uint64_t bytes, int device, void** out);
  Status free(void* pointer);
  Status record_stream(const void* pointer, int device, CUstream stream);
  // Trims for the arena's other users, too.
  void trim();

  // For other users of pinned memory, whose blocks are not counted here.
  PinnedArena& arena() { return arena_; }
  spw_pinned_stats stats() const;
  void reset_peaks();
  void reset_accumulated();

 private:
  struct Use {
    int device;
    CUstream stream;
  };
  struct Block {
    uint64_t requested_bytes = 0;
    std::vector<Use> uses;
  };
  struct Mark {
    int device;
    Event event;
  };
  struct Freed {
    uint64_t at = 0;
    uint64_t requested_bytes = 0;
    std::vector<Mark> marks;
  };
  // A device whose context is used here.
  struct Device {
    Device(const Driver& driver, RetainedContext retained) : context(std::move(retained)), events(driver) {}
    RetainedContext context;
    EventPool events;
  };
  enum class Marking { kMarked, kCaptured, kFailed };

  Result<Device*> device(int ordinal);
  Marking mark(const std::vector<Use>& uses, std::vector<Mark>& marks);
  // `all`: beyond the first that is still in use, too.
  bool complete_finished(bool all) SPW_REQUIRES(mutex_);
  // Waits for the block that was freed first. False where there is none.
  bool wait_for_oldest() SPW_EXCLUDES(mutex_);
  bool is_over(Freed& freed) SPW_REQUIRES(mutex_);
  void give_back(uint64_t at, uint64_t requested_bytes) SPW_REQUIRES(mutex_);

  const std::shared_ptr<const Driver> driver_;
  const pid_t owner_ = getpid();  // children of fork have not what is free here
  PinnedArena arena_;

  mutable BlockingMutex mutex_;
  std::map<int, std::unique_ptr<Device>> devices_ SPW_GUARDED_BY(mutex_);  // for ever
  std::map<uint64_t, Block> blocks_ SPW_GUARDED_BY(mutex_);                // by address
  std::list<Freed> pending_ SPW_GUARDED_BY(mutex_);                        // oldest first
  std::vector<Freed> unmarked_ SPW_GUARDED_BY(mutex_);                     // until trim()
  spw_pinned_stats block_stats_ SPW_GUARDED_BY(mutex_){};
};

}  // namespace spillway
