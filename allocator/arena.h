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
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "allocator/heap.h"
#include "allocator/last_rungs.h"
#include "allocator/mapped_range.h"
#include "allocator/moved_pool.h"
#include "allocator/mutex.h"
#include "allocator/page_store.h"
#include "allocator/segment_source.h"
#include "allocator/shared_blocks.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "stats/climb_log.h"
#include "stats/counters.h"
#include "stats/device_stats.h"
#include "stats/segment_row.h"

namespace spillway {

// Live mappings beyond which views are retired before another is mapped: below 200,000, where drivers' limits
// are far and their tables small.
constexpr uint32_t kMostMappings = 190'000;

// The pages around a block, as another process maps them: in a row.
struct PageSpan {
  uint64_t offset = 0;    // of the block in the first page, in bytes
  uint32_t count = 0;     // of pages
  uint64_t identity = 0;  // the same for the same pages in the same order, for any others another
};

struct ArenaOptions {
  uint64_t limit_bytes = UINT64_MAX;       // of physical memory held from the driver
  uint64_t soft_limit_bytes = UINT64_MAX;  // exceeded only where nothing else serves without a host wait
  uint64_t reserve_bytes = 0;              // left to others on the device, whatever the limit
  bool use_vmm = true;                     // false: cuMemAlloc segments
  bool exportable = true;                  // where the device can: blocks may be shown to other processes
  bool share_edges = true;                 // false: blocks of a page and more share no page
  uint64_t small_limit_bytes = 16384;      // requests up to this go to slabs; at most kLargestSmallBytes
  uint32_t most_mappings = kMostMappings;
  bool check_streams = false;  // whether each request on a stream that the program made asks which one it is
  Tracer* tracer = nullptr;    // records what happens; outlives the arena
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
  // The same with `padding` bytes more than the program asked for, which requested_bytes does not count.
  Status allocate_padded(size_t bytes, size_t padding, CUstream stream, void** out);
  // Null is ok. Of whichever arena the block is. Errors: invalid_pointer (foreign, already freed, inside a
  // block).
  static Status free(void* pointer);
  // The block is also used on `stream`: after its free it waits for the work enqueued there until then.
  static Status record_stream(void* pointer, CUstream stream);
  // A free in two parts: from withhold() on, the block counts as freed by the program and pending, and nobody
  // gets its memory; release_withheld() frees it as free() would have. Errors: invalid_pointer.
  // *bytes (may be null) is what it takes of the device.
  static Status withhold(void* pointer, uint64_t* bytes = nullptr);
  static Status release_withheld(void* pointer);
  // As free() by work of `stream`, a stream of the arena's context: what is enqueued there so far may still
  // use the block. Errors: as free() and record_stream().
  static Status free_on(void* pointer, CUstream stream);
  // Of the arena whose block may begin at the pointer, without looking closer; -1 where none can.
  static int device_of(const void* pointer);
  // What is asked when a request has nothing else left to try.
  LastRungs& last_rungs() { return last_rungs_; }

