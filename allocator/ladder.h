// The ladder: what happens when a heap cannot serve a request from its own free bytes. The rungs stand in two
// tables in ladder.cpp, cheapest first. The heap is searched again after each that helped; each is counted
// and timed.
//
//   completed frees -> a view over own free pages -> new pages while the limit leaves room
//   -> other streams' free pages, and own pending frees, behind a wait on the device
//   -> a wait on the host for pending frees and for pools that were released
//   -> what others give back, where they do -> a block in host memory -> out of memory
//
// A careful arena (ArenaOptions) maps a view behind a wait on the host, but under capture.
//
// A pool with a source climbs the same ladder; its memory comes in segments of that source, and no other
// stream has any of it.
//
// A stream under capture takes own pages, new ones, and for its pool what the host has waited for: ordering
// it after other streams would end the capture, and what was allocated under capture belongs to its pool.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/arena_parts.h"
#include "allocator/borrowing.h"
#include "allocator/device_waits.h"
#include "allocator/heap.h"
#include "allocator/heap_lock.h"
#include "allocator/sources.h"
#include "allocator/stream_heaps.h"
#include "allocator/trimming.h"
#include "allocator/view_budget.h"
#include "stats/slow_path_log.h"

namespace spillway {

class Ladder {
 public:
  Ladder(ArenaParts& parts, StreamHeaps& heaps, DeviceWaits& waits, Sources& sources, Trimming& trimming,
         Borrowing& borrowing, ViewBudget& views)
      : parts_(parts),
        heaps_(heaps),
        waits_(waits),
        sources_(sources),
        trimming_(trimming),
        borrowing_(borrowing),
        views_(views) {}

  // Holds what served a request: a range taken in the heap, or in one that lends, or that of a slab that has
  // room by now; or a block in host memory. With neither, device memory has run out.
  struct Served {
    TakenRange taken;
    void* outside = nullptr;
  };
  // A range of the heap's own for a request that its first guess did not serve, with its lock held: the
  // commonest misses end here. Null without one. What was tried is noted.
  CachedRange* take_from_heap(Heap& heap, const Request& request, SlowPath& tried) SPW_REQUIRES(heap.mutex);
  // For a request of `bytes` that was not served so, with no lock held. What was tried is noted. Errors:
  // invalid_state (the stream is gone), driver, those of a source.
  Result<Served> climb(Heap& heap, const Request& request, uint64_t bytes, SlowPath& tried);

 private:
  // Says what trying a rung came to. A rung that was skipped is not counted; one that helped changed
  // something, so that the heap is worth another look.
  enum class Outcome : uint8_t { kSkipped, kInVain, kHelped, kServed };
  // One request on its way, and what the rungs that it tried found out for those after them.
  struct Miss {
    Heap& heap;
    const Request& request;
    const uint64_t bytes;
    SlowPath& tried;

    Served served{};
    Rung rung = Rung::kCount;  // as which the present attempt is counted
    uint32_t spent_turns = 0;  // rows of kWithoutLocks, one bit each
    bool has_waited = false;
    bool may_retire_views = true;
    bool may_map_view = true;  // false, where the arena is careful, until the host has waited
    bool has_met_full_device = false;
    int gifts_asked = 0;
    std::optional<std::vector<std::shared_ptr<LastRungs::Entry>>> others{};  // that may still give something

    // Holds what is known in this round, under locks.
    struct Round {
      bool wanted_back = false;
      bool is_strained = false;     // see ViewBudget
      uint32_t pages_to_spend = 0;  // see ViewBudget
      uint64_t missing_pages = 0;   // new ones that there was no room for
      bool device_is_full = false;
      bool found_pages = false;  // by waits on the device
      bool too_many_views = false;
      bool waits_for_view = false;
      bool lacks_page_tables = false;  // a view was refused for want of memory
    } round{};
    std::optional<ScopedContext> context{};  // of this round

    Outcome serve(CachedRange* range) {
      served.taken.range = range;
      return range == nullptr ? Outcome::kInVain : Outcome::kServed;
    }
  };

  // Says whose requests may try a rung.
  enum class Memory : uint8_t { kAny, kDevice, kSource };
  // Says how often one request tries it: once, helpful or not; until it helped, and again after a gift; as
  // often as it gives.
  enum class Turns : uint8_t { kOnce, kOncePerGift, kWhileItGives };
  struct Row {
    Rung rung;  // as which it is counted; kCount: as none
    Memory memory;
    Turns turns;
    bool under_capture;
    bool (Ladder::*applies)(Miss& miss);  // null: always
    Result<Outcome> (Ladder::*attempt)(Miss& miss);
  };
  // Tried with the locks of the arena and the heap held: none waits on the host. In each round all of them,
  // until one serves.
  static const Row kUnderLocks[];
  // Tried with no lock held, where none of those served, until one helps and the next round begins.
  static const Row kWithoutLocks[];

  // What a round finds out is true while the arena's lock is held.
  static void begin_round(Miss& miss) SPW_REQUIRES(kArenaLock);
  Result<Outcome> climb_under_locks(Miss& miss);
  Result<Outcome> climb_without_locks(Miss& miss);
  Result<Outcome> attempt(const Row& row, Miss& miss);

  // These tell what rungs apply to.
  bool wants_back(Miss& miss) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  bool wanted_back(Miss& miss) { return miss.round.wanted_back; }
  bool is_captured_pool(Miss& miss) SPW_REQUIRES(miss.heap.mutex);
  bool has_more_room(Miss& miss);
  bool has_too_many_views(Miss& miss);
  bool waits_for_view(Miss& miss) { return miss.round.waits_for_view; }
  bool may_ask_others(Miss& miss);

  // The rungs.
  Result<Outcome> complete_frees(Miss& miss) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  Result<Outcome> take_back(Miss& miss) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  Result<Outcome> settle_elsewhere(Miss& miss) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  Result<Outcome> take_settled(Miss& miss) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  Result<Outcome> map_within_soft_limit(Miss& miss) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  Result<Outcome> wait_on_device(Miss& miss) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  Result<Outcome> map_within_limit(Miss& miss) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  Result<Outcome> search_segments(Miss& miss) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  Result<Outcome> retire_views(Miss& miss);
  Result<Outcome> wait_for_view(Miss& miss);
  Result<Outcome> grow_source(Miss& miss);
  Result<Outcome> wait_for_frees(Miss& miss);
  Result<Outcome> wait_for_device(Miss& miss);
  Result<Outcome> trim(Miss& miss);
  Result<Outcome> ask_others(Miss& miss);
  Result<Outcome> take_lent(Miss& miss);
  Result<Outcome> place_outside(Miss& miss);

  // Serves from a hole, from free pages in a view that exists, by a new view over own pages, or by up to
  // `room` new pages.
  Result<Outcome> map(Miss& miss, uint64_t room) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  // Takes a range that needs no driver call and costs no more pages than the plan; null without one.
  CachedRange* take_instead(Miss& miss, const Plan& plan) SPW_REQUIRES(kArenaLock, miss.heap.mutex);
  Status enter_context(Miss& miss) SPW_REQUIRES(miss.heap.mutex);
  // Returns the bytes of the device that must come free for the request, as far as can be told.
  uint64_t missing_bytes(Miss& miss);

  ArenaParts& parts_;
  StreamHeaps& heaps_;
  DeviceWaits& waits_;
  Sources& sources_;
  Trimming& trimming_;
  Borrowing& borrowing_;
  ViewBudget& views_;
};

}  // namespace spillway
