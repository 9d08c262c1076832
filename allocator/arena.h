// An arena: all the memory of one device. Requests go to the heap of their stream (and of the pool that is
// open for it); what a heap cannot serve by itself climbs the ladder (ladder.cpp): views over its own free
// pages, new pages while the limit leaves room, other streams' free pages behind a device-side wait, waits on
// the host, what others can do for it (last_rungs.h), and at last a clear error.
//
// Thread-safe. A hit takes one lock, the heap's. Locks are taken in this order: arena, heaps (more than one
// only under the arena's), registry of heaps. No lock is held while the host waits for the device.
//
// Sizes are bytes. A block begins at a multiple of 512 B. Streams are those of the arena's context, any other
// is refused; the caller's thread needs no current context. Errors leave everything as it was.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/arena_parts.h"
#include "allocator/borrowing.h"
#include "allocator/device_waits.h"
#include "allocator/heap.h"
#include "allocator/ladder.h"
#include "allocator/last_rungs.h"
#include "allocator/mapped_range.h"
#include "allocator/moved_pool.h"
#include "allocator/open_pools.h"
#include "allocator/pool_mover.h"
#include "allocator/segment_source.h"
#include "allocator/shared_blocks.h"
#include "allocator/sources.h"
#include "allocator/stream_heaps.h"
#include "allocator/trimming.h"
#include "allocator/view_budget.h"
#include "driver/driver.h"
#include "stats/device_stats.h"
#include "stats/segment_row.h"
#include "stats/slow_path_log.h"

namespace spillway {

// The pages around a block, as another process maps them: in a row, extents whole.
struct PageSpan {
  uint64_t offset = 0;    // of the block in the first of them, in bytes
  uint32_t count = 0;     // of pages
  uint64_t identity = 0;  // the same for the same pages in the same order, for any others another
};

// Says what one descriptor shows of them.
struct PagePiece {
  int descriptor = -1;  // the caller's
  uint32_t pages = 0;
};

class Arena {
 public:
  // Errors: invalid_argument (no such device), invalid_state (it has no context yet), unsupported, driver.
  static Result<std::unique_ptr<Arena>> create(std::shared_ptr<const Driver> driver, int device,
                                               const ArenaOptions& options) SPW_NO_THREAD_SAFETY_ANALYSIS;
  // Waits for the device. What may still be in use all the same stays mapped.
  ~Arena();

  // bytes 0: *out is null, and ok. Errors: out_of_memory, invalid_argument (an absurd size), driver.
  Status allocate(size_t bytes, CUstream stream, void** out);
  // Does the same with `padding` bytes more than the program asked for, which requested_bytes does not count.
  Status allocate_padded(size_t bytes, size_t padding, CUstream stream, void** out);
  // Null is ok. The block may be of any arena. Errors: invalid_pointer (foreign, already freed, inside a
  // block).
  static Status free(void* pointer);
  // The block is also used on `stream`: after its free it waits for the work enqueued there until then.
  static Status record_stream(void* pointer, CUstream stream);
  // A free in two parts: from quarantine() on, the block counts as freed by the program and pending, and
  // nobody gets its memory; release_quarantined() frees it as free() would have. Errors: invalid_pointer.
  // *bytes (may be null) is what it takes of the device.
  static Status quarantine(void* pointer, uint64_t* bytes = nullptr);
  static Status release_quarantined(void* pointer);
  // Frees as free() does, by work of `stream`, a stream of the arena's context: what is enqueued there so far
  // may still use the block. Errors: as free() and record_stream().
  static Status free_on(void* pointer, CUstream stream);
  // Returns the device of the arena whose block may begin at the pointer, without looking closer; -1 where
  // none can.
  static int device_of(const void* pointer);
  // Returns what is asked when a request has nothing else left to try.
  LastRungs& last_rungs() { return parts_.last_rungs; }

  // The program is about to destroy the stream and enqueues nothing on it any more. Its memory serves others
  // from then on. Streams that hold none are ok.
  Status stream_destroyed(CUstream stream) { return heaps_.stream_destroyed(stream); }
  // The program may destroy the stream without a word. It is named to the driver from now on only where the
  // program just has, so that its memory serves other streams after a wait of the host alone.
  void expect_unseen_end(CUstream stream) { heaps_.expect_unseen_end(stream); }

  // Makes all of the arena's memory, present and future, usable from device `peer`. Again is ok. Errors:
  // invalid_argument (no such device), unsupported (no peer, a MIG instance), invalid_state (the peer has no
  // context, without VMM), driver; nothing has changed then, or the text says what.
  Status enable_peer(int peer);