  // The program is about to destroy the stream and enqueues nothing on it any more. Its memory serves others
  // from then on. Streams that hold none are ok.
  Status stream_destroyed(CUstream stream);

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
  // Descriptors, the caller's, for `count` of these pages from number `first` on. Errors: those above,
  // invalid_state (the block has other pages by now), driver.
  Status export_pages(const void* pointer, uint64_t identity, uint32_t first, uint32_t count,
                      std::vector<int>& descriptors);
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
  Status set_pool_source(PoolId id, SegmentSource source);
  // Each block of a pool with a source has a segment of its own from now on; other pools stay as they are.
  // Errors: invalid_state (no such pool, or one that has served blocks of its source already).
  Status set_pool_no_split(PoolId id);
  // From now on what a pool holds can leave the device. Its memory is that of all pools, but that it follows
  // its streams as the default pool's does: what is free of it serves others behind waits, and goes back in
  // trims, unless a graph was captured over it. Errors: invalid_state (no such pool, or it had memory),
  // unsupported (no virtual memory management).
  Status make_pool_movable(PoolId id, GiveUpCopies give_up);
  // Moves such a pool out of the device, once all of the context's work is done, and back. What is free of it
  // goes back to the driver first; pages with live bytes are copied. Until it is back it counts for nothing,
  // cannot be opened, and its blocks can be freed but not used. Back, it needs room within the limit, for
  // which others give what they can. Errors: those of `copy`; invalid_state (no such pool or not movable,
  // open, moving, out already or not out; a stream is being captured, or may be: a pool is open),
  // out_of_memory, driver; everything is where it was then.
  Status move_pool_out(PoolId id, const CopyOut& copy);
  Status bring_pool_back(PoolId id, const CopyBack& copy);
  // Copies of what was freed while it was away; answers their bytes. Part of every trim.
  uint64_t give_up_freed();
  // Of a movable pool: where its pages are; what it holds on the device; what the driver did not let go of
  // while it is away; the blocks in the program's hands that lie in `range`.
  std::vector<PageRange> pool_ranges(PoolId id) const;
  uint64_t pool_held_bytes(PoolId id) const;
  uint64_t pool_stuck_bytes(PoolId id) const;
  std::vector<BlockRow> pool_blocks_in(PoolId id, const PageRange& range) const;
  // Those that may use the arena's memory: its own and its peers.
  std::vector<int> devices() const;
  // A claim on a pool's memory like begin_pool's, without requests served from it. Errors: invalid_argument.
  Status retain_pool(PoolId id);
  uint64_t pool_claims(PoolId id) const;
  // Whether what is free in the pool serves others where a request would fail otherwise. Until its release.
  // It leaves the pool; of a pool with a source it serves requests on the same stream, and returns to the
  // pool. Errors: invalid_state (no such pool).
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
  Status trim();
  // The same for a while: take_back() undoes what the last one that gave pages back did. It takes each from
  // the driver again, at its address and for the stream that had it, as far as the soft limit and the device
  // have room, waits for nothing and asks nobody else. Answers how many bytes it took.
  Status trim_for_now();
  uint64_t take_back();
  // As trim(), of what one pool has free, once it is released or where it is movable; nothing is waited for
  // where it has no memory.
  Status trim_pool(PoolId id);
  // Frees that wait for other streams are completed where those are done. Waits for nothing.
  void complete_finished_frees();
  // Whether no stream that the arena knows has work now and none captures: asked of the driver, without
  // waiting. Takes the locks of heaps, so not for while the program allocates.
  bool is_quiet();

  // A limit below what is held refuses new pages, and gives back what is vacant beyond it: before each
  // request, and in keep_limit(), until it is kept. Not while a stream is captured.
  Status set_limit(uint64_t bytes);
  // Below it memory is taken from the driver freely; above, only for what the arena's own memory does not
  // serve behind waits on the device.
  Status set_soft_limit(uint64_t bytes);
  // As ArenaOptions::reserve_bytes, with the same effect as a lower or higher limit.
  Status set_reserve(uint64_t bytes);
  // Where more is held than may be: gives back what need not be, behind a wait for the device.
  void keep_limit();
  // What may be held now: the least of limit, device without reserve.
  uint64_t most_reserved_bytes() const;
  uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }

  int device() const { return device_; }
  CUcontext context() const { return context_.get(); }
  bool is_in_primary_context() const { return context_.is_primary(); }
  // How often a stream was told to wait for another, for its memory; never reset.
  uint64_t stream_waits() const { return counters_.stream_waits(); }
  // Those that memory was asked for on, and that are not known to be gone.
  std::vector<CUstream> streams() const;
  DeviceStats stats() const;
  // The largest request that is served without new memory from the driver, on the stream and in the pool that
  // have most for it. Other streams' whole pages count, where they may be borrowed; what waits for a stream
  // to finish with it does not.
  uint64_t largest_free_bytes() const;
  // What the driver calls free of the device; none where it does not answer.
  std::optional<uint64_t> device_free_bytes() const;
  // The latest requests that own memory and new pages did not serve, oldest first.
  std::vector<Climb> recent_climbs() const { return climbs_.list(); }
  // Of all heaps. For tests.
  Heap::Looks looks() const;
  // The bytes that each private pool holds. One that was released holds none; it is listed until both resets.
  std::vector<std::pair<PoolId, spw_stat>> pool_bytes() const;
  void reset_peaks();
  void reset_accumulated();
  // Re-derives every counter by walking everything, and compares. Errors: internal, with the first
  // difference.
  Status validate() const;
  std::vector<SegmentRow> segments() const;
  // Of whichever arena. Errors: invalid_pointer.
  static Result<FoundBlock> find_block(const void* pointer);
  // The block in the program's hands that `pointer` lies in, at its beginning or behind it; looks at
  // `most_bytes` of addresses before it, at the places in them alone. Blocks in host memory and shareable
  // ones are not found. Errors: invalid_pointer.
  static Result<FoundBlock> find_block_around(const void* pointer, uint64_t most_bytes);

