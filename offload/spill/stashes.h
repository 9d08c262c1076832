// Bytes of single tensors that are kept outside of the device for a while: copied out behind the work that
// made them, copied back before the work that needs them, both without a wait of the host where host memory
// has room. Those that are for the disk are written down by a thread, which also reads them again.
//
// Unlike regions they have no address of their own: the device's memory is the caller's, before and after.
// Thread-safe. The caller's context must be current.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>

#include "offload/spill/block_mover.h"
#include "stats/lock.h"

namespace spillway {

struct StashCounters {
  uint64_t stashes = 0;
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;
  uint64_t puts = 0;
  uint64_t gets = 0;
  uint64_t late_gets = 0;
  uint64_t refused_puts = 0;
  uint64_t out_bytes = 0;
  uint64_t in_bytes = 0;
};

class Stashes {
 public:
  struct Stash;
  enum class To : uint8_t { kHost, kDisk };

  Stashes(CUcontext context, CopyStreams& copy_streams, PinnedArena& pinned, DiskTier& disk,
          Codec codec = Codec::kNone)
      : context_(context),
        copies_(copy_streams),
        mover_(copy_streams, pinned, disk),
        pinned_(pinned),
        disk_(disk),
        packer_(codec) {}
  // Waits for what its thread is doing. No stash may be in use.
  ~Stashes();
  Stashes(const Stashes&) = delete;
  Stashes& operator=(const Stashes&) = delete;

  // See spw_stash_put, and so on. The stash is owned by the caller, for free().
  Result<Stash*> put(CUdeviceptr va, uint64_t bytes, CUstream stream, To to);
  Status begin_get(Stash& stash, CUdeviceptr va, CUstream stream);
  Status finish_get(Stash& stash, CUstream stream, bool* late);
  // No copy is enqueued for it afterwards.
  void free(Stash* stash);

  // Those that were freed give their host memory back, where their copies are done by now.
  void reclaim();
  void give_up_staging() { mover_.give_up_staging(); }
  // Counts without those.
  StashCounters counters();

 private:
  Status start_thread() SPW_REQUIRES(mutex_);
  void destroy_finished() SPW_REQUIRES(mutex_);
  // Errors of put() that nothing was done for.
  Status check_put(uint64_t bytes, CUstream stream, To to) const;
  // Enqueues the copy to host memory. Where that fails, the host memory is no longer the stash's.
  Status copy_out(Stash& stash, CUdeviceptr va, CUstream stream) SPW_REQUIRES(mutex_);
  // Where that cannot be, it stays in host memory.
  void queue_write(Stash& stash) SPW_REQUIRES(mutex_);
  Status copy_back(Stash& stash) SPW_REQUIRES(mutex_);
  void on_copied_in(Stash& stash, Event copied) SPW_REQUIRES(mutex_);
  Result<Event> mark(CUstream stream) SPW_REQUIRES(mutex_);

  Result<void*> find_slot(const SpillBlock& block) SPW_EXCLUDES(mutex_);

  // Waits until the thread has ended.
  void stop();
  void work() SPW_EXCLUDES(mutex_);
  // These give the mutex up while they move bytes.
  void write_down(Stash& stash) SPW_REQUIRES(mutex_);
  void read_back(Stash& stash) SPW_REQUIRES(mutex_);
  // Where no host memory can be pinned for all of it: through what there is, and it stays on the disk.
  Status stream_back(Stash& stash) SPW_REQUIRES(mutex_);
  void destroy(Stash& stash) SPW_REQUIRES(mutex_);

  const CUcontext context_;
  CopyStreams& copies_;
  BlockMover mover_;
  PinnedArena& pinned_;
  DiskTier& disk_;
  Packer packer_;  // of all

  BlockingMutex mutex_;
  Condition changed_;
  std::deque<Stash*> reads_ SPW_GUARDED_BY(mutex_);  // before writes
  std::deque<Stash*> writes_ SPW_GUARDED_BY(mutex_);
  std::list<Stash*> freed_ SPW_GUARDED_BY(mutex_);  // whose copies are still under way
  StashCounters counters_ SPW_GUARDED_BY(mutex_);
  bool is_working_ SPW_GUARDED_BY(mutex_) = false;  // a thread is, which ends when it has nothing to do
  bool is_stopping_ SPW_GUARDED_BY(mutex_) = false;
};

}  // namespace spillway
