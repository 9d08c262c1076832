// A guard stands between the program and an arena (debug:guard) and finds writes outside of blocks and after
// their free, and frees that are wrong.
//
// A block gets red zones before and after, filled with a pattern on its stream. Its free fills it with
// another and puts it into a quarantine, a queue of a bounded number of bytes, from which it is really freed
// only after all of it was read back and compared. Reading back is late and in batches: the program's thread
// waits for the device once for every half quarantine, in check(), when memory runs out, and in trim(). What
// is found is reported once per block and kind, and counted; nothing is ever stopped.
//
// A block is freed at once and unchecked where the guard may not touch its bytes: allocated or freed while
// its stream is captured, or on a per-thread default stream by another thread. A block that is larger than
// the whole quarantine is checked for writes outside at its free, which waits, and freed at once.
//
// Thread-safe. Locks: check_mutex_ (reading back; held while the host waits), then mutex_ (what is known of
// blocks; never during a driver call). Neither is held during an allocation from the arena. The device must
// keep the bytes it is given, which the simulated one does unless backing:none.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/arena.h"
#include "allocator/guarded_block.h"
#include "allocator/readback.h"
#include "driver/driver.h"
#include "driver/event.h"
#include "stats/lock.h"

namespace spillway {

class Guard {
 public:
  using Report = std::function<void(const std::string& text)>;

  // At most this much waits to be given back: 5 % of the device, and no more than 1 GiB.
  static uint64_t default_quarantine_bytes(uint64_t device_bytes);

  // The arena must outlive it, and serve nobody else. `report` is called by any thread, with no lock held.
  Guard(std::shared_ptr<const Driver> driver, Arena& arena, uint64_t quarantine_bytes, Report report);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // These do what those of Arena do. `caller` is an address in the program's calling function, where traces
  // begin.
  Status allocate(size_t bytes, CUstream stream, const void* caller, void** out);
  Status free(void* pointer, const void* caller);
  Status record_stream(void* pointer, CUstream stream);
  // Before Arena::stream_destroyed. Blocks of the stream that live, or that it was recorded on, are freed
  // unchecked from then on; those in quarantine will be read behind its work.
  void stream_destroyed(CUstream stream);
  // Empties the quarantine first.
  Status trim();

  // The first tells whether the address lies in a block that is live or in quarantine here, red zones
  // included; the second whether it lies in one that was, as far as that is remembered.
  bool holds(const void* pointer) const;
  bool remembers(const void* pointer) const;

  // Waits for the device and checks every block, live or in quarantine. Errors: invalid_state (a stream is
  // being captured), driver.
  Status check();
  uint64_t findings() const { return findings_.load(std::memory_order_relaxed); }
  uint64_t quarantined_bytes() const;

 private:
  using State = GuardedBlock::State;
  // Holds what is read back of a block, and what was found.
  struct Inspection {
    uint64_t base = 0;
    uint64_t bytes = 0;
    uint64_t total_bytes = 0;
    uint64_t allocated = 0;  // the step that tells it from others at the same address
    bool poisoned = false;
    Damage before;
    Damage inside;
    Damage after;
  };

  GuardStep step(const void* caller);
  bool fill_new(const GuardedBlock& block);
  bool fits_quarantine(const GuardedBlock& block) const { return block.total_bytes <= quarantine_bytes_; }
  bool take_over(const GuardedBlock& block);
  bool order_after_uses(const GuardedBlock& block);
  Status quarantine(GuardedBlock& block);
  Status leave(GuardedBlock& block, bool quarantined);
  // If more than `above` bytes are in quarantine, the oldest go until no more than `down_to` are.
  Status drain(uint64_t above, uint64_t down_to);
  Status refuse(uint64_t va, const void* caller);
  GuardedBlock* find(uint64_t va) SPW_REQUIRES(mutex_);
  GuardedBlock* find_gone(uint64_t va) SPW_REQUIRES(mutex_);
  void forget_zones(const std::vector<GuardedBlock*>& blocks) SPW_REQUIRES(mutex_);

  // guard_check.cpp.
  Status open_readback() SPW_REQUIRES(check_mutex_);
  // Returns those of these blocks whose bytes can be read now, behind what their streams have enqueued.
  std::vector<Inspection> ordered(const std::vector<GuardedBlock*>& blocks) SPW_REQUIRES(check_mutex_);
  Status inspect(std::vector<Inspection>& inspections) SPW_REQUIRES(check_mutex_);
  void report_damage(const Inspection& inspection, GuardedBlock::Finding finding, const Damage& damage);

  static Inspection inspection_of(const GuardedBlock& block);
  void publish(const std::string& text);

  std::shared_ptr<const Driver> driver_;
  Arena& arena_;
  const uint64_t quarantine_bytes_;
  const Report report_;
  EventPool events_;
  LastRungs::Id rung_ = 0;
  std::atomic<uint64_t> findings_{0};
  std::atomic<uint64_t> steps_{0};

  BlockingMutex check_mutex_;
  std::unique_ptr<Readback> readback_ SPW_GUARDED_BY(check_mutex_);

  mutable BlockingMutex mutex_;
  std::map<uint64_t, GuardedBlock> blocks_ SPW_GUARDED_BY(mutex_);  // by base; live and in quarantine
  std::deque<GuardedBlock*> quarantine_ SPW_GUARDED_BY(mutex_);     // oldest first
  // Marks the fill at the free, for blocks of streams that only their own thread can reach.
  std::unordered_map<const GuardedBlock*, Event> poison_events_ SPW_GUARDED_BY(mutex_);
  uint64_t quarantined_bytes_ SPW_GUARDED_BY(mutex_) = 0;
  std::deque<GuardedBlock> gone_
      SPW_GUARDED_BY(mutex_);  // newest last; a bounded memory of what was given back
};

}  // namespace spillway
