// Memory without a stream, as cuMemAlloc and cuMemFree have it: whoever gets it may use it on any stream at
// once, and what is freed goes to another only after all work that any stream had at the time of the free.
//
// It comes from the arena's heap of a stream of its own. Where that heap took memory behind a wait on the
// device, the host waits for it before the memory is handed out.
//
// Frees gather in an *epoch* and cost no driver call. An epoch that is large enough is closed: an event is
// recorded on each stream that has work, and always one for all streams that the legacy default stream waits
// for (the per-thread default streams among them: CUDA's rules for the legacy stream), one for each other.
// When the events are reached, the epoch's blocks are free. A stream that is destroyed leaves an event
// behind. While a stream captures, no epoch can be closed; its frees stay where they are.
//
// Thread-safe. Locks: its own before the arena's; no lock is held while the host waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "allocator/arena.h"
#include "allocator/known_streams.h"

namespace spillway {

struct LegacyPoolStats {
  uint64_t frees = 0;
  uint64_t epochs = 0;         // closed
  uint64_t events = 0;         // recorded
  uint64_t waits = 0;          // of the host
  uint64_t pending_bytes = 0;  // freed by the program, perhaps in use yet
};

class LegacyPool {
 public:
  // An epoch gathers so much before it is closed without need.
  static constexpr uint64_t kEpochBytes = uint64_t{32} << 20;
  static constexpr size_t kEpochBlocks = 256;

  // Both must outlive it; the arena's context must be alive. Errors: driver.
  static Result<std::unique_ptr<LegacyPool>> create(std::shared_ptr<const Driver> driver, Arena& arena,
                                                    KnownStreams& streams);
  // The arena must be alive. Pending blocks stay pending.
  ~LegacyPool();
  LegacyPool(const LegacyPool&) = delete;
  LegacyPool& operator=(const LegacyPool&) = delete;

  // Errors: those of Arena::allocate.
  Status allocate(size_t bytes, void** out);
  // A block of the arena, whoever asked for it. Errors: invalid_pointer.
  Status free(void* pointer);
  // To be called before the stream is destroyed, whatever its flags. It is known no more then: no thread that
  // closes an epoch asks about a stream that is gone.
  void stream_destroyed(CUstream stream);
  // Waits until all that was freed is free; answers how many bytes that was. 0 while a stream captures.
  uint64_t flush();

  // Tells whether the heap of this stream is the one that blocks come from.
  bool has_heap(uint64_t stream) const { return stream == reinterpret_cast<uint64_t>(own_); }
  LegacyPoolStats stats() const;
  uint64_t pending_bytes() const { return pending_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Epoch {
    std::vector<void*> blocks;
    uint64_t bytes = 0;
    std::vector<std::shared_ptr<Event>> events;
  };

  LegacyPool(std::shared_ptr<const Driver> driver, Arena& arena, KnownStreams& streams)
      : driver_(std::move(driver)), arena_(arena), streams_(streams) {}

  // In the arena's context. False where a stream captures.
  bool close_epoch() SPW_REQUIRES(mutex_);
  // The event for what `stream` has to do; null where it is idle. *known: that could be told.
  std::shared_ptr<Event> mark(CUstream stream, bool* known) SPW_REQUIRES(mutex_);
  // Epochs whose events are reached, oldest first.
  std::vector<Epoch> take_complete() SPW_REQUIRES(mutex_);
  uint64_t release(const std::vector<Epoch>& epochs);
  // Checks whether what the heap waited for on the device is done; waits for it if not.
  Status settle();

  const std::shared_ptr<const Driver> driver_;
  Arena& arena_;
  KnownStreams& streams_;
  CUstream own_ = nullptr;
  LastRungs::Id rung_ = 0;

  mutable BlockingMutex mutex_;
  Epoch open_ SPW_GUARDED_BY(mutex_);
  std::deque<Epoch> closed_ SPW_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Event>> orphans_ SPW_GUARDED_BY(mutex_);  // of destroyed streams
  LegacyPoolStats stats_ SPW_GUARDED_BY(mutex_);
  std::atomic<uint64_t> pending_bytes_{0};
  std::atomic<uint64_t> settled_{0};  // the arena's waits on the device, as of the last settle()
  std::atomic<uint64_t> host_waits_{0};
};

}  // namespace spillway
