// Blocks of a heap that other streams use, and those of them that the program has freed meanwhile: when each
// is done with. A free that waits is complete once an event says so on each of those streams, once the host
// has waited for the device, or, where all that they did is in one capture, once the heap's stream comes
// after it there.
//
// Guarded by the heap's lock.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/cached_range.h"
#include "allocator/captured_order.h"
#include "allocator/stream_identity.h"
#include "allocator/timeline.h"
#include "driver/driver.h"
#include "driver/event.h"
#include "stats/counters.h"

namespace spillway {

class PendingFrees {
 public:
  // Told of each free that is complete; `slot` is kMostSlots for a large block.
  using Complete = std::function<void(CachedRange& range, uint32_t slot)>;

  PendingFrees(const Driver& driver, CUcontext context, int device, EventPool& events,
               DeviceCounters& counters, Complete complete)
      : driver_(driver),
        context_(context),
        device_(device),
        events_(events),
        counters_(counters),
        complete_(std::move(complete)) {}

  // ---- Live blocks

  // Errors: driver (no such stream).
  Result<StreamIdentity> identify_user(CUstream stream) const { return identify(driver_, stream); }
  // The block at `va` is used on this stream, too. With `notes_captures`, where in a capture. Errors:
  // invalid_argument (a stream of another context).
  Status add_use(uint64_t va, const StreamIdentity& user, CUstream stream, bool notes_captures);
  // The first tells whether a stream by this handle was named for a block, live or not; the second does what
  // is left to do while it lives, for what it did with those blocks.
  bool is_used_by(CUstream stream) const;
  void stream_goes(const StreamIdentity& stream);

  // ---- Freed ones

  bool empty() const { return pending_.empty(); }
  // The block at `va` was freed at `epoch` of its heap's stream, and waits for its other streams.
  void add(CachedRange& range, uint32_t slot, uint64_t va, uint64_t epoch);
  // Completes those whose streams are done; answers how many that was.
  size_t complete_finished(const Timeline& timeline, CUstream stream);
  // The heap's stream waits on the device for them, oldest first, until blocks of `enough_quanta` are
  // complete in its order. Not while it is captured. Errors: driver.
  Result<size_t> complete_behind(CUstream stream, uint32_t enough_quanta);
  // Does the same for the free of one range; false if there is none, or it has no event to wait for.
  bool complete_range_behind(CUstream stream, const CachedRange& range);
  // Does the same for all frees of blocks that lie on one of these pages.
  void complete_pages_behind(CUstream stream, const std::vector<PageId>& pages);
  // The first tells whether events mark all that they wait for; the second lists those events.
  bool have_events() const;
  void list_events(std::vector<CUevent>& out) const;
  // Starts anew for a heap whose stream is over, and that another takes over: what the timeline counts as
  // complete is the old stream's work, not that of the others.
  void restart(uint64_t epoch);

 private:
  // Other streams that use a block: an event for each that is done with it, or has gone, else the stream.
  struct StreamUses {
    std::vector<StreamIdentity> streams;
    std::vector<Event> events;
    // The capture in which all of them were named, 0 if there is no such one. This is one of an open pool.
    std::optional<uint64_t> capture = std::nullopt;
  };
  // A stream is named only while it could not record an event.
  struct Pending : StreamUses {
    CachedRange* range;
    uint32_t slot;
    uint64_t epoch;             // complete after a wait of the host for the device from then on
    CaptureTail captured = {};  // what the streams were last told, where that is all in one capture
  };

  // An event on each of the streams, as far as they take one.
  void record_events(StreamUses& uses);
  // Notes where in the graph the streams are done with it, if all that they do is captured.
  void mark_in_capture(Pending& pending);
  // Tells whether its streams are done, as far as events tell.
  bool is_finished(Pending& pending);
  void complete_at(size_t at);
  Status wait_behind(CUstream stream, Pending& pending);

  const Driver& driver_;
  const CUcontext context_;
  const int device_;
  EventPool& events_;
  DeviceCounters& counters_;
  const Complete complete_;
  std::deque<Pending> pending_;
  CapturedOrder captured_order_;
  std::unordered_map<uint64_t, StreamUses> uses_;         // of live blocks, by address
  std::unordered_map<CUstream, uint64_t> known_streams_;  // by handle, the driver's number: of this context
};

}  // namespace spillway