  // A block that can be given to another process: at least `bytes` of an extent of its own, a handle of 32
  // MiB and more. Freed as any other. Errors: as allocate(), and unsupported (a MIG instance, no VMM),
  // invalid_state (the stream is being captured).
  Status allocate_shareable(size_t bytes, CUstream stream, void** out);
  // For an address in such a block, of whichever arena. Errors: invalid_pointer, driver.
  static Result<Exported> export_block(const void* pointer);
  // The pages around an ordinary block that the program holds. Errors: invalid_pointer (none begins there, a
  // placed or shareable one), unsupported.
  Result<PageSpan> pages_around(const void* pointer);
  // These pages from number `first` on, at which a piece begins, in up to `most` pieces. Errors: those above,
  // invalid_state (the block has other pages by now), driver.
  Status export_pages(const void* pointer, uint64_t identity, uint32_t first, uint32_t most,
                      std::vector<PagePiece>& pieces);
  // Brings memory of another process in, in a row: begun, one piece after another, then mapped for this
  // device and its peers at *out. Closed like import_block's. Errors: unsupported, driver.
  Result<MappedRange> begin_import(uint64_t bytes);
  Status import_piece(MappedRange& range, int descriptor, uint64_t bytes);
  Status finish_import(MappedRange range, void** out);

  // Another process's block, mapped here for this device and its peers. Errors: invalid_argument,
  // unsupported, driver.
  Status import_block(int descriptor, uint64_t bytes, void** out);
  // Waits for the device first. Of whichever arena. Errors: invalid_pointer, invalid_state (a stream is being
  // captured, or may be: a pool is open), driver.
  static Status close_import(void* pointer);

  // Until end_pool(), requests on streams for which `filter` answers true are served from pool `id`, the
  // latest pool first. What a pool holds is used by nobody else until release_pool(). {0, 0} is the default
  // pool and cannot be opened. When end_pool() returns, the filter is not running and will not be called
  // again, but for the call that end_pool() is called from. An open pool may be one for a capture, unless its
  // filter accepted a stream that is not captured and would accept any other: nothing waits for the whole
  // context meanwhile. `by_owner`: by whoever made the pool movable. `is_last`: behind all others, whenever
  // they were opened; nobody captures because of it.
  Status begin_pool(PoolId id, std::function<bool(CUstream)> filter, bool by_owner = false,
                    bool is_last = false);
  Status end_pool(PoolId id);
  Status release_pool(PoolId id);
  // From now on a pool's memory comes from this source, in segments, instead of from the device. What is free
  // of them goes back after the pool's release, in trims. Errors: invalid_state (no such pool, or it had
  // memory).
  Status set_pool_source(PoolId id, SegmentSource source) { return sources_.set(id, std::move(source)); }
  // Each block of a pool with a source has a segment of its own from now on; other pools stay as they are.
  // Errors: invalid_state (no such pool, or one that has served blocks of its source already).
  Status set_pool_no_split(PoolId id) { return sources_.set_no_split(id); }
  // From now on what a pool holds can leave the device. Its memory is that of all pools, but that it follows
  // its streams as the default pool's does: what is free of it serves others behind waits, and goes back in
  // trims, unless a graph was captured over it. Errors: invalid_state (no such pool, or it had memory),
  // unsupported (no virtual memory management).
  Status make_pool_movable(PoolId id, GiveUpCopies give_up) {
    return mover_.make_movable(id, std::move(give_up));
  }
  // Moves such a pool out of the device, once all of the context's work is done, and back. What is free of it
  // goes back to the driver first; pages with live bytes are copied. Until it is back it counts for nothing,
  // cannot be opened, and its blocks can be freed but not used. Back, it needs room within the limit, for
  // which others give what they can. Errors: those of `copy`; invalid_state (no such pool or not movable,
  // open, moving, out already or not out; a stream is being captured, or may be: a pool is open),
  // out_of_memory, driver; everything is where it was then.
  Status move_pool_out(PoolId id, const CopyOut& copy) { return mover_.move_out(id, copy); }
  Status bring_pool_back(PoolId id, const CopyBack& copy) { return mover_.bring_back(id, copy); }
  // Copies of what was freed while it was away; answers their bytes. Part of every trim.
  uint64_t give_up_freed() { return mover_.give_up_freed(); }
  // These return, for a movable pool: whether its memory is off the device; where its pages are; what it
  // holds on the device; what the driver did not let go of while it is away; the blocks in the program's
  // hands that lie in `range`.
  bool pool_is_away(PoolId id) const { return mover_.is_away(id); }
  std::vector<PageRange> pool_ranges(PoolId id) const { return mover_.ranges(id); }
  uint64_t pool_held_bytes(PoolId id) const;
  uint64_t pool_stuck_bytes(PoolId id) const { return mover_.stuck_bytes(id); }
  std::vector<BlockRow> pool_blocks_in(PoolId id, const PageRange& range) const {
    return mover_.blocks_in(id, range);
  }
  // Returns the devices that may use the arena's memory: its own and its peers.
  std::vector<int> devices() const;
  // A claim on a pool's memory like begin_pool's, without requests served from it. Errors: invalid_argument.
  Status retain_pool(PoolId id);
  uint64_t pool_claims(PoolId id) const;
  // Sets whether what is free in the pool serves others where a request would fail otherwise, until the
  // pool's release. What serves them leaves the pool; of a pool with a source it serves requests on the same
  // stream, and returns to the pool. Errors: invalid_state (no such pool).
  Status set_pool_lends(PoolId id, bool lends);

