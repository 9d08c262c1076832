#include "allocator/pending_frees.h"

#include <algorithm>
#include <new>
#include <utility>

#include "allocator/slab.h"
#include "driver/context.h"

namespace spillway {

// ---- Who uses a block

Status PendingFrees::add_use(uint64_t va, const StreamIdentity& user, CUstream stream, bool notes_captures) {
  if (const auto known = known_streams_.find(stream);
      known == known_streams_.end() || known->second != user.id) {
    if (Status status = check_context(driver_, stream, context_, device_); !status.ok()) return status;
    known_streams_[stream] = user.id;
  }
  StreamUses& uses = uses_[va];
  if (notes_captures) {
    const std::optional<CaptureTail> tail = capture_tail(driver_, stream);
    const uint64_t capture = tail.has_value() ? tail->capture : 0;
    uses.capture = uses.capture.value_or(capture) == capture ? capture : 0;
  }
  std::vector<StreamIdentity>& users = uses.streams;
  if (std::find(users.begin(), users.end(), user) == users.end()) users.push_back(user);  // mutant: add-user
  return {};
}

bool PendingFrees::is_used_by(CUstream stream) const {
  const auto names = [&](const StreamUses& uses) {
    return std::any_of(uses.streams.begin(), uses.streams.end(),
                       [&](const StreamIdentity& user) { return user.stream == stream; });
  };
  return std::any_of(pending_.begin(), pending_.end(), names) ||
         std::any_of(uses_.begin(), uses_.end(), [&](const auto& entry) { return names(entry.second); });
}

void PendingFrees::stream_goes(const StreamIdentity& stream) {
  for (auto& [va, uses] : uses_) {
    const auto found = std::find(uses.streams.begin(), uses.streams.end(), stream);
    if (found == uses.streams.end()) continue;
    StreamUses last{{stream}, {}};
    record_events(last);
    if (last.events.empty()) {
      found->ends_unseen = true;  // and is not named again
      continue;
    }
    uses.events.push_back(std::move(last.events.front()));
    uses.streams.erase(found);
  }
  for (Pending& pending : pending_) {
    record_events(pending);
    for (StreamIdentity& user : pending.streams) user.ends_unseen = user.ends_unseen || user == stream;
  }
}

void PendingFrees::add(CachedRange& range, uint32_t slot, uint64_t va, uint64_t epoch) {
  Pending pending{std::move(uses_[va]), &range, slot, epoch};  // mutant: pending-epoch
  uses_.erase(va);
  record_events(pending);
  try {
    mark_in_capture(pending);
  } catch (const std::bad_alloc&) {
    // It waits for the end of the capture.
  }
  pending_.push_back(std::move(pending));
}

void PendingFrees::record_events(StreamUses& uses) {
  if (uses.streams.empty() || !events_.may_ask()) return;  // its streams may have gone with the context
  const ScopedContext context(driver_, context_);
  if (!context.status().ok()) return;
  // A stream under capture takes no event, and a failing record proves nothing: such a free stays pending and
  // tries again.
  for (size_t i = 0; i < uses.streams.size();) {
    const CUstream stream = uses.streams[i].stream;
    // Another thread's default stream cannot be reached from here, nor one that may be gone: such a free
    // waits for the device.
    if (!is_in_reach(uses.streams[i])) {
      ++i;
      continue;
    }
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    // mutant: user-captured
    if (driver_.cuStreamIsCapturing(stream, &capture) != CUDA_SUCCESS ||
        capture != CU_STREAM_CAPTURE_STATUS_NONE) {
      ++i;
      continue;
    }
    Result<Event> event = events_.acquire();
    if (!event.ok()) return;
    counters_.on_driver_call(DriverCall::kEventRecord);
    if (!event->record(stream).ok()) {  // mutant: user-recorded
      ++i;
      continue;
    }
    uses.events.push_back(std::move(event.value()));
    uses.streams.erase(uses.streams.begin() + static_cast<ptrdiff_t>(i));
  }
}

void PendingFrees::mark_in_capture(Pending& pending) {
  const uint64_t capture = pending.capture.value_or(0);
  if (capture == 0 || !pending.events.empty()) return;
  const ScopedContext context(driver_, context_);
  if (!context.status().ok()) return;
  CaptureTail marks{capture, {}};
  for (const StreamIdentity& user : pending.streams) {
    if (!is_in_reach(user)) return;
    const std::optional<CaptureTail> tail = capture_tail(driver_, user.stream);
    if (!tail.has_value() || tail->capture != capture) return;
    marks.nodes.insert(marks.nodes.end(), tail->nodes.begin(), tail->nodes.end());
  }
  pending.captured = std::move(marks);
}

// ---- Which frees are complete

size_t PendingFrees::complete_finished(const Timeline& timeline, CUstream stream) {
  if (pending_.empty() || !events_.may_ask()) return 0;
  size_t completed = 0;
  const auto is_captured = [](const Pending& pending) { return pending.captured.capture != 0; };
  if (std::any_of(pending_.begin(), pending_.end(), is_captured)) captured_order_.look(driver_, stream);
  for (size_t i = 0; i < pending_.size();) {
    Pending& pending = pending_[i];
    // The host has waited for the whole device since: also for streams that take no event, or are gone.
    if (timeline.is_complete(pending.epoch)) {  // mutant: pending-complete
      for (Event& event : pending.events) events_.give_back(std::move(event));
    } else if (!captured_order_.is_behind(pending.captured) && !is_finished(pending)) {
      ++i;
      continue;
    }
    complete_at(i);
    ++completed;
  }
  return completed;
}

bool PendingFrees::is_finished(Pending& pending) {
  record_events(pending);
  while (!pending.events.empty()) {
    counters_.on_driver_call(DriverCall::kEventQuery);
    const Result<bool> done = pending.events.back().completed();
    if (!done.ok() || !done.value()) return false;  // mutant: event-reached
    events_.give_back(std::move(pending.events.back()));
    pending.events.pop_back();
  }
  return pending.streams.empty();  // mutant: events-reached
}

void PendingFrees::complete_at(size_t at) {
  CachedRange& range = *pending_[at].range;
  const uint32_t slot = pending_[at].slot;
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(at));
  complete_(range, slot);
}

