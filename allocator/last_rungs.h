// The last rungs of the ladder: what others can do for a request that nothing the arena holds serves, not
// even behind a wait of the host. The arena does not know who they are: a tier that moves cold regions out, a
// guard with a quarantine, the program itself, a tier in host memory.
//
// A rung that gives memory back makes pages free or returns them to the driver, and says how many bytes
// that were. The ladder asks them in turn, evictions before callbacks, in the order in which they were added,
// and looks for the request again after each that gave something; the same one is asked again while it gives,
// up to kMostRounds in one climb.
//
// No lock of the allocator is held during a call, so a rung may free and trim. It may also allocate: such a
// request is served from the arena's own memory, or fails; it asks no rung again. A stream under capture asks
// none: what it uses must stay.
//
// Thread-safe: a rung is called by any thread, by several at a time.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "stats/counters.h"
#include "stats/lock.h"

namespace spillway {

// Asked for `bytes` of device memory; answers how many came free, 0 for none. What it throws counts as 0.
using GiveBack = std::function<uint64_t(uint64_t bytes)>;

// Blocks outside of the device's memory that the device can use. Kept alive while one of its blocks lives.
struct HostPlacement {
  // A block for work on `stream`, at a multiple of 512; null where there is none.
  std::function<void*(uint64_t bytes, CUstream stream)> place;
  // Takes a block of place() back. What is enqueued so far on these streams may still use it.
  std::function<void(void* block, const std::vector<CUstream>& streams)> release;
};

class LastRungs {
 public:
  using Id = uint64_t;
  // Calls of last rungs in one climb: one that says it gives and does not must not keep a request forever.
  static constexpr int kMostRounds = 16;

  // One rung as a climb sees it.
  class Entry {
   public:
    Entry(Id id, Rung rung, GiveBack give_back) : id(id), rung(rung), give_back_(std::move(give_back)) {}
    // 0 also when it was removed meanwhile.
    uint64_t call(uint64_t bytes);

    const Id id;
    const Rung rung;

   private:
    friend class LastRungs;
    const GiveBack give_back_;
    BlockingMutex mutex_;
    Condition idle_;
    int calls_ SPW_GUARDED_BY(mutex_) = 0;
    bool removed_ SPW_GUARDED_BY(mutex_) = false;
  };

  // `rung`: kEvict or kCallback.
  Id add(Rung rung, GiveBack give_back);
  // Once it has answered, no call is in progress or will begin, but for those that this is called from.
  void remove(Id id);
  // Null: no more blocks are placed.
  void set_placement(std::shared_ptr<const HostPlacement> placement);

  // In the order in which they are to be asked.
  std::vector<std::shared_ptr<Entry>> list() const;
  std::shared_ptr<const HostPlacement> placement() const;
  // Tells whether the calling thread is inside a call.
  static bool is_inside();

 private:
  mutable BlockingMutex mutex_;
  std::vector<std::shared_ptr<Entry>> entries_ SPW_GUARDED_BY(mutex_);  // evictions first
  std::shared_ptr<const HostPlacement> placement_ SPW_GUARDED_BY(mutex_);
  Id next_id_ SPW_GUARDED_BY(mutex_) = 1;
};

}  // namespace spillway