 private:
  Arena(std::shared_ptr<const Driver> driver, int device, const ArenaOptions& options);

  // By the stream of a request that the pool's filter accepted, on the thread that asked. With no lock held.
  void note_use(OpenPool& pool, CUstream stream);
  OpenPool::Use use_of(const OpenPool& pool, CUstream stream);

  // The heap that this thread used last, if that is the one; or null.
  Heap* remembered_heap(CUstream stream) const;
  // arena_streams.cpp.
  Result<Heap*> find_heap(CUstream stream);
  // The heap that serves the stream from now on: an old one that can, or a new one.
  Result<Heap*> open_heap(const HeapKey& wanted);
  // The next two answer null if there is none. A heap of the stream whose pool was
  // released and whose memory nothing uses any more: programs that capture and release graphs without end
  // would else make heaps without end.
  Heap* reuse_released(const HeapKey& key) SPW_REQUIRES(kArenaLock);
  // One whose stream is gone, and over.
  Heap* take_over_closed(const HeapKey& key) SPW_REQUIRES(kArenaLock);
  bool may_take_over(Heap& heap, PoolId pool) SPW_REQUIRES(kArenaLock, heap.mutex);
  // Whether the heap's stream is gone, in which case the heap is closed. With its lock held.
  bool has_gone(Heap& heap) SPW_REQUIRES(heap.mutex);
  void close_heap(Heap& heap, bool covered) SPW_REQUIRES(heap.mutex);
  // Closes the heaps whose stream can be known to be gone: another has its handle, or its thread has ended.
  void close_unreachable(const HeapKey& opened);
  // arena_pools.cpp.
  // The pool by that id, whose memory somebody may have no claim on any more; null if there is none.
  Pool* find_pool(PoolId id) const SPW_REQUIRES(kArenaLock);
  // One that somebody has a claim on.
  Pool* claimed(PoolId id) const SPW_REQUIRES(kArenaLock);
  void claim(PoolId id) SPW_REQUIRES(kArenaLock);
  std::vector<Heap*> heaps_of(PoolId id) const;
  bool is_open(PoolId id) const;
  bool pool_for(CUstream stream, PoolId* id);
  // Drops pools of which nothing is left to be remembered.
  void forget_pools() SPW_REQUIRES(kArenaLock);
  // What is left to do, which may wait, where the last claim on a pool is gone.
  struct Released {
    bool was_sourced = false;
    std::optional<LastRungs::Id> lent_as;
  };
  Result<std::optional<Released>> release_claim(PoolId id);
  // Lets others have what is free in the pool, until it is opened again; answers how many bytes that is.
  uint64_t lend_pool(PoolId id);
  // The same where the pool has a source of its own: a place in what its heap of the same stream has free,
  // which is the pool's again after its free.
  TakenPlace take_lent(Heap& heap, const Request& request);
  // arena_sources.cpp.
  PageStore& store_of(PoolId pool) const SPW_REQUIRES(kArenaLock);
  BlockUnit unit_of(PoolId pool) const SPW_REQUIRES(kArenaLock);
  uint64_t sourced_bytes() const SPW_REQUIRES(kArenaLock);
  // arena_moves.cpp. Null: the pool's memory stays where it is.
  MovablePool* movable(PoolId id) const SPW_REQUIRES(kArenaLock);
  // Errors: invalid_state (the pool is out of the device, or on its way).
  Status check_present(PoolId id) const SPW_REQUIRES(kArenaLock);
  // How the heap's memory is used, by its pool, which somebody has a claim on or not. With its lock, too.
  void set_use_of(Heap& heap) const SPW_REQUIRES(kArenaLock, heap.mutex);
  // A stream is served from a movable pool: is it being captured? With no lock held.
  void note_capture(PoolId id, CUstream stream, bool by_owner);
  // *owners: the pool's heaps.
  Result<Pool*> begin_move(PoolId id, bool out, std::vector<Heap*>* owners);
  Status wait_before_move();
  // What the device must have room for comes free, as far as others give it. Errors: out_of_memory.
  Status make_room(uint64_t bytes);
  Status put_back(const std::vector<PageId>& pages);
  // With no lock held. `by_mover`: of a pool that this thread moves.
  uint64_t give_up_freed_of(PoolId id, bool by_mover);
  void end_move(Pool& pool, const std::vector<Heap*>& owners) SPW_REQUIRES(kArenaLock);
  static void forget_captures(Pool& pool) SPW_REQUIRES(kArenaLock);
  std::vector<PageId> pages_of(const std::vector<Heap*>& owners) const SPW_REQUIRES(kArenaLock);
  std::vector<PageRange> ranges_of(const std::vector<PageId>& pages) const SPW_REQUIRES(kArenaLock);
  Status release_free_pages(const std::vector<Heap*>& owners) SPW_REQUIRES(kArenaLock);
  // Throws bad_alloc before anything changed.
  void take_out(const MovablePool& pool, const std::vector<Heap*>& owners, const std::vector<PageId>& pages)
      SPW_REQUIRES(kArenaLock);
  // Needs no memory, so that it cannot fail once the bytes have moved.
  void count_out(Pool& pool, const std::vector<Heap*>& owners, const std::vector<PageId>& pages, bool out)
      SPW_REQUIRES(kArenaLock);
  // Nothing is served from the pool's source any more; false where it has none.
  bool retire_source(Pool& pool) SPW_REQUIRES(kArenaLock);
  template <typename Visit>
  void for_each_sourced(Visit visit) const SPW_REQUIRES(kArenaLock) {
    for (const auto& [id, pool] : pools_) {
      if (pool->source != nullptr) visit(*pool->source);
    }
    for (const std::unique_ptr<SourcedPool>& pool : released_sources_) visit(*pool);
  }
  // Whether this thread is in a call of some source: pools with sources do not serve it.
  static bool is_inside_source();
  Result<TakenPlace> climb_sourced(Heap& heap, const Request& request);
  // What the heap has, completed frees included; null if nothing fits.
  static Place* take_free(Heap& heap, const Request& request) SPW_REQUIRES(heap.mutex);
  // One segment more for the heap; false where there is no room, or none to be had.
  Result<bool> grow_sourced(Heap& heap, const Request& request);
  Status add_segment(SourcedPool& pool, Heap& heap, const SegmentMemory& memory, uint32_t pages);
  // Segments of released pools that nothing uses, after a wait.
  void return_segments();

