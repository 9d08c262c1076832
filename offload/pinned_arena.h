// Pinned host memory that is divided as asked: the memory of pinned blocks, and of whatever is moved out of a
// device. It grows by chunks, one registration each, because a copy must not cross two of them. A chunk is as
// large as the request that needs it, or where that is less as many of its kind as a 64th of what is held, so
// that what lies unused stays below 3 %. Inside chunks free ranges are found by best fit and joined at once;
// requests below a slot of 2 MiB are cut from the low end of a range and others from its high end, which
// keeps the small ones from scattering over what large ones need.
//
// A pin that is refused, by the driver or for want of host memory, lowers what may be held to what is held,
// until memory goes back or forget_refusals(). PinnedGrowth pins ahead of need.
//
// Thread-safe; no lock is held during a driver call. The Driver must outlive it. Knows nothing of streams: a
// block that is given back is free.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "driver/driver.h"
#include "driver/pinned_memory.h"
#include "include/spillway/stats.h"
#include "stats/lock.h"

namespace spillway {

struct PinnedArenaOptions {
  uint64_t most_bytes = UINT64_MAX;           // that may be held
  std::function<uint64_t()> available_bytes;  // what the host has left, of which half may be pinned; or null
  unsigned touch_threads = 1;                 // that may make a chunk's pages present
};

class PinnedArena {
 public:
  static constexpr uint64_t kQuantumBytes = 512;  // sizes are rounded to it
  static constexpr uint64_t kSlotBytes = PinnedMemory::kAlignment;

  PinnedArena(const Driver& driver, PinnedArenaOptions options)
      : driver_(driver),
        available_bytes_(std::move(options.available_bytes)),
        touch_threads_(options.touch_threads),
        most_bytes_(options.most_bytes) {}

  // `alignment` is a power of two, at most kSlotBytes. A context must be current. Errors: out_of_memory.
  Result<void*> allocate(uint64_t bytes, uint64_t alignment = kQuantumBytes);
  // Does the same from what is held: null where nothing fits. Calls no driver.
  void* take(uint64_t bytes, uint64_t alignment = kQuantumBytes);
  // `bytes` as for allocate().
  void give_back(void* block, uint64_t bytes);

  // Children of fork are to have this block, as those of a program may read what it has in pinned memory: its
  // whole chunk is copied by a fork from then on. Blocks of other chunks they have not.
  void share_with_children(const void* block);

  // Pins a chunk in which a block of `bytes` fits, in place of free ones if need be. A context must be
  // current. Errors: out_of_memory.
  Status grow(uint64_t bytes);
  // Does the same beside those that are free.
  Status grow_ahead(uint64_t bytes);
  // In all chunks, in use or not.
  uint64_t reserved_bytes() const;
  // Unpins every chunk without a block, in the context that it was pinned in; answers how many bytes that
  // was. No work that was enqueued may still use blocks that were given back.
  uint64_t release_free();

  // Returns what may be held at most, as far as is known: a pin that was refused lowers it.
  uint64_t most_bytes() const;
  // A limit below what is held takes nothing away.
  void set_most_bytes(uint64_t bytes);
  void forget_refusals();
  // Fills in what concerns chunks.
  void add_stats(spw_pinned_stats& stats) const;
  void reset_peaks();
  void reset_accumulated();
  // Walks everything. Errors: internal, with the first thing that is not as it must be.
  Status validate() const;

 private:
  uint64_t room_bytes() const SPW_REQUIRES(mutex_);
  void insert_free(uint64_t begin, uint64_t end) noexcept SPW_REQUIRES(mutex_);
  void remove_free(uint64_t begin, uint64_t end) SPW_REQUIRES(mutex_);
  // Where nothing is held there is nothing to go on with, and the next request tries again.
  void refuse_more() SPW_REQUIRES(mutex_) {
    refused_from_bytes_ = held_bytes() > 0 ? held_bytes() : UINT64_MAX;
  }
  uint64_t held_bytes() const SPW_REQUIRES(mutex_) {
    return static_cast<uint64_t>(chunk_stats_.reserved_bytes.current);
  }

  // Pins a chunk of so many bytes and counts it.
  Status pin(uint64_t bytes);

  const Driver& driver_;
  const std::function<uint64_t()> available_bytes_;
  const unsigned touch_threads_;
  mutable BlockingMutex mutex_;
  uint64_t most_bytes_ SPW_GUARDED_BY(mutex_);                       // that may be held
  uint64_t refused_from_bytes_ SPW_GUARDED_BY(mutex_) = UINT64_MAX;  // holding that much, a pin was refused
  uint64_t growing_bytes_ SPW_GUARDED_BY(mutex_) = 0;                // being pinned now
  struct Chunk {
    PinnedMemory memory;
    CUcontext context = nullptr;
    bool is_shared = false;  // with children of fork
  };
  std::map<uint64_t, Chunk> chunks_ SPW_GUARDED_BY(mutex_);  // by address
  // Begin to end; no two are neighbours within a chunk.
  std::map<uint64_t, uint64_t> free_ SPW_GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_ SPW_GUARDED_BY(mutex_);  // bytes, begin
  spw_pinned_stats chunk_stats_ SPW_GUARDED_BY(mutex_){};
};

}  // namespace spillway
