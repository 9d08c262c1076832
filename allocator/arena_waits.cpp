// Waits of the host for what uses an arena's memory, and what may go back to the driver after them.

#include <algorithm>
#include <mutex>
#include <utility>

#include "allocator/arena.h"
#include "driver/capture.h"

namespace spillway {
namespace {

// Taken back under one hold of the arena's lock.
constexpr uint32_t kMostPagesAtOnce = 64;

}  // namespace

// ---- Waiting

bool Arena::may_wait_for_context() const {
  // Whoever captures opens a pool first. The legacy stream knows of captures on the streams that wait for it,
  // and may be asked.
  return capture_pool_count_.load(std::memory_order_acquire) == 0 &&
         !spillway::is_capturing(*driver_, CU_STREAM_LEGACY);
}

Status Arena::synchronize_context(const std::vector<Heap*>& all) {
  std::vector<uint64_t> awaited;
  for (Heap* heap : all) {
    const Lock lock(heap->mutex);
    awaited.push_back(heap->timeline.begin_wait());
  }
  uint64_t shared_awaited = 0;
  {
    const ArenaLock lock(mutex_);
    shared_awaited = shared_.begin_wait();
  }
  counters_.on_driver_call(DriverCall::kSynchronize);
  if (Status status = driver_->check(driver_->cuCtxSynchronize(), "cuCtxSynchronize"); !status.ok())
    return status;
  for (size_t i = 0; i < all.size(); ++i) {
    const Lock lock(all[i]->mutex);
    all[i]->timeline.end_wait(awaited[i]);
  }
  const ArenaLock lock(mutex_);
  shared_.end_wait(shared_awaited);
  update_most_pages();
  return {};
}

bool Arena::mark_uses(Heap& heap, std::vector<Event>& marks, std::vector<CUevent>& events) {
  if (heap.owned_pages() == 0) return true;
  if (!heap.events_mark_all_uses()) return false;
  heap.list_pending_events(events);
  if (has_gone(heap)) {
    // No other event can be recorded than that of its end.
    if (heap.timeline.is_over()) return true;
    if (!heap.timeline.is_covered()) return false;
    events.push_back(heap.timeline.event().get());
    return true;
  }
  if (heap.key.thread != 0 && heap.key.thread != thread_number()) return false;
  Result<Event> mark = events_.acquire();
  if (!mark.ok()) return false;
  counters_.on_driver_call(DriverCall::kEventRecord);
  const bool recorded = mark->record(heap.key.stream).ok();
  marks.push_back(std::move(mark.value()));
  if (!recorded) return false;
  events.push_back(marks.back().get());
  return true;
}

Status Arena::synchronize(const std::vector<Heap*>& all, bool* everything) {
  // Both recording and waiting would end another stream's capture.
  const RelaxedCapture relaxed(*driver_);
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
    const ArenaLock lock(mutex_);
    shared_awaited = shared_.begin_wait();
    shared_reached = shared_.list_pending_events(events);
  }
  counters_.on_host_wait();
  counters_.on_sync_all_streams();
  if (everything != nullptr) *everything = true;
  Status status;
  if ((reached.size() < all.size() || !shared_reached) && may_wait_for_context()) {
    status = synchronize_context(all);
  } else {
    if (everything != nullptr) *everything = reached.size() == all.size();
    for (size_t i = 0; i < events.size() && status.ok(); ++i) {
      counters_.on_driver_call(DriverCall::kSynchronize);
      status = driver_->check(driver_->cuEventSynchronize(events[i]), "cuEventSynchronize");
    }
    for (const auto& [heap, awaited] : reached) {
      const Lock lock(heap->mutex);
      if (status.ok()) heap->timeline.end_wait(awaited);
    }
    if (status.ok() && shared_reached) {
      const ArenaLock lock(mutex_);
      shared_.end_wait(shared_awaited);
      update_most_pages();
    }
  }
  for (Event& mark : marks) events_.give_back(std::move(mark));
  return status;
}

