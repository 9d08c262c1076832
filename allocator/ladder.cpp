// The ladder: what happens when a heap cannot serve a request from its own free bytes. Cheapest rung first,
// each counted and timed, the heap searched again after each.
//
//   completed frees -> a view over own free pages -> new pages while the limit leaves room
//   -> other streams' free pages, and own pending frees, behind a wait on the device
//   -> a wait on the host for pending frees and for pools that were released
//   -> what the last resort gives back, where there is one -> out of memory
//
// A stream under capture takes only own pages and new ones: ordering it after other streams would end the
// capture, and what was allocated under capture belongs to its pool.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "allocator/arena.h"
#include "allocator/placed_blocks.h"
#include "driver/capture.h"

namespace spillway {
namespace {

// From this share of the mappings that may live beside the home view's on, they are spared: small blocks go
// to windows, programs that do not repeat themselves are kept together, and ever more pages, in the end a
// quarter more, are created where a view would do. See docs/decisions/mappings.md.
constexpr uint32_t kManyMappingsDivisor = 4;
constexpr uint32_t kMostSparePagesDivisor = 4;
// Pages are spared for mappings while so large a part of what is held could still be added.
constexpr uint32_t kFarFromLimitDivisor = 16;
// This part of the mappings that may live goes at a time.
constexpr uint32_t kRetiredDivisor = 8;
// While others fill the device, it is asked for free memory once in so many requests that could use some.
constexpr uint32_t kQuestionsPerAnswer = 32;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Counts a rung when it has been tried.
class RungTimer {
 public:
  RungTimer(DeviceCounters& counters, Climb& tried, Rung rung)
      : counters_(counters), tried_(tried), rung_(rung), start_ns_(now_ns()) {}
  void finish(bool served) const {
    const int64_t time_ns = now_ns() - start_ns_;
    counters_.on_rung(rung_, served, time_ns);
    tried_.note(rung_, served, time_ns);
  }