bool PendingFrees::have_events() const {
  return std::all_of(pending_.begin(), pending_.end(),
                     [](const Pending& pending) { return pending.streams.empty(); });
}

void PendingFrees::list_events(std::vector<CUevent>& out) const {
  for (const Pending& pending : pending_) {
    for (const Event& event : pending.events) out.push_back(event.get());
  }
}

void PendingFrees::restart(uint64_t epoch) {
  for (Pending& pending : pending_) pending.epoch = epoch;  // mutant: restart
}

// ---- Waits on the device

Status PendingFrees::wait_behind(CUstream stream, Pending& pending) {
  for (const Event& event : pending.events) {
    counters_.on_driver_call(DriverCall::kStreamWait);
    if (Status status = event.make_wait(stream); !status.ok()) return status;  // mutant: owner-waits
    counters_.on_stream_waited();
  }
  for (Event& event : pending.events) events_.give_back(std::move(event));
  return {};
}

Result<size_t> PendingFrees::complete_behind(CUstream stream, uint32_t enough_quanta) {
  size_t completed = 0;
  uint64_t quanta = 0;
  for (size_t i = 0; i < pending_.size() && quanta < enough_quanta;) {
    Pending& pending = pending_[i];
    if (!pending.streams.empty()) {  // mutant: behind-any
      ++i;
      continue;
    }
    if (Status status = wait_behind(stream, pending); !status.ok()) return status;
    quanta += pending.slot == kMostSlots ? pending.range->quanta : 0;
    complete_at(i);
    ++completed;
  }
  return completed;
}

bool PendingFrees::complete_range_behind(CUstream stream, const CachedRange& range) {
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i].range != &range || pending_[i].slot != kMostSlots) continue;
    // mutant: behind-range
    if (!pending_[i].streams.empty() || !wait_behind(stream, pending_[i]).ok()) return false;
    complete_at(i);
    return true;
  }
  return false;
}

void PendingFrees::complete_pages_behind(CUstream stream, const std::vector<PageId>& pages) {
  const auto wanted = [&](PageId id) { return std::find(pages.begin(), pages.end(), id) != pages.end(); };
  for (size_t i = 0; i < pending_.size();) {
    const CachedRange& range = *pending_[i].range;
    bool covers = wanted(range.head_page) || wanted(range.tail_page);
    for (const PageRun& run : range.runs) {
      covers = covers || std::any_of(pages.begin(), pages.end(), [&](PageId id) {
                 return id >= run.first && id < run.first + run.count;
               });
    }
    // mutant: behind-pages
    if (covers && pending_[i].streams.empty() && wait_behind(stream, pending_[i]).ok()) {
      complete_at(i);
    } else {
      ++i;
    }
  }
}

}  // namespace spillway