Status Arena::synchronize_with_frees(const std::vector<Heap*>& all, const std::vector<Heap*>& chosen) {
  if (Status status = synchronize(all); !status.ok()) return status;
  // They are stamped as they complete, after the wait; the device is idle by now, so waiting again for them
  // costs nothing.
  size_t completed = 0;
  for (Heap* heap : chosen) {
    const Lock heap_lock(heap->mutex);
    completed += heap->complete_finished_frees() + heap->release_empty_slabs();
  }
  return completed > 0 ? synchronize(all) : Status();
}

bool Arena::wait_if_nothing_captures() {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return false;
  const std::vector<Heap*> all = heaps();
  if (any_capturing(all)) return false;
  bool shared_in_use = false;
  {
    const ArenaLock lock(mutex_);
    shared_in_use = shared_.is_in_use();
  }
  // Who uses a shared block that lives is not known to the last stream.
  if (shared_in_use) return may_wait_for_context() && synchronize_context(all).ok();
  bool everything = false;
  return synchronize(all, &everything).ok() && everything;
}

void Arena::complete_finished_frees() {
  const RelaxedCapture relaxed(*driver_);
  for (Heap* heap : heaps()) {
    const Lock lock(heap->mutex);
    if (heap->has_pending_frees()) heap->complete_finished_frees();
  }
}

bool Arena::is_quiet() {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return false;
  const RelaxedCapture relaxed(*driver_);
  for (Heap* heap : heaps()) {
    const Lock lock(heap->mutex);
    // Of other threads' default streams only they can ask.
    if (has_gone(*heap) || (heap->key.thread != 0 && heap->key.thread != thread_number())) continue;
    // Nobody opens a pool for a capture meanwhile: a question about a stream that captures ends the capture.
    const Lock registry(registry_mutex_);
    if (capture_pool_count_.load(std::memory_order_relaxed) != 0 ||
        spillway::is_capturing(*driver_, heap->key.stream) ||
        driver_->cuStreamQuery(heap->key.stream) != CUDA_SUCCESS) {
      return false;
    }
  }
  return true;
}

// ---- Giving back

Status Arena::trim() {
  return trim_heaps(heaps());
}

Status Arena::trim_for_now() {
  GivenBack given;
  Status status = trim_heaps(heaps(), &given);
  const ArenaLock lock(mutex_);
  if (!given.empty()) given_back_ = std::move(given);
  return status;
}

Status Arena::trim_pool(PoolId id) {
  const std::vector<Heap*> owned = heaps_of(id);
  const auto has_memory = [](Heap* heap) {
    const Lock heap_lock(heap->mutex);
    return heap->owned_pages() > 0;
  };
  return std::any_of(owned.begin(), owned.end(), has_memory) ? trim_heaps(owned) : Status();
}

void Arena::keep_limit() {
  if (!exceeds_limit_.load(std::memory_order_relaxed)) return;
  const std::vector<Heap*> all = heaps();
  {
    const ArenaLock lock(mutex_);
    update_most_pages();
    if (!exceeds_limit_.load(std::memory_order_relaxed)) return;
    bool helps = shared_.has_idle();
    for (Heap* heap : all) {
      const Lock heap_lock(heap->mutex);
      heap->release_empty_slabs();
      const bool may_give = !heap->keeps_pages && &heap->store() == store_.get();
      helps = helps || (may_give && (heap->has_pending_frees() || heap->vacant_pages() > 0));
    }
    if (!helps) return;
  }
  // What cannot go now goes before a later request.
  (void)trim_heaps(all, nullptr, Trim::kToLimit);
}