  // `bytes` are found room for, `requested_bytes` counted as the program's.
  Status serve(uint64_t bytes, uint64_t requested_bytes, CUstream stream, void** out);
  // The ladder, for `bytes` of which the program asked for `requested_bytes`, with no lock held. Where no
  // place was found, *out is a block in host memory.
  Status serve_miss(Heap& heap, const Request& request, uint64_t bytes, uint64_t requested_bytes,
                    TakenPlace* taken, void** out);
  Status allocate_large(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out);
  Status allocate_small(Heap& heap, uint64_t bytes, uint64_t requested_bytes, void** out);
  // A place that was taken becomes the program's block; or that of a slab gives one of its slots.
  static Status hand_out(Heap& heap, Place& place, uint64_t requested_bytes, void** out)
      SPW_REQUIRES(heap.mutex);
  static Status hand_out_slot(Heap& heap, Place& place, uint32_t size_class, uint64_t requested_bytes,
                              void** out) SPW_REQUIRES(heap.mutex);

  // ladder.cpp. climb() answers a place taken in `heap` or, at the end, in one that lends, or that of a slab
  // that has room by now; none when device memory has run out.
  Result<TakenPlace> climb(Heap& heap, const Request& request, Climb& tried);
  // The end of the ladder: a block in host memory, or the error.
  Status place_outside(Heap& heap, uint64_t bytes, Climb& tried, void** out);
  bool may_ask_last_rungs(Heap& heap);
  // Device memory that must come free for the request, as far as can be told.
  uint64_t missing_bytes(Heap& heap, const Request& request);
  // With `crowded`, maps no view beyond most_mappings_ but sets it and answers null.
  Result<Place*> climb_without_host_wait(Heap& heap, const Request& request, Climb& tried, bool* crowded)
      SPW_REQUIRES(kArenaLock, heap.mutex);
  // Whether views are mapped so often that it matters more to map few than to hold few pages; the pages that
  // may be created for that now.
  uint32_t many_mappings() const SPW_REQUIRES(kArenaLock);
  bool mappings_are_many() const SPW_REQUIRES(kArenaLock);
  uint32_t pages_to_spare_mappings() const SPW_REQUIRES(kArenaLock);
  // Whether the place expected for the request is only held up by other streams, which still use it or own
  // pages of it, and the limit leaves no room to make up for it.
  bool wants_back(const Heap& heap, const Request& request) SPW_REQUIRES(heap.mutex);
  // Whether so many pages more can be had within the soft limit, as far as is known. A device that others had
  // filled is asked again now and then.
  bool may_have_room(uint64_t pages);
  Place* borrow_predicted(Heap& heap, const Request& request) SPW_REQUIRES(kArenaLock, heap.mutex);
  uint32_t borrow(Heap& heap, uint32_t wanted) SPW_REQUIRES(kArenaLock, heap.mutex);
  uint32_t lend(Heap& lender, Heap& heap, const std::vector<PageId>& pages)
      SPW_REQUIRES(kArenaLock, lender.mutex, heap.mutex);
  bool order_after(Heap& waiter, Heap& earlier, uint64_t epoch) SPW_REQUIRES(waiter.mutex, earlier.mutex);
  bool wait_for_frees(Heap& heap);
  bool wait_for_device(const Heap& heap);
  // Retires views that lie unused, an eighth of the mappings that may be, in as few calls as serve; waits for
  // the device before. False while a stream is captured, or when there are none.
  bool retire_views();
  // arena_waits.cpp. Waits for what uses the memory of these heaps, and for pending frees of shared blocks,
  // holding no lock; what was freed before is then complete. Events on the streams mark that, where they can:
  // a wait for the whole context would end the capture of a stream that the arena does not know. Where such a
  // capture is likely, heaps beyond the reach of events are left out. *everything (may be null): none was.
  Status synchronize(const std::vector<Heap*>& all, bool* everything = nullptr);
  Status synchronize_context(const std::vector<Heap*>& all);
  // The same, and what it lets the chosen ones free is complete too.
  Status synchronize_with_frees(const std::vector<Heap*>& all, const std::vector<Heap*>& chosen);
  // False where that cannot be done.
  bool mark_uses(Heap& heap, std::vector<Event>& marks, std::vector<CUevent>& events)
      SPW_REQUIRES(heap.mutex);
  // Whether waiting for the whole context can disturb no capture, as far as can be known without disturbing
  // it.
  bool may_wait_for_context() const;
  // Waits until nothing that was enqueued so far uses the arena's memory; false where that cannot be told.
  bool wait_if_nothing_captures();
  // Whether the heap's stream is being captured; one that is gone is not.
  bool is_capturing(Heap& heap) SPW_REQUIRES(heap.mutex);
  bool any_capturing(const std::vector<Heap*>& all);
  Status out_of_memory(uint64_t requested_bytes, const Climb& tried = {});

