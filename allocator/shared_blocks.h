// Blocks that leave the process: each is an extent of its own, one exportable handle mapped in one range, so
// that whoever is given it (another process, a network card) is given nothing else. And the blocks of other
// processes that were brought in here.
//
// A block that is freed waits for the streams that use it. Then it is kept for the next of its size; one that
// was exported goes back to the driver, for another process may still look at it.
//
// The bytes of a block count as reserved memory of its device, the whole extent as active while it lives;
// those of a block that was brought in count where they were made. Cost: several driver calls for each block,
// and for each free an event. Every method needs the arena's lock, but for the registry.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "allocator/mapped_range.h"
#include "allocator/stream_identity.h"
#include "allocator/units.h"
#include "driver/event.h"
#include "driver/memory.h"
#include "stats/counters.h"
#include "stats/segment_row.h"

namespace spillway {

class Arena;

// Holds what another process needs to know of an address.
struct Exported {
  int descriptor = -1;  // the caller's
  uint64_t offset = 0;  // of the address in the extent
  uint64_t bytes = 0;   // of the extent
};

class SharedBlocks {
 public:
  // Handles below this are not worth an extent of their own, for network cards and page tables alike.
  static constexpr uint64_t kLeastBytes = uint64_t{32} << 20;
  static uint64_t extent_bytes(uint64_t bytes) {
    const uint64_t whole = bytes_to_pages(bytes) * kPageBytes;
    return whole > kLeastBytes ? whole : kLeastBytes;
  }

  SharedBlocks(const Driver& driver, Arena& arena, DeviceCounters& counters, EventPool& events);
  ~SharedBlocks() { give_back(); }
  SharedBlocks(const SharedBlocks&) = delete;
  SharedBlocks& operator=(const SharedBlocks&) = delete;
  // Everything, in whatever state: the arena ends.
  void give_back() noexcept;
  // Nothing is unmapped any more, not even at the end: something may still use it.
  void leave_to_driver() { left_to_driver_ = true; }

  // The arena whose shared block (made or brought in) contains the address; null if none does. Needs no lock.
  static Arena* arena_of(uint64_t va);

  // A block that was freed, and whose uses are over or can be waited for on the device; 0 if there is none.
  Result<uint64_t> reuse(uint64_t requested_bytes, const StreamIdentity& stream);
  // A new one, for these devices to use, and for network cards where `network` says that they may.
  Result<uint64_t> create(uint64_t requested_bytes, const StreamIdentity& stream,
                          const std::vector<int>& devices, bool network);
  // Errors: invalid_pointer (not the beginning of a live block).
  Status free(uint64_t va);
  Status record_stream(uint64_t va, const StreamIdentity& stream);
  // Errors: invalid_pointer, driver.
  Result<Exported> export_block(uint64_t va);

  // Memory of another process, mapped in the range, for these devices to use from now on.
  Result<uint64_t> take_in(MappedRange range, const std::vector<int>& devices);
  // Tells whether a block that was brought in begins there; its users must be done before it is dropped.
  bool is_imported(uint64_t va) const;
  Status drop_imported(uint64_t va);

  // Gives another device access to every block. On failure nothing has changed.
  Status grant_peer(int peer);
  void deny_peer(int peer);

  // Around a wait of the host for the device: frees from before begin_wait() are complete after end_wait().
  uint64_t begin_wait() { return ++waits_; }
  void end_wait(uint64_t awaited);
  // The events of pending frees; false where one waits for what took no event.
  bool list_pending_events(std::vector<CUevent>& events) const;
  // Frees whose streams are done are completed.
  void complete_finished_frees();
  bool has_idle() const;
  // Tells whether a block is live, pending or brought in.
  bool is_in_use() const;
  // What is kept for reuse goes back to the driver.
  Status release_idle();

  uint64_t held_bytes() const { return held_bytes_; }
  uint32_t mappings() const;
  HeapStats stats() const { return counters_ == nullptr ? HeapStats() : counters_->snapshot(); }
  // Counts everything again and compares. Errors: internal.
  Status validate() const;
  void list_segments(std::vector<SegmentRow>& rows) const;

 private:
  enum class State : uint8_t { kLive, kPending, kIdle, kImported };
  struct Block {
    State state = State::kLive;
    bool is_exported = false;
    bool is_unordered = false;  // pending, and a stream could take no event: only a wait for the device says
    MappedRange range;
    PhysicalHandle handle;  // none of what was brought in: the mapping holds that
    uint64_t requested_bytes = 0;
    uint64_t freed_at = 0;                // waits_ at the free
    std::vector<StreamIdentity> streams;  // the one it was asked for on first
    std::vector<Event> events;
  };
  using Blocks = std::map<uint64_t, Block>;  // by address

  Status enter(Block block, const std::vector<int>& devices);
  Blocks::iterator find_live(uint64_t va);
  void make_live(Block& block, uint64_t requested_bytes, const StreamIdentity& stream);
  void record_events(Block& block);
  void complete_free(Block& block);
  Status release(Blocks::iterator at);
  Status unmap_and_erase(Blocks::iterator at);
  void release_exported();
  void count(DriverCall call) { device_counters_.on_driver_call(call); }

  const Driver& driver_;
  Arena& arena_;
  DeviceCounters& device_counters_;
  EventPool& events_;
  // Made with the first block: counting is cheaper where a device has few heaps.
  std::unique_ptr<HeapCounters> counters_;
  Blocks blocks_;
  bool left_to_driver_ = false;
  uint64_t held_bytes_ = 0;
  uint64_t waits_ = 1;
};

}  // namespace spillway