  // The blocks of a pool that are in the program's hands now. Errors: invalid_state (no such pool).
  Result<PoolState> checkpoint_pool(PoolId id);
  // Frees every block of the pool that the program has and allocates those of the state again, each at its
  // address; what lies in both is not touched. No wait, nothing mapped or unmapped; graphs over the pool's
  // memory may be in replay. `changes`: all that was freed, then all that was allocated. Errors:
  // invalid_state (the pool was released since, or is another arena's; memory of the state was freed and
  // another stream still uses it).
  Status restore_pool(const PoolState& state, std::vector<RestoredBlock>* changes);

  // Gives every page without live bytes back to the driver, after waiting for the device. Errors:
  // invalid_state (a stream is being captured), driver.
  Status trim() { return trimming_.trim(); }
  // Waits likewise, and gives back only what exceeds the limit: what is free serves everyone without a wait.
  // Without virtual memory management it is a trim.
  Status settle() { return trimming_.settle(); }
  // Trims for a while: take_back() undoes what the last one that gave pages back did. It takes each
  // from the driver again, at its address and for the stream that had it, as far as the soft limit and the
  // device have room, waits for nothing and asks nobody else. Answers how many bytes it took.
  Status trim_for_now() { return trimming_.trim_for_now(); }
  uint64_t take_back() { return trimming_.take_back(); }
  // Trims, as trim() does, what one pool has free, once it is released or where it is movable; nothing is
  // waited for where it has no memory.
  Status trim_pool(PoolId id) { return trimming_.trim_pool(id); }
  // Frees that wait for other streams are completed where those are done. Waits for nothing.
  void complete_finished_frees();
  // Tells whether no stream that the arena knows has work now and none captures; asks the driver, without
  // waiting. Takes the locks of heaps, so it is not for while the program allocates.
  bool is_quiet();

  // A limit below what is held refuses new pages, and gives back what is free beyond it: before each
  // request, and in keep_limit(), until it is kept. Not while a stream is captured.
  Status set_limit(uint64_t bytes);
  // Below it memory is taken from the driver freely; above, only for what the arena's own memory does not
  // serve behind waits on the device.
  Status set_soft_limit(uint64_t bytes);
  // What was bought beyond a lower one goes in the next trim.
  Status set_slack(double percent);
  // Sets the reserve, as ArenaOptions::reserve_bytes does, with the same effect as a lower or higher limit.
  Status set_reserve(uint64_t bytes);
  // Sets the headroom, as ArenaOptions::headroom_bytes does; what is held already stays.
  Status set_headroom(uint64_t bytes);
  uint64_t headroom_bytes() const { return parts_.store->headroom_bytes(); }
  // Where more is held than may be: gives back what need not be, behind a wait for the device.
  void keep_limit() { trimming_.keep_limit(); }
  // Returns what may be held now: the lesser of the limit and the device without the reserve.
  uint64_t most_reserved_bytes() const;
  uint64_t limit() const { return parts_.limit.load(std::memory_order_relaxed); }