  // What the address map does not know: a shared block, a placed one, or nobody's.
  static Status free_unknown(uint64_t va);
  static Status record_stream_unknown(uint64_t va, CUstream stream);
  // arena_shared.cpp.
  // Beside the pages: shared blocks and segments of sources.
  uint64_t held_elsewhere_bytes() const SPW_REQUIRES(kArenaLock);
  Status check_shareable() const;
  Status list_pages_of(const void* pointer, PageSpan* span, std::vector<PageId>& pages);
  Status free_shared(uint64_t va);
  Status record_stream_shared(uint64_t va, CUstream stream);
  Status close_own_import(uint64_t va);

  // Whether a page has no live bytes, and its users are done as of the last wait.
  static bool may_go(const Heap& heap, PageId id) SPW_REQUIRES(heap.mutex);
  std::string oom_text(uint64_t requested_bytes, const Climb& tried) const;
  void update_most_pages() SPW_REQUIRES(kArenaLock);
  using GivenBack = std::vector<std::pair<Heap*, PageId>>;
  // How much of what is vacant goes.
  enum class Trim : uint8_t { kAll, kToLimit };
  // Of these heaps. `given`, where it is not null: what went.
  Status trim_heaps(const std::vector<Heap*>& chosen, GivenBack* given = nullptr, Trim trim = Trim::kAll);
  Status release_vacant_pages(const std::vector<Heap*>& chosen, GivenBack* given = nullptr,
                              Trim trim = Trim::kAll) SPW_REQUIRES(kArenaLock);
  std::vector<Heap*> heaps() const;