Status Arena::trim_heaps(const std::vector<Heap*>& chosen, GivenBack* given, Trim trim) {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return context.status();
  const std::vector<Heap*> all = heaps();
  if (any_capturing(all)) {
    return Status::invalid_state("trim while a stream is being captured: nothing can be unmapped now");
  }
  // Questions about events and unmapping, too, would end a capture that the arena does not know of.
  const RelaxedCapture relaxed(*driver_);
  if (Status status = synchronize_with_frees(all, chosen); !status.ok()) return status;
  Status released;
  Status pages;
  {
    const ArenaLock lock(mutex_);
    if (chosen.size() == all.size()) released = shared_.release_idle();
    update_most_pages();
    pages = release_vacant_pages(chosen, given, trim);
    update_most_pages();
  }
  return_segments();
  (void)give_up_freed();
  return released.ok() ? std::move(pages) : std::move(released);
}

// Freed since the wait: its users may still be at work.
bool Arena::may_go(const Heap& heap, PageId id) {
  return !heap.keeps_pages && heap.is_vacant(id) && heap.timeline.is_complete(heap.last_use(id));
}

Status Arena::release_vacant_pages(const std::vector<Heap*>& chosen, GivenBack* given, Trim trim) {
  spared_pages_ = 0;
  const auto is_enough = [&] {
    return trim == Trim::kToLimit && store_->page_count() <= store_->most_pages();
  };
  if (!store_->uses_vmm()) {
    const AllLocked locked(heaps());
    const auto is_chosen = [&](const Heap* heap) {
      return std::find(chosen.begin(), chosen.end(), heap) != chosen.end();
    };
    const auto goes = [&](PageId first, uint32_t count) {
      for (PageId id = first; id < first + count; ++id) {
        const Heap* const owner = store_->page(id).owner.load();
        owner->mutex.assert_held();  // by `locked`
        if (!is_chosen(owner) || !may_go(*owner, id)) return false;
      }
      return !is_enough();
    };
    const auto drop = [&](PageId first, uint32_t count) {
      for (PageId id = first; id < first + count; ++id) {
        Heap& owner = *store_->page(id).owner.load();
        owner.mutex.assert_held();  // by `locked`
        owner.drop_vacant(id, 1);
      }
    };
    return store_->release_segments(goes, drop);
  }
  for (Heap* heap : chosen) {
    if (&heap->store() != store_.get()) continue;
    const Lock heap_lock(heap->mutex);
    std::vector<PageId> pages;
    heap->list_leavable(pages);
    for (const PageId id : pages) {
      if (is_enough()) return {};
      if (!heap->timeline.is_complete(heap->last_use(id))) continue;  // freed since the wait
      heap->drop_vacant(id, 1);
      if (Status status = store_->release_page(id); !status.ok()) {
        if (store_->backed(id)) heap->add_vacant(id, 1);
        return status;
      }
      if (given != nullptr) given->emplace_back(heap, id);
    }
  }
  return {};
}

uint64_t Arena::take_back() {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return 0;
  const RelaxedCapture relaxed(*driver_);
  GivenBack wanted;
  {
    const ArenaLock lock(mutex_);
    wanted.swap(given_back_);
    update_most_pages();
  }
  uint64_t taken = 0;
  for (size_t next = 0; next < wanted.size();) {
    // Others that need pages wait for a run at most.
    const ArenaLock lock(mutex_);
    const auto [heap, first] = wanted[next];
    uint32_t count = 0;
    while (count < kMostPagesAtOnce && next < wanted.size() &&
           wanted[next] == std::pair{heap, first + count} && !store_->backed(first + count)) {
      ++count;
      ++next;
    }
    if (count == 0) ++next;  // somebody was faster
    count = static_cast<uint32_t>(std::min<uint64_t>(count, store_->easy_room_pages()));
    const Lock heap_lock(heap->mutex);
    if (count == 0 || heap->is_closed() || heap->key.pool != PoolId{}) continue;
    uint32_t created = 0;
    const Status status = store_->create_pages(first, count, heap, &created);
    if (created > 0) heap->add_vacant(first, created);
    taken += uint64_t{created} * kPageBytes;
    if (!status.ok()) break;
  }
  return taken;
}

}  // namespace spillway