  int device() const { return parts_.device; }
  CUcontext context() const { return parts_.context.get(); }
  bool is_in_primary_context() const { return parts_.context.is_primary(); }
  // Returns how often a stream was told to wait for another, for its memory; never reset.
  uint64_t stream_waits() const { return parts_.counters.stream_waits(); }
  // Returns the streams that memory was asked for on, and that are not known to be gone.
  std::vector<CUstream> streams() const { return heaps_.streams(); }
  DeviceStats stats() const;
  // The largest request that is served without new memory from the driver, on the stream and in the pool that
  // have most for it. Other streams' whole pages count, where they may be borrowed; what waits for a stream
  // to finish with it does not.
  uint64_t largest_free_bytes() const;
  // Returns the bytes of the device that the driver calls free; nothing where it does not answer.
  std::optional<uint64_t> device_free_bytes() const;
  // The latest requests that own memory and new pages did not serve, oldest first.
  std::vector<SlowPath> recent_slow_paths() const { return slow_paths_.list(); }
  // Sums over all heaps. For tests.
  Predictor::Looks looks() const;
  // The bytes that each private pool holds. One that was released holds none; it is listed until both resets.
  std::vector<std::pair<PoolId, spw_stat>> pool_bytes() const;
  void reset_peaks();
  void reset_accumulated();
  // Re-derives every counter by walking everything, and compares. Errors: internal, with the first
  // difference.
  Status validate() const;
  std::vector<SegmentRow> segments() const;
  // Finds a block of whichever arena. Errors: invalid_pointer.
  static Result<FoundBlock> find_block(const void* pointer);
  // Keeps a number for the block that begins at `pointer`, which the caller was just given, until its end:
  // where it was allocated, for the rows of segments(). Blocks of slabs and those in host memory keep none.
  static void note_stack(const void* pointer, uint32_t stack);
  // The block in the program's hands that `pointer` lies in, at its beginning or behind it; looks at
  // `most_bytes` of addresses before it, at the ranges in them alone. Blocks in host memory and shareable
  // ones are not found. Errors: invalid_pointer.
  static Result<FoundBlock> find_block_around(const void* pointer, uint64_t most_bytes);

 private:
  Arena(std::shared_ptr<const Driver> driver, int device, const ArenaOptions& options);

  // See ArenaOptions::careful. With no lock held.
  void check_now_and_then();
  // `bytes` are found room for, `requested_bytes` counted as the program's.
  Status serve(uint64_t bytes, uint64_t requested_bytes, CUstream stream, void** out);
  // For a request of `bytes` that the heap's first guess did not serve, with no lock held. Kept out of the
  // hit's code, which it makes slower by a tenth otherwise.
  [[gnu::noinline]] Status serve_miss(Heap& heap, const Request& request, uint64_t bytes,
                                      uint64_t requested_bytes, void** out);
  static Status make_live(Heap& heap, CachedRange& range, const Request& request, uint64_t requested_bytes,
                          void** out) SPW_REQUIRES(heap.mutex);
  Status allocate_large(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out);
  Status allocate_small(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out);
  Status out_of_memory(uint64_t requested_bytes, const SlowPath& tried = {});
  std::string oom_text(uint64_t requested_bytes, const SlowPath& tried) const;

  // Both serve what the address map does not know: a shared block, a placed one, or nobody's.
  static Status free_unknown(uint64_t va);
  static Status record_stream_unknown(uint64_t va, CUstream stream);

  // arena_pools.cpp. One claim more on the pool, which is made if there is none by that id.
  void claim(PoolId id) SPW_REQUIRES(kArenaLock);
  // Holds what is left to do, which may wait, where the last claim on a pool is gone.
  struct Released {
    bool was_sourced = false;
    std::optional<LastRungs::Id> lent_as;
  };
  Result<std::optional<Released>> release_claim(PoolId id);
  // Lets others have what is free in the pool, until it is opened again; answers how many bytes that is.
  uint64_t lend_pool(PoolId id);
  // Makes room on the device for so many bytes, as far as others give it. Errors: out_of_memory.
  Status make_room(uint64_t bytes);

  // arena_shared.cpp.
  Status check_shareable() const;
  Status list_units_of(const void* pointer, PageSpan* span, std::vector<PageRun>& units)
      SPW_REQUIRES(kArenaLock);
  Status free_shared(uint64_t va);
  Status record_stream_shared(uint64_t va, CUstream stream);
  Status close_own_import(uint64_t va);

  ArenaParts parts_;
  OpenPools open_pools_{parts_};
  StreamHeaps heaps_{parts_, open_pools_};
  DeviceWaits waits_{parts_, open_pools_, heaps_};
  PoolMover mover_;
  Sources sources_{parts_, heaps_};
  ViewBudget views_{parts_, heaps_, waits_};
  Trimming trimming_{parts_, heaps_, waits_, sources_, mover_, views_};
  Borrowing borrowing_{parts_, heaps_};
  Ladder ladder_{parts_, heaps_, waits_, sources_, trimming_, borrowing_, views_};
  SlowPathLog slow_paths_;
  std::atomic<uint64_t> misses_{0};  // where the arena is careful
  std::atomic<bool> is_broken_{false};
  std::atomic<uint32_t> released_pools_{0};
};

}  // namespace spillway
