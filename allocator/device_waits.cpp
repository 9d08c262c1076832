#include "allocator/device_waits.h"

#include <utility>

#include "driver/capture.h"

namespace spillway {

bool DeviceWaits::may_wait_for_context() const {
  // Whoever captures opens a pool first. The legacy stream knows of captures on the streams that wait for it,
  // and may be asked.
  return !open_pools_.may_capture() && !spillway::is_capturing(*parts_.driver, CU_STREAM_LEGACY);
}

Status DeviceWaits::synchronize_context(const std::vector<Heap*>& all) {
  std::vector<uint64_t> awaited;
  for (Heap* heap : all) {
    const Lock lock(heap->mutex);
    awaited.push_back(heap->timeline.begin_wait());
  }
  uint64_t shared_awaited = 0;
  {
    const ArenaLock lock(parts_.mutex);
    shared_awaited = parts_.shared.begin_wait();
  }
  parts_.counters.on_driver_call(DriverCall::kSynchronize);
  // mutant: wait-device
  if (Status status = parts_.driver->check(parts_.driver->cuCtxSynchronize(), "cuCtxSynchronize");
      !status.ok())
    return status;
  for (size_t i = 0; i < all.size(); ++i) {
    const Lock lock(all[i]->mutex);
    all[i]->timeline.end_wait(awaited[i]);
  }
  const ArenaLock lock(parts_.mutex);
  parts_.shared.end_wait(shared_awaited);
  parts_.update_most_pages();
  return {};
}

bool DeviceWaits::mark_uses(Heap& heap, std::vector<Event>& marks, std::vector<CUevent>& events) {
  if (heap.pages().owned() == 0) return true;
  if (!heap.events_mark_all_uses()) return false;
  heap.pending().list_events(events);
  if (!heaps_.is_in_reach(heap)) {
    // No other event can be recorded than that of its end.
    if (heap.timeline.is_over()) return true;
    if (!heap.timeline.is_covered()) return false;  // mutant: wait-uncovered
    events.push_back(heap.timeline.event().get());  // mutant: wait-for-end
    return true;
  }
  if (heap.key.thread != 0 && heap.key.thread != thread_number()) return false;
  Result<Event> mark = parts_.events.acquire();
  if (!mark.ok()) return false;
  parts_.counters.on_driver_call(DriverCall::kEventRecord);
  const bool recorded = mark->record(heap.key.stream).ok();
  marks.push_back(std::move(mark.value()));
  if (!recorded) return false;
  events.push_back(marks.back().get());
  return true;
}

Status DeviceWaits::synchronize(const std::vector<Heap*>& all, bool* everything) {
  if (Status alive = parts_.context.check_alive(); !alive.ok()) return alive;
  // Both recording and waiting would end another stream's capture.
  const RelaxedCapture relaxed(*parts_.driver);
  std::vector<Event> marks;
  std::vector<CUevent> events;
  std::vector<std::pair<Heap*, uint64_t>> reached;
  for (Heap* heap : all) {
    const Lock lock(heap->mutex);
    const uint64_t awaited = heap->timeline.begin_wait();
    if (mark_uses(*heap, marks, events)) reached.emplace_back(heap, awaited);
  }
  uint64_t shared_awaited = 0;
  bool shared_reached = false;
  {
    const ArenaLock lock(parts_.mutex);
    shared_awaited = parts_.shared.begin_wait();
    shared_reached = parts_.shared.list_pending_events(events);
  }
  parts_.counters.on_host_wait();
  parts_.counters.on_sync_all_streams();
  if (everything != nullptr) *everything = true;
  Status status;
  if ((reached.size() < all.size() || !shared_reached) && may_wait_for_context()) {
    status = synchronize_context(all);
  } else {
    if (everything != nullptr) *everything = reached.size() == all.size();
    for (size_t i = 0; i < events.size() && status.ok(); ++i) {
      parts_.counters.on_driver_call(DriverCall::kSynchronize);
      // mutant: wait-streams
      status = parts_.driver->check(parts_.driver->cuEventSynchronize(events[i]), "cuEventSynchronize");
    }
    for (const auto& [heap, awaited] : reached) {
      const Lock lock(heap->mutex);
      if (status.ok()) heap->timeline.end_wait(awaited);
    }
    if (status.ok() && shared_reached) {
      const ArenaLock lock(parts_.mutex);
      parts_.shared.end_wait(shared_awaited);
      parts_.update_most_pages();
    }
  }
  for (Event& mark : marks) parts_.events.give_back(std::move(mark));
  return status;
}

Status DeviceWaits::synchronize_with_frees(const std::vector<Heap*>& all, const std::vector<Heap*>& chosen) {
  if (Status status = synchronize(all); !status.ok()) return status;
  // They are stamped as they complete, after the wait; the device is idle by now, so waiting again for them
  // costs nothing.
  size_t completed = 0;
  for (Heap* heap : chosen) {
    const Lock heap_lock(heap->mutex);
    completed += heap->complete_finished_frees() + heap->release_empty_slabs();
  }
  return completed > 0 ? synchronize(all) : Status();  // mutant: wait-again
}

bool DeviceWaits::wait_if_nothing_captures() {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return false;
  const std::vector<Heap*> all = heaps_.all();
  if (heaps_.any_capturing(all)) return false;
  bool shared_in_use = false;
  {
    const ArenaLock lock(parts_.mutex);
    shared_in_use = parts_.shared.is_in_use();
  }
  // Who uses a shared block that lives is not known to the last stream.
  if (shared_in_use) return may_wait_for_context() && synchronize_context(all).ok();
  bool everything = false;
  return synchronize(all, &everything).ok() && everything;
}

bool DeviceWaits::wait_for_pending_frees(Heap& heap) {
  std::vector<CUevent> events;
  {
    const Lock lock(heap.mutex);
    heap.pending().list_events(events);
  }
  if (events.empty() || !parts_.context.check_alive().ok()) return false;
  // Waiting, too, would end another stream's capture.
  const RelaxedCapture relaxed(*parts_.driver);  // mutant: relaxed-wait
  for (const CUevent event : events) {
    parts_.counters.on_driver_call(DriverCall::kSynchronize);
    parts_.counters.on_host_wait();
    if (parts_.driver->cuEventSynchronize(event) != CUDA_SUCCESS) return false;
  }
  return true;
}

}  // namespace spillway
