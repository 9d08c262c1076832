// Frees of a heap: at once, or, where other streams use the block, when those are done with it.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <new>

#include "allocator/heap.h"
#include "driver/context.h"

namespace spillway {

Status Heap::free(Place& place, uint64_t va) {
  if (place.state != BlockState::kLive || place.heap != this) {
    return Status::invalid_pointer(fmt::format("free of {:#x}: no live block begins there", va));
  }
  uint32_t slot = kMostSlots;
  if (Slab* slab = place.slab; slab != nullptr) {
    slot = slab->slot_at(va);
    if (slot == kMostSlots || !slab->is_live(slot)) {
      return Status::invalid_pointer(fmt::format("free of {:#x}: no live block begins there", va));
    }
    if (!Slab::test(slab->stream_uses, slot)) {
      slot_freed(*slab, slot, false);
      return {};
    }
  } else {
    if (place.va != va) {
      return Status::invalid_pointer(
          fmt::format("free of {:#x}: it lies inside the block that begins at {:#x}", va, place.va));
    }
    if (!place.has_stream_uses) {
      const Change given = give(place);
      counters.on_free(SizePool::kLarge, place.requested_bytes, place.bytes(), given.page_bytes(),
                       given.fragments, place.va);
      return {};
    }
  }
  mark_pending(place, slot);
  free_after_streams(place, va, slot);
  return {};
}

bool Heap::begins_live(const Place& place, uint64_t va, uint32_t* slot) const {
  *slot = kMostSlots;
  if (place.state != BlockState::kLive || place.heap != this) return false;
  if (place.slab == nullptr) return place.va == va;
  *slot = place.slab->slot_at(va);
  return *slot != kMostSlots && place.slab->is_live(*slot);
}

Status Heap::record_stream(Place& place, uint64_t va, CUstream stream) {
  uint32_t slot = kMostSlots;
  if (!begins_live(place, va, &slot)) {
    return Status::invalid_pointer(fmt::format("record_stream of {:#x}: no live block begins there", va));
  }
  Result<StreamIdentity> identified = identify(driver_, stream);
  if (!identified.ok()) return identified.take_status();
  const StreamIdentity& user = identified.value();
  if (user == static_cast<const StreamIdentity&>(key)) return {};
  if (const auto known = known_streams_.find(stream);
      known == known_streams_.end() || known->second != user.id) {
    if (Status status = check_context(driver_, stream, context_, store_.device()); !status.ok())
      return status;
    known_streams_[stream] = user.id;
  }
  StreamUses& uses = stream_uses_[va];
  if (keeps_pages) {
    const std::optional<CaptureTail> tail = capture_tail(driver_, stream);
    const uint64_t capture = tail.has_value() ? tail->capture : 0;
    uses.capture = uses.capture.value_or(capture) == capture ? capture : 0;
  }
  std::vector<StreamIdentity>& users = uses.streams;
  if (std::find(users.begin(), users.end(), user) == users.end()) users.push_back(user);
  if (place.slab != nullptr) {
    Slab::set(place.slab->stream_uses, slot);
  } else {
    place.has_stream_uses = true;
  }
  return {};
}

Status Heap::withhold(Place& place, uint64_t va, uint64_t* bytes) {
  uint32_t slot = kMostSlots;
  if (!begins_live(place, va, &slot)) {
    return Status::invalid_pointer(fmt::format("free of {:#x}: no live block begins there", va));
  }
  mark_pending(place, slot);
  if (bytes != nullptr) *bytes = place.slab != nullptr ? place.slab->slot_bytes() : place.bytes();
  return {};
}

Status Heap::release_withheld(Place& place, uint64_t va) {
  Slab* slab = place.heap == this ? place.slab : nullptr;
  const uint32_t slot = slab == nullptr ? kMostSlots : slab->slot_at(va);
  const bool withheld = slab != nullptr
                            ? slot != kMostSlots && Slab::test(slab->pending_slots, slot)
                            : place.heap == this && place.state == BlockState::kPendingFree && place.va == va;
  if (!withheld)
    return Status::invalid_pointer(fmt::format("release of {:#x}: no block is withheld there", va));
  if (slab != nullptr ? Slab::test(slab->stream_uses, slot) : place.has_stream_uses) {
    free_after_streams(place, va, slot);
  } else {
    complete_free(place, slot);
  }
  return {};
}

void Heap::mark_pending(Place& place, uint32_t slot) {
  if (place.slab != nullptr) {
    Slab::set(place.slab->pending_slots, slot);
    counters.on_free_requested(SizePool::kSmall, place.slab->slot_bytes(), place.slab->requested[slot],
                               place.slab->va_of(slot));
  } else {
    place.state = BlockState::kPendingFree;
    counters.on_free_requested(SizePool::kLarge, place.bytes(), place.requested_bytes, place.va);
  }
}

void Heap::free_after_streams(Place& place, uint64_t va, uint32_t slot) {
  StreamUses uses = std::move(stream_uses_[va]);
  stream_uses_.erase(va);
  if (place.slab != nullptr) {
    Slab::clear(place.slab->stream_uses, slot);
  } else {
    place.has_stream_uses = false;
  }
  PendingFree pending{std::move(uses), &place, slot, timeline.epoch()};
  record_events(pending);
  try {
    mark_in_capture(pending);
  } catch (const std::bad_alloc&) {
    // It waits for the end of the capture.
  }
  pending_.push_back(std::move(pending));
}

void Heap::record_events(StreamUses& uses) {
  if (uses.streams.empty()) return;
  const ScopedContext context(driver_, context_);
  if (!context.status().ok()) return;
  // A stream under capture takes no event, and a failing record proves nothing: such a free stays pending and
  // tries again.
  for (size_t i = 0; i < uses.streams.size();) {
    const CUstream stream = uses.streams[i].stream;
    // Another thread's default stream cannot be reached from here, nor one that is gone: such a free waits
    // for the device.
    const bool is_of_another_thread =
        stream == CU_STREAM_PER_THREAD && uses.streams[i].thread != thread_number();
    if (is_of_another_thread || !is_alive(driver_, uses.streams[i])) {
      ++i;
      continue;
    }
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    if (driver_.cuStreamIsCapturing(stream, &capture) != CUDA_SUCCESS ||
        capture != CU_STREAM_CAPTURE_STATUS_NONE) {
      ++i;
      continue;
    }
    Result<Event> event = events_.acquire();
    if (!event.ok()) return;
    device_counters_.on_driver_call(DriverCall::kEventRecord);
    if (!event->record(stream).ok()) {
      ++i;
      continue;
    }
    uses.events.push_back(std::move(event.value()));
    uses.streams.erase(uses.streams.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Heap::mark_in_capture(PendingFree& pending) {
  const uint64_t capture = pending.capture.value_or(0);
  if (capture == 0 || !pending.events.empty()) return;
  const ScopedContext context(driver_, context_);
  if (!context.status().ok()) return;
  CaptureTail marks{capture, {}};
  for (const StreamIdentity& user : pending.streams) {
    const bool is_of_another_thread = user.stream == CU_STREAM_PER_THREAD && user.thread != thread_number();
    if (is_of_another_thread || !is_alive(driver_, user)) return;
    const std::optional<CaptureTail> tail = capture_tail(driver_, user.stream);
    if (!tail.has_value() || tail->capture != capture) return;
    marks.nodes.insert(marks.nodes.end(), tail->nodes.begin(), tail->nodes.end());
  }
  pending.captured = std::move(marks);
}

bool Heap::is_used_by(CUstream stream) const {
  const auto names = [&](const StreamUses& uses) {
    return std::any_of(uses.streams.begin(), uses.streams.end(),
                       [&](const StreamIdentity& user) { return user.stream == stream; });
  };
  return std::any_of(pending_.begin(), pending_.end(), names) ||
         std::any_of(stream_uses_.begin(), stream_uses_.end(),
                     [&](const auto& entry) { return names(entry.second); });
}

void Heap::stream_goes(const StreamIdentity& stream) {
  for (auto& [va, uses] : stream_uses_) {
    const auto found = std::find(uses.streams.begin(), uses.streams.end(), stream);
    if (found == uses.streams.end()) continue;
    StreamUses last{{stream}, {}};
    record_events(last);
    if (last.events.empty()) continue;
    uses.events.push_back(std::move(last.events.front()));
    uses.streams.erase(found);
  }
  for (PendingFree& pending : pending_) record_events(pending);
}

void Heap::take_over(const HeapKey& by) {
  key = by;
  counters.set_stream(std::bit_cast<uint64_t>(key.stream));
  thread_ended = by.thread == 0 ? nullptr : thread_has_ended();
  timeline.reopen();
  // What the timeline now counts as complete is the old stream's work, not that of the others.
  for (PendingFree& pending : pending_) pending.epoch = timeline.epoch();
  closed_.store(false, std::memory_order_relaxed);
  served_since_ = journal_.now();
}

size_t Heap::complete_finished_frees() {
  size_t completed = 0;
  const auto is_captured = [](const PendingFree& pending) { return pending.captured.capture != 0; };
  if (std::any_of(pending_.begin(), pending_.end(), is_captured)) captured_order_.look(driver_, key.stream);
  for (size_t i = 0; i < pending_.size();) {
    PendingFree& pending = pending_[i];
    if (timeline.is_complete(pending.epoch)) {
      // The host has waited for the whole device since: also for streams that take no event, or are gone.
      for (Event& event : pending.events) events_.give_back(std::move(event));
      complete_pending(i);
      ++completed;
      continue;
    }
    if (captured_order_.is_behind(pending.captured)) {
      complete_pending(i);
      ++completed;
      continue;
    }
    record_events(pending);
    while (!pending.events.empty()) {
      device_counters_.on_driver_call(DriverCall::kEventQuery);
      const Result<bool> done = pending.events.back().completed();
      if (!done.ok() || !done.value()) break;
      events_.give_back(std::move(pending.events.back()));
      pending.events.pop_back();
    }
    if (!pending.events.empty() || !pending.streams.empty()) {
      ++i;
      continue;
    }
    complete_pending(i);
    ++completed;
  }
  return completed;
}

Status Heap::wait_behind_stream(PendingFree& pending) {
  for (const Event& event : pending.events) {
    device_counters_.on_driver_call(DriverCall::kStreamWait);
    if (Status status = event.make_wait(key.stream); !status.ok()) return status;
    device_counters_.on_stream_waited();
  }
  for (Event& event : pending.events) events_.give_back(std::move(event));
  return {};
}

Result<size_t> Heap::complete_frees_behind_stream(uint32_t enough_lines) {
  size_t completed = 0;
  uint64_t lines = 0;
  for (size_t i = 0; i < pending_.size() && lines < enough_lines;) {
    PendingFree& pending = pending_[i];
    if (!pending.streams.empty()) {
      ++i;
      continue;
    }
    if (Status status = wait_behind_stream(pending); !status.ok()) return status;
    lines += pending.slot == kMostSlots ? pending.place->lines : 0;
    complete_pending(i);
    ++completed;
  }
  return completed;
}

bool Heap::complete_free_behind_stream(const Place& place) {
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i].place != &place || pending_[i].slot != kMostSlots) continue;
    if (!pending_[i].streams.empty() || !wait_behind_stream(pending_[i]).ok()) return false;
    complete_pending(i);
    return true;
  }
  return false;
}

void Heap::complete_frees_on_pages(const std::vector<PageId>& pages) {
  const auto wanted = [&](PageId id) { return std::find(pages.begin(), pages.end(), id) != pages.end(); };
  for (size_t i = 0; i < pending_.size();) {
    const Place& place = *pending_[i].place;
    bool covers = wanted(place.head_page) || wanted(place.tail_page);
    for (const PageRun& run : place.runs) {
      covers = covers || std::any_of(pages.begin(), pages.end(), [&](PageId id) {
                 return id >= run.first && id < run.first + run.count;
               });
    }
    if (covers && pending_[i].streams.empty() && wait_behind_stream(pending_[i]).ok()) {
      complete_pending(i);
    } else {
      ++i;
    }
  }
}

void Heap::list_pending_events(std::vector<CUevent>& out) const {
  for (const PendingFree& pending : pending_) {
    for (const Event& event : pending.events) out.push_back(event.get());
  }
}

void Heap::complete_pending(size_t at) {
  Place& place = *pending_[at].place;
  const uint32_t slot = pending_[at].slot;
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(at));
  complete_free(place, slot);
}

void Heap::complete_free(Place& place, uint32_t slot) {
  if (place.slab != nullptr) {
    Slab::clear(place.slab->pending_slots, slot);
    slot_freed(*place.slab, slot, true);
    return;
  }
  const Change given = give(place);
  counters.on_free_completed(SizePool::kLarge, place.requested_bytes, place.bytes(), given.page_bytes(),
                             given.fragments, place.va);
}

}  // namespace spillway