 private:
  DeviceCounters& counters_;
  Climb& tried_;
  const Rung rung_;
  const int64_t start_ns_;
};

}  // namespace

bool Arena::is_capturing(Heap& heap) {
  return !heap.is_closed() && !has_gone(heap) && spillway::is_capturing(*driver_, heap.key.stream);
}

bool Arena::any_capturing(const std::vector<Heap*>& all) {
  return std::any_of(all.begin(), all.end(), [&](Heap* heap) {
    const Lock lock(heap->mutex);
    return is_capturing(*heap);
  });
}

Result<TakenPlace> Arena::climb(Heap& heap, const Request& request, Climb& tried) {
  if (&heap.store() != store_.get()) return climb_sourced(heap, request);
  {
    HeapLock lock(heap.mutex);
    if (heap.has_pending_frees()) {
      const RelaxedCapture relaxed(*driver_);
      const RungTimer timer(counters_, tried, Rung::kCompletedFrees);
      timer.finish(heap.complete_finished_frees() > 0);
    }
    // A slot that came free meanwhile, or just now, needs no new slab.
    Place* place = heap.slab_with_room(request);
    if (place == nullptr) place = heap.take_located(request);
    // A slab kept for later must not displace what is expected now.
    if (place == nullptr && heap.release_empty_slabs() > 0) place = heap.take_located(request);
    if (place != nullptr) return TakenPlace{place, std::move(lock)};
    if (!wants_back(heap, request)) {
      // The commonest miss: the heap has room, only not where it was expected.
      place = heap.take_found(request, true);
      if (place != nullptr) return TakenPlace{place, std::move(lock)};
    }
  }
  bool waited = false;
  bool may_retire = true;
  bool may_wait_for_frees = true;
  bool may_wait_for_device = true;
  int rounds = 0;
  std::optional<std::vector<std::shared_ptr<LastRungs::Entry>>> rungs;  // that may still give something
  for (;;) {
    bool crowded = false;
    {
      const ArenaLock arena_lock(mutex_);
      HeapLock lock(heap.mutex);
      Result<Place*> climbed = climb_without_host_wait(heap, request, tried, may_retire ? &crowded : nullptr);
      if (!climbed.ok()) return climbed.take_status();
      if (climbed.value() != nullptr) {
        if (waited) counters_.on_alloc_retry();
        return TakenPlace{climbed.value(), std::move(lock)};
      }
    }
    const ScopedContext context(*driver_, context_.get());
    if (!context.status().ok()) return context.status();
    const RungTimer timer(counters_, tried, Rung::kHostWait);
    if (crowded) {
      may_retire = false;
      timer.finish(retire_views());
      continue;
    }
    if (may_wait_for_frees && wait_for_frees(heap)) {
      may_wait_for_frees = false;
      waited = true;
      timer.finish(true);
      continue;
    }
    if (may_wait_for_device && wait_for_device(heap)) {
      may_wait_for_frees = false;
      may_wait_for_device = false;
      waited = true;
      timer.finish(true);
      continue;
    }
    // From here on, what others can do.
    if (!may_ask_last_rungs(heap)) break;
    if (!rungs.has_value()) rungs = last_rungs_.list();
    bool gave = false;
    while (!gave && !rungs->empty() && rounds < LastRungs::kMostRounds) {
      ++rounds;
      const RungTimer last_timer(counters_, tried, rungs->front()->rung);
      gave = rungs->front()->call(missing_bytes(heap, request)) > 0;
      last_timer.finish(gave);
      if (!gave) rungs->erase(rungs->begin());
    }
    if (!gave) break;
    waited = true;
    // What was given back may still be in use by other streams.
    may_wait_for_frees = may_wait_for_device = true;
  }
  const RungTimer timer(counters_, tried, Rung::kCallback);
  TakenPlace lent = take_lent(heap, request);
  if (lent.place != nullptr) timer.finish(true);
  return lent;
}

bool Arena::may_ask_last_rungs(Heap& heap) {
  if (LastRungs::is_inside()) return false;
  const Lock lock(heap.mutex);
  return !has_gone(heap) && !is_capturing(heap);
}

uint64_t Arena::missing_bytes(Heap& heap, const Request& request) {
  const ArenaLock arena_lock(mutex_);
  const Lock lock(heap.mutex);
  const Plan plan = heap.plan(request);
  const uint64_t most = bytes_to_pages(uint64_t{request.lines} * kLineBytes);
  const uint64_t pages = plan.kind == Plan::Kind::kNone ? most : plan.new_pages;
  // With room within the limit, it is the device that is full.
  const uint64_t room = store_->room_pages();
  return std::max<uint64_t>(pages > room ? pages - room : pages, 1) * kPageBytes;
}

Status Arena::place_outside(Heap& heap, uint64_t bytes, Climb& tried, void** out) {
  const ScopedContext context(*driver_, context_.get());
  if (!context.status().ok()) return context.status();
  CUstream stream = nullptr;
  {
    const Lock lock(heap.mutex);
    if (has_gone(heap)) return Status::invalid_state("the stream is gone");
    stream = heap.key.stream;
  }
  const std::shared_ptr<const HostPlacement> placement = last_rungs_.placement();
  const bool is_sourced = &heap.store() != store_.get();
  if (placement != nullptr && !is_sourced && may_ask_last_rungs(heap)) {
    const RungTimer timer(counters_, tried, Rung::kHostPlacement);
    *out = PlacedBlocks::instance().place(placement, bytes_to_lines(bytes) * kLineBytes, stream, counters_);
    timer.finish(*out != nullptr);
    if (*out != nullptr) return {};
  }
  tried.note(Rung::kOutOfMemory, true, 0);
  return out_of_memory(tried.requested_bytes, tried);
}

uint32_t Arena::many_mappings() const {
  // Of the views only: the home view alone is large on a large device.
  const uint32_t home = std::min(store_->page_count(), most_mappings_);
  return home + (most_mappings_ - home) / kManyMappingsDivisor;
}

bool Arena::mappings_are_many() const {
  return store_->live_mappings() > many_mappings();
}

uint32_t Arena::pages_to_spare_mappings() const {
  // Near the limit every page is needed, and there is none where others fill the device.
  if (store_->device_is_full()) return 0;
  if (store_->easy_room_pages() < store_->page_count() / kFarFromLimitDivisor) return 0;
  const uint64_t from = many_mappings();
  const uint64_t above = std::min(store_->live_mappings(), most_mappings_) - from;
  const uint64_t needed = store_->page_count() - std::min<uint64_t>(spared_pages_, store_->page_count());
  const uint64_t allowed =
      needed * above / std::max<uint64_t>(most_mappings_ - from, 1) / kMostSparePagesDivisor;
  const uint64_t left = allowed - std::min<uint64_t>(allowed, spared_pages_);
  return static_cast<uint32_t>(std::min(left, store_->easy_room_pages()));
}

Result<Place*> Arena::climb_without_host_wait(Heap& heap, const Request& request, Climb& tried,
                                              bool* crowded) {
  // Queries of events, too, would end another stream's capture.
  const RelaxedCapture relaxed(*driver_);
  const bool completed_frees = heap.has_pending_frees() && heap.complete_finished_frees() > 0;
  Place* found = completed_frees ? heap.take_again(request, true) : heap.slab_with_room(request);
  if (found != nullptr) return found;
  // From here on the driver is called, which is for the arena's context.
  std::optional<ScopedContext> context;
  const auto enter_context = [&]() SPW_REQUIRES(heap.mutex) -> Status {
    if (context.has_value()) return {};
    context.emplace(*driver_, context_.get());
    if (!context->status().ok()) return context->status();
    return has_gone(heap) ? Status::invalid_state("the stream is gone") : Status();
  };
  // A program that repeats itself gets back what other streams took of its place meanwhile, before the
  // request settles elsewhere, displaces others, and nothing ever repeats.
  if (wants_back(heap, request)) {
    if (Status status = enter_context(); !status.ok()) return status;
    if (!is_capturing(heap)) {
      const RungTimer timer(counters_, tried, Rung::kDeviceWait);
      Place* place = nullptr;
      if (heap.complete_free_behind_stream(*heap.expected(request))) place = heap.take_located(request);
      if (place == nullptr) place = borrow_predicted(heap, request);
      timer.finish(place != nullptr);
      if (place != nullptr) return place;
    }
    if (Place* place = heap.take_found(request, true); place != nullptr) return place;
  }
  const bool spare_mappings = mappings_are_many();
  uint32_t spare_pages = spare_mappings ? pages_to_spare_mappings() : 0;
  heap.keep_together(spare_mappings, spare_pages > 0);
  for (bool ordered = false;;) {
    Plan plan = heap.plan(request, spare_pages);
    if (plan.spare_pages > 0 && plan.new_pages > store_->easy_room_pages()) plan = heap.plan(request);
    if (plan.new_pages > 0 || plan.full_pages > request.lines / kPageLines) {
      // A view would not spare a page: any hole will do.
      if (Place* place = heap.take_found(request, false); place != nullptr) return place;
    }
    if (plan.kind != Plan::Kind::kSegment) {
      Place* place = heap.take_window(request, plan.full_pages, spare_mappings);
      if (place != nullptr) return place;
    }
    if (crowded != nullptr && plan.kind == Plan::Kind::kView &&
        store_->live_mappings() + plan.new_pages + plan.full_pages > most_mappings_) {
      *crowded = true;
      return nullptr;
    }
    if (Status status = enter_context(); !status.ok()) return status;
    const uint64_t hard_room = store_->room_pages();
    uint64_t room = ordered ? hard_room : store_->easy_room_pages();
    bool device_is_full = false;
    if (plan.new_pages <= room) {
      const RungTimer timer(counters_, tried, plan.new_pages > 0 ? Rung::kNewPages : Rung::kView);
      Result<Place*> place = heap.take_planned(request, plan);
      timer.finish(place.ok());
      if (place.ok()) spared_pages_ += plan.spare_pages;
      if (place.ok() || place.status().code() != SPW_ERROR_OUT_OF_MEMORY) return place;
      // The device is full although the limit is not reached: others use it too.
      if (plan.spare_pages > 0) {
        spare_pages = 0;
        continue;
      }
      plan = heap.plan(request);
      room = 0;
      device_is_full = true;
    }
    if (ordered) return nullptr;
    ordered = true;
    const bool may_exceed = room < hard_room && !device_is_full;
    if (is_capturing(heap)) {
      if (may_exceed) continue;
      return nullptr;
    }
    const RungTimer timer(counters_, tried, Rung::kDeviceWait);
    const uint32_t shortfall =
        plan.new_pages - static_cast<uint32_t>(std::min<uint64_t>(room, plan.new_pages));
    bool progress = borrow(heap, shortfall) > 0;
    if (heap.has_pending_frees() && !heap.is_replayed) {
      const Result<size_t> completed = heap.complete_frees_behind_stream(request.lines);
      progress = progress || (completed.ok() && completed.value() > 0);
    }
    Place* place = progress ? heap.take_again(request, true) : nullptr;
    timer.finish(progress);
    if (place != nullptr) return place;
    if (!progress && !may_exceed) return nullptr;
  }
}

// ---- Other streams' pages

bool Arena::order_after(Heap& waiter, Heap& earlier, uint64_t epoch) {
  Timeline& timeline = earlier.timeline;
  // What a pool's graphs do when they are replayed, they do after their stream too.
  const bool is_over = !earlier.is_replayed && timeline.is_over();
  if (timeline.is_complete(epoch) || is_over) return true;
  // A graph captured over the waiter's memory may be replayed on streams that wait for nothing.
  if (waiter.is_replayed) return false;
  if (waiter.timeline.has_waited(&timeline, epoch)) return true;
  // What a pool's memory was used by (replays on any stream) and another thread's default stream cannot be
  // reached by an event from here: only a wait for the whole device orders them.
  if (earlier.is_replayed) return false;
  if (earlier.key.thread != 0 && earlier.key.thread != waiter.key.thread) return false;
  if (is_capturing(earlier)) return false;
  bool recorded = false;
  Status closed = timeline.close(*driver_, earlier.key.stream, epoch, &recorded);
  if (recorded) counters_.on_driver_call(DriverCall::kEventRecord);
  if (!closed.ok()) return false;
  counters_.on_driver_call(DriverCall::kStreamWait);
  if (!timeline.event().make_wait(waiter.key.stream).ok()) return false;
  counters_.on_stream_waited();
  waiter.timeline.note_wait(&timeline, timeline.recorded());
  return true;
}

bool Arena::may_have_room(uint64_t pages) {
  if (store_->may_have_room(pages)) return true;
  if (!store_->device_is_full() || store_->easy_room_pages() < pages) return false;
  if (fullness_questions_.fetch_add(1, std::memory_order_relaxed) % kQuestionsPerAnswer != 0) return false;
  const ScopedContext context(*driver_, context_.get());
  size_t free_bytes = 0;
  size_t device_bytes = 0;
  if (!context.status().ok() || driver_->cuMemGetInfo(&free_bytes, &device_bytes) != CUDA_SUCCESS)
    return false;
  if (free_bytes / kPageBytes < pages) return false;
  store_->note_room();
  return true;
}

bool Arena::wants_back(const Heap& heap, const Request& request) {
  const Place* expected = heap.expected(request);
  if (expected == nullptr || may_have_room(bytes_to_pages(expected->bytes()))) return false;
  if (expected->state == BlockState::kPendingFree) return !heap.is_replayed;
  std::vector<PageId> missing;
  heap.pages_missing_from(*expected, missing);
  return !missing.empty() && std::all_of(missing.begin(), missing.end(), [&](PageId id) {
    const Heap* owner = store_->page(id).owner.load(std::memory_order_relaxed);
    return owner != nullptr && owner != &heap;
  });
}

Place* Arena::borrow_predicted(Heap& heap, const Request& request) {
  std::vector<PageId> missing;
  const Place* expected = heap.expected(request);
  if (expected != nullptr) heap.pages_missing_from(*expected, missing);
  if (missing.empty()) return nullptr;
  std::map<Heap*, std::vector<PageId>> by_owner;
  for (const PageId id : missing) {
    Heap* owner = store_->page(id).owner.load(std::memory_order_relaxed);
    if (owner == nullptr || owner == &heap) return nullptr;
    by_owner[owner].push_back(id);
  }
  for (const auto& [owner, pages] : by_owner) {
    const Lock lock(owner->mutex);
    if (owner->keeps_pages) return nullptr;
    const auto vacant = [&, lender = owner](PageId id) {
      lender->mutex.assert_held();  // by `lock`
      return lender->is_vacant(id);
    };
    if (std::all_of(pages.begin(), pages.end(), vacant)) continue;
    // Its frees are looked at only when it needs memory itself.
    if (owner->has_pending_frees()) {
      owner->complete_finished_frees();
      // Another thread's default stream cannot be told from here to wait.
      const bool reachable = owner->key.thread == 0 || owner->key.thread == heap.key.thread;
      if (reachable && !is_capturing(*owner) && !owner->is_closed()) owner->complete_frees_on_pages(pages);
    }
    if (!std::all_of(pages.begin(), pages.end(), vacant)) return nullptr;
  }
  // Another thread may take what was just seen vacant: what is left is lent, and the request searched for
  // again.
  for (auto& [owner, pages] : by_owner) {
    const Lock lock(owner->mutex);
    std::erase_if(pages, [&, lender = owner](PageId id) {
      lender->mutex.assert_held();  // by `lock`
      return !lender->is_vacant(id);
    });
    lend(*owner, heap, pages);
  }
  return heap.take_again(request, true);
}

uint32_t Arena::lend(Heap& lender, Heap& heap, const std::vector<PageId>& pages) {
  uint64_t epoch = 0;
  for (const PageId id : pages) epoch = std::max(epoch, lender.last_use(id));
  if (pages.empty() || !order_after(heap, lender, epoch)) return 0;
  heap.receive(lender, pages);
  return static_cast<uint32_t>(pages.size());
}

uint32_t Arena::borrow(Heap& heap, uint32_t wanted) {
  uint32_t borrowed = 0;
  for (Heap* lender : heaps()) {
    if (borrowed >= wanted) break;
    if (lender == &heap || &lender->store() != store_.get()) continue;
    const Lock lock(lender->mutex);
    std::vector<PageId> pages;
    if (lender->keeps_pages) {
      lender->list_leavable(pages);
      pages.resize(std::min<size_t>(pages.size(), wanted - borrowed));
    } else {
      if (lender->has_pending_frees()) lender->complete_finished_frees();
      lender->release_empty_slabs();
      lender->choose_vacant(wanted - borrowed, pages);
    }
    uint32_t lent = lend(*lender, heap, pages);
    if (lent == 0 && !pages.empty()) {
      // Where the two cannot be ordered, what the host has waited for needs no order.
      pages.clear();
      lender->list_leavable(pages);
      std::erase_if(pages, [&](PageId id) {
        lender->mutex.assert_held();  // by `lock`
        return !lender->timeline.is_complete(lender->last_use(id));
      });
      pages.resize(std::min<size_t>(pages.size(), wanted - borrowed));
      lent = lend(*lender, heap, pages);
    }
    borrowed += lent;
  }
  return borrowed;
}

// ---- Waits on the host

bool Arena::wait_for_frees(Heap& heap) {
  std::vector<CUevent> events;
  {
    const Lock lock(heap.mutex);
    if (is_capturing(heap)) return false;
    heap.list_pending_events(events);
  }
  if (events.empty()) return false;
  // Waiting, too, would end another stream's capture.
  const RelaxedCapture relaxed(*driver_);
  for (const CUevent event : events) {
    counters_.on_driver_call(DriverCall::kSynchronize);
    counters_.on_host_wait();
    if (driver_->cuEventSynchronize(event) != CUDA_SUCCESS) return false;
  }
  return true;
}

bool Arena::wait_for_device(const Heap& heap) {
  const std::vector<Heap*> all = heaps();
  bool helps = !store_->uses_vmm();
  {
    const ArenaLock lock(mutex_);
    helps = helps || shared_.has_idle();
  }
  for (Heap* each : all) {
    const Lock lock(each->mutex);
    if (is_capturing(*each)) return false;
    helps = helps || each->has_pending_frees() || (all.size() > 1 && each->vacant_pages() > 0);
  }
  if (!helps) return false;
  const RelaxedCapture relaxed(*driver_);
  // What the heap itself frees it uses in its stream's order. Of segments the empty ones are looked for.
  std::vector<Heap*> freeing = all;
  if (store_->uses_vmm()) std::erase(freeing, &heap);
  if (!synchronize_with_frees(all, freeing).ok()) return false;
  {
    const ArenaLock lock(mutex_);
    (void)shared_.release_idle();
    update_most_pages();
    // Segments cannot be pieced together: empty ones go back, and the request gets one of its own.
    if (!store_->uses_vmm()) (void)release_vacant_pages(all);
  }
  return_segments();
  return true;
}

bool Arena::retire_views() {
  const std::vector<Heap*> all = heaps();
  if (any_capturing(all)) return false;
  {
    const ArenaLock lock(mutex_);
    const AllLocked locked(all);
    std::unordered_map<const View*, uint64_t> ages;
    for (const Heap* heap : all) {
      heap->mutex.assert_held();  // by `locked`
      heap->for_each_view_used([&](const View* view, uint64_t age) {
        const auto [found, is_new] = ages.emplace(view, age);
        if (!is_new) found->second = std::min(found->second, age);
      });
    }
    std::vector<std::pair<uint64_t, View*>> by_age;
    store_->for_each_view([&](View& view) {
      const auto found = ages.find(&view);
      const uint64_t age = found == ages.end() ? UINT64_MAX : found->second;
      if (age > 0) by_age.emplace_back(age, &view);
    });
    std::sort(by_age.begin(), by_age.end(), std::greater<>());
    // Those used last are wanted again by a program that repeats itself.
    std::vector<View*> unused;
    const uint32_t too_many = options_.most_mappings / kRetiredDivisor;
    uint32_t old = 0;
    for (const auto& [age, view] : by_age) {
      if (old >= options_.most_mappings / 2) break;
      old += view->mapped;
      unused.push_back(view);
    }
    // Every call that unmaps is a wait, and one unmaps views that lie side by side: the longest runs go
    // first.
    std::sort(unused.begin(), unused.end(), [](const View* a, const View* b) { return a->va < b->va; });
    struct Run {
      uint32_t mapped = 0;
      size_t first = 0;
      size_t end = 0;
    };
    std::vector<Run> runs;
    for (size_t i = 0; i < unused.size(); ++i) {
      if (i == 0 || unused[i - 1]->end_va() != unused[i]->va) runs.push_back({0, i, i});
      runs.back().mapped += unused[i]->mapped;
      runs.back().end = i + 1;
    }
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.mapped > b.mapped; });
    const uint32_t enough = most_mappings_ - std::min(most_mappings_, too_many);
    uint32_t left = store_->live_mappings();
    for (const Run& run : runs) {
      if (left <= enough) break;
      left -= run.mapped;
      for (size_t i = run.first; i < run.end; ++i) {
        unused[i]->retired = true;
        unused[i]->lose_places();
      }
    }
    // Views that are all in use: no further wait before there are many more.
    most_mappings_ = std::max(options_.most_mappings, left + too_many);
  }
  bool everything = false;
  if (!synchronize(all, &everything).ok() || !everything) return false;
  const RelaxedCapture relaxed(*driver_);
  const ArenaLock lock(mutex_);
  return store_->unmap_retired().ok();
}

Status Arena::out_of_memory(uint64_t requested_bytes, const Climb& tried) {
  counters_.on_rung(Rung::kOutOfMemory, true, 0);
  counters_.trace(TraceKind::kOutOfMemory, 0, requested_bytes, 0);
  return Status::out_of_memory(oom_text(requested_bytes, tried));
}

}  // namespace spillway