  std::shared_ptr<const Driver> driver_;
  const int device_;
  const ArenaOptions options_;
  // What threads remember of heaps is of this arena, and true, while it bears this number. No two arenas ever
  // have the same.
  std::atomic<uint64_t> stamp_;
  DeviceProperties properties_;
  RetainedContext context_;
  DeviceCounters counters_;
  ClimbLog climbs_;
  EventPool events_;

  mutable Mutex mutex_;  // pages, views, shared blocks, and whatever needs more than one heap
  std::unique_ptr<PageStore> store_;
  SharedBlocks shared_ SPW_GUARDED_BY(kArenaLock);
  std::map<PoolId, std::unique_ptr<Pool>> pools_ SPW_GUARDED_BY(kArenaLock);
  std::vector<std::unique_ptr<SourcedPool>> released_sources_
      SPW_GUARDED_BY(kArenaLock);  // to the end: heaps refer to their stores
  std::atomic<uint32_t> fullness_questions_{0};
  GivenBack given_back_ SPW_GUARDED_BY(kArenaLock);  // by trim_for_now(), heap after heap
  uint64_t spared_pages_ SPW_GUARDED_BY(kArenaLock) =
      0;  // created to spare mappings, since memory was last given back
  uint32_t most_mappings_ SPW_GUARDED_BY(kArenaLock);  // of the options, or more where all views were in use
  std::atomic<uint64_t> limit_;
  uint64_t reserve_bytes_ SPW_GUARDED_BY(kArenaLock);
  uint64_t traced_limit_ SPW_GUARDED_BY(kArenaLock) = 0;
  std::atomic<bool> exceeds_limit_{false};  // more pages are held than may be; changes under mutex_
  LastRungs last_rungs_;

  std::atomic<const Journal*> leader_{nullptr};  // see journal.h

  mutable Mutex registry_mutex_;
  std::vector<std::unique_ptr<Heap>> heaps_
      SPW_GUARDED_BY(registry_mutex_);  // all, for as long as the arena lives
  // The heap that serves a stream; by its handle, which no two streams have at the same time.
  using StreamKey = std::tuple<CUstream, uint64_t, PoolId>;
  static StreamKey key_of(const HeapKey& key) { return {key.stream, key.thread, key.pool}; }
  std::map<StreamKey, Heap*> serving_ SPW_GUARDED_BY(registry_mutex_);
  std::vector<Heap*> closed_ SPW_GUARDED_BY(registry_mutex_);  // to be taken over
  std::vector<std::shared_ptr<OpenPool>> open_pools_
      SPW_GUARDED_BY(registry_mutex_);  // those that are last come first
  std::atomic<uint32_t> released_pools_{0};
  std::atomic<uint32_t> open_pool_count_{0};
  std::atomic<uint32_t> capture_pool_count_{0};  // of them, those that may be open for a capture
};

}  // namespace spillway
