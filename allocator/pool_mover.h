// Pools whose memory leaves the device and comes back to the same addresses: when that may be done, which of
// their pages hold something, and what it means for the counters. How bytes are copied is for whoever asks
// for the move.
//
// Thread-safe; a pool is moved by one thread at a time, others are refused.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "allocator/arena_parts.h"
#include "allocator/device_waits.h"
#include "allocator/moved_pool.h"
#include "allocator/open_pools.h"
#include "allocator/stream_heaps.h"

namespace spillway {

class PoolMover {
 public:
  // Makes room on the device for a pool that comes back. Called with no lock held.
  struct Room {
    std::function<Status(uint64_t bytes)> make;  // errors: out_of_memory
    std::function<Status()> trim;
  };

  PoolMover(ArenaParts& parts, const OpenPools& open_pools, StreamHeaps& heaps, DeviceWaits& waits, Room room)
      : parts_(parts), open_pools_(open_pools), heaps_(heaps), waits_(waits), room_(std::move(room)) {}

  // See the methods of Arena by these names.
  Status make_movable(PoolId id, GiveUpCopies give_up);
  Status move_out(PoolId id, const CopyOut& copy);
  Status bring_back(PoolId id, const CopyBack& copy);
  // Covers all pools; answers the bytes that were given up.
  uint64_t give_up_freed();
  std::vector<PageRange> ranges(PoolId id) const;
  bool is_away(PoolId id) const;
  uint64_t stuck_bytes(PoolId id) const;
  std::vector<BlockRow> blocks_in(PoolId id, const PageRange& range) const;

 private:
  // One pool on its way, by this thread.
  struct Move {
    Pool* pool = nullptr;
    std::vector<Heap*> owners;  // the pool's heaps: no other comes meanwhile
    std::vector<PageId> pages;
    std::vector<PageRange> ranges;
  };

  Result<Move> begin(PoolId id, bool out);
  void end(const Move& move) SPW_REQUIRES(kArenaLock);
  Status wait_before_move();
  // Frees what need not be copied, and lists the rest.
  Status list_what_moves(Move& move) SPW_REQUIRES(kArenaLock);
  Status release_free_pages(const std::vector<Heap*>& owners) SPW_REQUIRES(kArenaLock);
  // Throws bad_alloc before anything changed.
  void take_out(const Move& move) SPW_REQUIRES(kArenaLock);
  // Needs no memory, so that it cannot fail once the bytes have moved.
  void count_out(const Move& move, bool out) SPW_REQUIRES(kArenaLock);
  Status put_back(const std::vector<PageId>& pages);
  // Undoes a return that did not arrive whole.
  void send_away_again(const Move& move, bool is_settled) SPW_REQUIRES(kArenaLock);
  // Is called with no lock held. `by_mover`: the pool is one that this thread moves.
  uint64_t give_up_freed_of(PoolId id, bool by_mover);
  // Free pages of these heaps become nobody's, their numbers not yet another's.
  std::vector<PageId> disown_free(const std::vector<Heap*>& owners) SPW_REQUIRES(kArenaLock);
  void set_use_of(const std::vector<Heap*>& owners) SPW_REQUIRES(kArenaLock);
  static void forget_captures(Pool& pool) SPW_REQUIRES(kArenaLock);
  std::vector<PageId> pages_of(const std::vector<Heap*>& owners) const SPW_REQUIRES(kArenaLock);
  bool lies_in(const CachedRange& cached, const PageRange& range) const SPW_REQUIRES(kArenaLock);
  std::vector<PageRange> ranges_of(const std::vector<PageId>& pages) const SPW_REQUIRES(kArenaLock);

  ArenaParts& parts_;
  const OpenPools& open_pools_;
  StreamHeaps& heaps_;
  DeviceWaits& waits_;
  const Room room_;
};

}  // namespace spillway
