#include "allocator/ladder.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "allocator/host_blocks.h"
#include "driver/capture.h"

namespace spillway {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Counts a rung when it has been tried.
class RungTimer {
 public:
  RungTimer(DeviceCounters& counters, SlowPath& tried) : counters_(counters), tried_(tried) {}
  void finish(Rung rung, bool served) const {
    const int64_t time_ns = now_ns() - start_ns_;
    counters_.on_rung(rung, served, time_ns);
    tried_.note(rung, served, time_ns);
  }

 private:
  DeviceCounters& counters_;
  SlowPath& tried_;
  const int64_t start_ns_ = now_ns();
};

// Holes that break a page are left for later where a view might spare it; segments of a source have no views.
bool is_frugal(const Heap& heap) {
  return !heap.is_sourced();
}

}  // namespace

// ---- The table

const Ladder::Row Ladder::kUnderLocks[] = {
    {Rung::kCount, Memory::kAny, Turns::kOnce, true, nullptr, &Ladder::complete_frees},
    // A program that repeats itself gets back what other streams took of its range meanwhile, before the
    // request settles elsewhere, displaces others, and nothing ever repeats.
    // mutant: captured-takes-back
    {Rung::kDeviceWait, Memory::kDevice, Turns::kOnce, false, &Ladder::wants_back, &Ladder::take_back},
    {Rung::kCount, Memory::kDevice, Turns::kOnce, true, &Ladder::wanted_back, &Ladder::settle_elsewhere},
    // A capture begins with a wait that leaves others' free memory where it is, see Arena::settle.
    {Rung::kCount, Memory::kDevice, Turns::kOnce, true, &Ladder::is_captured_pool, &Ladder::take_settled},
    {Rung::kNewPages, Memory::kDevice, Turns::kOnce, true, nullptr, &Ladder::map_within_soft_limit},
    // mutant: captured-borrows
    {Rung::kDeviceWait, Memory::kDevice, Turns::kOnce, false, nullptr, &Ladder::wait_on_device},
    {Rung::kNewPages, Memory::kDevice, Turns::kOnce, true, &Ladder::has_more_room, &Ladder::map_within_limit},
    {Rung::kCount, Memory::kSource, Turns::kOnce, true, nullptr, &Ladder::search_segments},
};

const Ladder::Row Ladder::kWithoutLocks[] = {
    {Rung::kHostWait, Memory::kDevice, Turns::kWhileItGives, true, &Ladder::has_too_many_views,
     &Ladder::retire_views},
    {Rung::kHostWait, Memory::kDevice, Turns::kOnce, false, &Ladder::waits_for_view, &Ladder::wait_for_view},
    {Rung::kCount, Memory::kSource, Turns::kWhileItGives, true, nullptr, &Ladder::grow_source},
    {Rung::kHostWait, Memory::kAny, Turns::kOncePerGift, false, nullptr, &Ladder::wait_for_frees},
    {Rung::kHostWait, Memory::kDevice, Turns::kOncePerGift, false, nullptr, &Ladder::wait_for_device},
    {Rung::kCount, Memory::kSource, Turns::kOnce, false, nullptr, &Ladder::trim},
    {Rung::kEvict, Memory::kDevice, Turns::kWhileItGives, false, &Ladder::may_ask_others,
     &Ladder::ask_others},
    {Rung::kCallback, Memory::kDevice, Turns::kOnce, false, &Ladder::may_ask_others, &Ladder::take_lent},
    {Rung::kHostPlacement, Memory::kDevice, Turns::kOnce, false, &Ladder::may_ask_others,
     &Ladder::place_outside},
};

// ---- The climb

Result<Ladder::Served> Ladder::climb(Heap& heap, const Request& request, uint64_t bytes, SlowPath& tried) {
  // Streams and events of a device that the program has reset are not to be touched.
  if (Status alive = parts_.context.check_alive(); !alive.ok()) return alive;
  Miss miss{heap, request, bytes, tried};
  miss.may_map_view = !parts_.options.careful;
  for (;;) {
    Result<Outcome> outcome = climb_under_locks(miss);
    // Only trying tells that the device is full below the limit: others' free memory makes up for that in a
    // round that knows.
    const bool missed = outcome.ok() && outcome.value() != Outcome::kServed;
    if (missed && miss.round.device_is_full && !std::exchange(miss.has_met_full_device, true))
      outcome = climb_under_locks(miss);
    if (outcome.ok() && outcome.value() != Outcome::kServed) outcome = climb_without_locks(miss);
    if (!outcome.ok()) return outcome.take_status();
    if (outcome.value() != Outcome::kHelped) return std::move(miss.served);
  }
}

CachedRange* Ladder::take_from_heap(Heap& heap, const Request& request, SlowPath& tried) {
  heap.note_unserved(request);
  heap.predictor().prefetch(request);
  const bool may_complete = !heap.pending().empty();
  if (may_complete) {
    const RelaxedCapture relaxed(*parts_.driver);
    const RungTimer timer(parts_.counters, tried);
    timer.finish(Rung::kCompletedFrees, heap.complete_finished_frees() > 0);
  }
  // A slot that came free meanwhile, or just now, needs no new slab.
  CachedRange* range = heap.slab_with_room(request);
  if (range == nullptr && !may_complete) range = heap.take_close_fit(request);
  if (range == nullptr) {
    range = may_complete ? heap.take_located(request) : heap.take_searched(request);
    if (range == nullptr) heap.note_miss(request);
  }
  // A slab kept for later must not displace what is expected now.
  if (range == nullptr && heap.release_empty_slabs() > 0) range = heap.take_located(request);
  // The commonest miss: the heap has room, only not where it was expected.
  if (range == nullptr && (heap.is_sourced() || !borrowing_.wants_back(heap, request)))
    range = heap.take_found(request, is_frugal(heap));
  return range;
}

Result<Ladder::Outcome> Ladder::attempt(const Row& row, Miss& miss) {
  miss.rung = row.rung;
  const RungTimer timer(parts_.counters, miss.tried);
  Result<Outcome> outcome = (this->*row.attempt)(miss);
  const bool was_tried = !outcome.ok() || outcome.value() != Outcome::kSkipped;
  if (miss.rung != Rung::kCount && was_tried)
    timer.finish(miss.rung, outcome.ok() && outcome.value() != Outcome::kInVain);
  return outcome;
}

void Ladder::begin_round(Miss& miss) {
  miss.round = {};
}

Result<Ladder::Outcome> Ladder::climb_under_locks(Miss& miss) {
  const Memory memory = miss.heap.is_sourced() ? Memory::kSource : Memory::kDevice;
  const ArenaLock arena_lock(parts_.mutex);
  HeapLock lock(miss.heap.mutex);
  // Queries of events, too, would end another stream's capture.
  const RelaxedCapture relaxed(*parts_.driver);
  begin_round(miss);
  std::optional<bool> captured;
  const auto is_captured = [&] {
    miss.heap.mutex.assert_held();  // by `lock`
    if (!captured.has_value()) captured = heaps_.is_capturing(miss.heap);
    return *captured;
  };
  for (const Row& row : kUnderLocks) {
    if (row.memory != Memory::kAny && row.memory != memory) continue;
    if (row.applies != nullptr && !(this->*row.applies)(miss)) continue;
    if (!row.under_capture && is_captured()) continue;
    Result<Outcome> outcome = attempt(row, miss);
    if (!outcome.ok() || outcome.value() == Outcome::kServed) {
      miss.context.reset();
      if (outcome.ok() && miss.has_waited) parts_.counters.on_alloc_retry();
      if (outcome.ok()) miss.served.taken.lock = std::move(lock);
      return outcome;
    }
    if (miss.round.too_many_views || miss.round.waits_for_view) break;
  }
  miss.context.reset();
  return Outcome::kInVain;
}

Result<Ladder::Outcome> Ladder::climb_without_locks(Miss& miss) {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  bool is_captured = false;
  {
    const Lock lock(miss.heap.mutex);
    if (heaps_.named_has_gone(miss.heap)) return Status::invalid_state("the stream is gone");
    is_captured = heaps_.is_capturing(miss.heap);
  }
  const Memory memory = miss.heap.is_sourced() ? Memory::kSource : Memory::kDevice;
  for (size_t at = 0; at < std::size(kWithoutLocks); ++at) {
    const Row& row = kWithoutLocks[at];
    const uint32_t turn = 1u << at;
    if (row.memory != Memory::kAny && row.memory != memory) continue;
    if ((miss.spent_turns & turn) != 0 || (is_captured && !row.under_capture)) continue;
    if (row.applies != nullptr && !(this->*row.applies)(miss)) continue;
    Result<Outcome> outcome = attempt(row, miss);
    if (!outcome.ok() || outcome.value() == Outcome::kServed) return outcome;
    const bool helped = outcome.value() == Outcome::kHelped;
    if (row.turns == Turns::kOnce || (row.turns == Turns::kOncePerGift && helped)) miss.spent_turns |= turn;
    if (!helped) continue;
    // What was given may still be in use by other streams.
    if (row.turns == Turns::kWhileItGives) {
      for (size_t other = 0; other < std::size(kWithoutLocks); ++other) {
        if (kWithoutLocks[other].turns == Turns::kOncePerGift) miss.spent_turns &= ~(1u << other);
      }
    }
    return outcome;
  }
  return Outcome::kInVain;
}

// ---- Rungs under locks

Result<Ladder::Outcome> Ladder::complete_frees(Miss& miss) {
  const bool completed = !miss.heap.pending().empty() && miss.heap.complete_finished_frees() > 0;
  return miss.serve(completed ? miss.heap.take_again(miss.request, is_frugal(miss.heap))
                              : miss.heap.slab_with_room(miss.request));
}

bool Ladder::wants_back(Miss& miss) {
  return miss.round.wanted_back = borrowing_.wants_back(miss.heap, miss.request);
}

Result<Ladder::Outcome> Ladder::take_back(Miss& miss) {
  if (Status status = enter_context(miss); !status.ok()) return status;
  CachedRange* range = nullptr;
  if (miss.heap.pending().complete_range_behind(miss.heap.key.stream,
                                                *miss.heap.predictor().expected(miss.request)))
    range = miss.heap.take_located(miss.request);
  return miss.serve(range != nullptr ? range : borrowing_.take_expected(miss.heap, miss.request));
}

Result<Ladder::Outcome> Ladder::settle_elsewhere(Miss& miss) {
  return miss.serve(miss.heap.take_found(miss.request, true));
}

bool Ladder::is_captured_pool(Miss& miss) {
  return miss.heap.use.is_replayed && heaps_.is_capturing(miss.heap);
}

Result<Ladder::Outcome> Ladder::take_settled(Miss& miss) {
  const uint64_t wanted = miss.heap.plan(miss.request).new_pages;
  // A pool that is replayed is lent what the host has waited for, and nothing else.
  if (wanted == 0 || borrowing_.borrow(miss.heap, static_cast<uint32_t>(wanted)) == 0)
    return Outcome::kSkipped;
  const Outcome outcome = miss.serve(miss.heap.take_again(miss.request, true));
  return outcome == Outcome::kServed ? outcome : Outcome::kSkipped;
}

Result<Ladder::Outcome> Ladder::map_within_soft_limit(Miss& miss) {
  miss.round.is_strained = views_.is_strained();
  miss.round.pages_to_spend = miss.round.is_strained ? views_.pages_to_spend() : 0;
  miss.heap.keep_together(miss.round.is_strained, miss.round.pages_to_spend > 0);
  if (miss.heap.spends_pages()) {
    miss.round.is_strained = true;
    miss.round.pages_to_spend =
        std::max(miss.round.pages_to_spend, views_.pages_to_buy(miss.heap, miss.request));
  }
  return map(miss, parts_.store->easy_room_pages());
}

CachedRange* Ladder::take_instead(Miss& miss, const Plan& plan) {
  const Request& request = miss.request;
  // A view would not spare a page: any hole will do.
  if (plan.new_pages > 0 || plan.whole_pages() > request.quanta / kPageQuanta) {
    if (CachedRange* range = miss.heap.take_found(request, false); range != nullptr) return range;
  }
  if (plan.kind == Plan::Kind::kSegment) return nullptr;
  return miss.heap.reuse_view(request, plan.whole_pages(), miss.round.is_strained);
}

Result<Ladder::Outcome> Ladder::map(Miss& miss, uint64_t room) {
  const Request& request = miss.request;
  miss.rung = Rung::kCount;  // what needs no call of the driver is no rung
  for (;;) {
    Plan plan = miss.heap.plan(request, miss.round.pages_to_spend);
    if (plan.spare_pages > 0 && plan.new_pages > parts_.store->easy_room_pages())
      plan = miss.heap.plan(request);
    if (CachedRange* range = take_instead(miss, plan); range != nullptr) return miss.serve(range);
    const bool is_view = plan.kind == Plan::Kind::kView;
    // Under capture there is no wait.
    if (is_view && !miss.may_map_view && !heaps_.is_capturing(miss.heap)) {
      miss.round.waits_for_view = true;
      return Outcome::kSkipped;
    }
    if (is_view && miss.may_retire_views && !views_.has_room(plan.new_pages + plan.full_pages)) {
      miss.round.too_many_views = true;
      return Outcome::kSkipped;
    }
    if (Status status = enter_context(miss); !status.ok()) return status;
    if (plan.new_pages > room) {
      // Where others fill the device, or what stays free on it is left, the limit's room is none.
      miss.round.missing_pages = plan.new_pages - (parts_.store->device_is_full() ? 0 : room);
      return Outcome::kSkipped;
    }
    miss.rung = plan.new_pages > 0 ? Rung::kNewPages : Rung::kView;
    Result<CachedRange*> range = miss.heap.take_planned(request, plan);
    if (range.ok()) {
      views_.on_spent(plan.spare_pages);
      return miss.serve(range.value());
    }
    if (range.status().code() != SPW_ERROR_OUT_OF_MEMORY) return range.take_status();
    // No page was wanted, only room for the entries of page tables: views that lie unused have some.
    if (plan.new_pages == 0 && miss.may_retire_views) {
      miss.round.too_many_views = miss.round.lacks_page_tables = true;
      return Outcome::kSkipped;
    }
    // The device is full although the limit is not reached: others use it too.
    if (plan.spare_pages > 0) {
      miss.round.pages_to_spend = 0;
      continue;
    }
    miss.round.missing_pages = miss.heap.plan(request).new_pages;
    miss.round.device_is_full = true;
    return Outcome::kInVain;
  }
}

Result<Ladder::Outcome> Ladder::wait_on_device(Miss& miss) {
  bool found = borrowing_.borrow(miss.heap, static_cast<uint32_t>(miss.round.missing_pages)) > 0;
  if (!miss.heap.pending().empty() && !miss.heap.use.is_replayed) {  // mutant: pool-behind
    const Result<size_t> completed =
        miss.heap.pending().complete_behind(miss.heap.key.stream, miss.request.quanta);
    found = found || (completed.ok() && completed.value() > 0);
  }
  miss.round.found_pages = found;
  if (!found) return Outcome::kInVain;
  const Outcome outcome = miss.serve(miss.heap.take_again(miss.request, true));
  return outcome == Outcome::kServed ? outcome : Outcome::kHelped;
}

bool Ladder::has_more_room(Miss& miss) {
  const bool may_exceed = parts_.store->easy_room_pages() < parts_.store->room_pages();
  return miss.round.found_pages || (may_exceed && !miss.round.device_is_full);
}

Result<Ladder::Outcome> Ladder::map_within_limit(Miss& miss) {
  return map(miss, parts_.store->room_pages());
}

Result<Ladder::Outcome> Ladder::search_segments(Miss& miss) {
  CachedRange* range = miss.heap.take_again(miss.request, is_frugal(miss.heap));
  if (range == nullptr && miss.heap.release_empty_slabs() > 0)
    range = miss.heap.take_again(miss.request, is_frugal(miss.heap));
  return miss.serve(range);
}

Status Ladder::enter_context(Miss& miss) {
  if (miss.context.has_value()) return {};
  miss.context.emplace(*parts_.driver, parts_.context.get());
  if (!miss.context->status().ok()) return miss.context->status();
  return heaps_.named_has_gone(miss.heap) ? Status::invalid_state("the stream is gone") : Status();
}

// ---- Rungs without locks

bool Ladder::has_too_many_views(Miss& miss) {
  return miss.round.too_many_views;
}

Result<Ladder::Outcome> Ladder::retire_views(Miss& miss) {
  miss.may_retire_views = false;
  miss.rung = Rung::kCount;  // counted here: the next round begins even where none went
  const RungTimer timer(parts_.counters, miss.tried);
  timer.finish(Rung::kHostWait, views_.retire_views(miss.round.lacks_page_tables));
  return Outcome::kHelped;
}

Result<Ladder::Outcome> Ladder::wait_for_view(Miss& miss) {
  if (Status status = waits_.synchronize(heaps_.all()); !status.ok()) return status;
  miss.may_map_view = true;
  return Outcome::kHelped;
}

Result<Ladder::Outcome> Ladder::grow_source(Miss& miss) {
  const RelaxedCapture relaxed(*parts_.driver);
  Result<bool> grown = sources_.grow(miss.heap, miss.request);
  if (!grown.ok()) return grown.take_status();
  return grown.value() ? Outcome::kHelped : Outcome::kInVain;
}

Result<Ladder::Outcome> Ladder::wait_for_frees(Miss& miss) {
  if (!waits_.wait_for_pending_frees(miss.heap)) return Outcome::kSkipped;
  miss.has_waited = true;
  return Outcome::kHelped;
}

Result<Ladder::Outcome> Ladder::wait_for_device(Miss& miss) {
  const std::vector<Heap*> all = heaps_.all();
  const bool has_views = parts_.store->uses_vmm();
  bool helps = !has_views;
  {
    const ArenaLock lock(parts_.mutex);
    helps = helps || parts_.shared.has_idle();
  }
  for (Heap* each : all) {
    const Lock lock(each->mutex);
    if (heaps_.is_capturing(*each)) return Outcome::kSkipped;  // mutant: rung-captures
    helps = helps || !each->pending().empty() || (all.size() > 1 && each->pages().free_count() > 0);
  }
  if (!helps) return Outcome::kSkipped;
  const RelaxedCapture relaxed(*parts_.driver);
  // What the heap itself frees, it uses in its stream's order. Of segments the empty ones are looked for.
  std::vector<Heap*> freeing = all;
  if (has_views) std::erase(freeing, &miss.heap);
  if (!waits_.synchronize_with_frees(all, freeing).ok()) return Outcome::kSkipped;  // mutant: rung-waits
  {
    const ArenaLock lock(parts_.mutex);
    (void)parts_.shared.release_idle();
    parts_.update_most_pages();
    // Segments cannot be pieced together: empty ones go back, and the request gets one of its own.
    if (!has_views) (void)trimming_.release_free_pages(all);
  }
  sources_.return_segments();
  miss.has_waited = true;
  return Outcome::kHelped;
}

// What the device has may be in the hands of the other heaps.
Result<Ladder::Outcome> Ladder::trim(Miss& miss) {
  if (!trimming_.trim().ok()) return Outcome::kInVain;
  miss.has_waited = true;
  return Outcome::kHelped;
}

bool Ladder::may_ask_others(Miss& miss) {
  if (LastRungs::is_inside()) return false;
  const Lock lock(miss.heap.mutex);
  return !heaps_.named_has_gone(miss.heap) && !heaps_.is_capturing(miss.heap);
}

Result<Ladder::Outcome> Ladder::ask_others(Miss& miss) {
  miss.rung = Rung::kCount;  // each is counted here
  if (!miss.others.has_value()) miss.others = parts_.last_rungs.list();
  while (!miss.others->empty() && miss.gifts_asked < LastRungs::kMostRounds) {
    ++miss.gifts_asked;
    LastRungs::Entry& other = *miss.others->front();
    const RungTimer timer(parts_.counters, miss.tried);
    const bool gave = other.call(missing_bytes(miss)) > 0;
    timer.finish(other.rung, gave);
    if (gave) {
      miss.has_waited = true;
      return Outcome::kHelped;
    }
    miss.others->erase(miss.others->begin());
  }
  return Outcome::kInVain;
}

uint64_t Ladder::missing_bytes(Miss& miss) {
  const ArenaLock arena_lock(parts_.mutex);
  const Lock lock(miss.heap.mutex);
  const Plan plan = miss.heap.plan(miss.request);
  const uint64_t most = bytes_to_pages(uint64_t{miss.request.quanta} * kQuantumBytes);
  const uint64_t pages = plan.kind == Plan::Kind::kNone ? most : plan.new_pages;
  // Room within the limit is none where the device is full.
  const uint64_t room = parts_.store->device_is_full() ? 0 : parts_.store->room_pages();
  return std::max<uint64_t>(pages > room ? pages - room : pages, 1) * kPageBytes;
}

// A range in what a pool with a source has free for the same stream, where that pool lends; it is the pool's
// again after its free.
Result<Ladder::Outcome> Ladder::take_lent(Miss& miss) {
  const RelaxedCapture relaxed(*parts_.driver);
  const ArenaLock lock(parts_.mutex);
  if (miss.heap.key.pool.is_private()) return Outcome::kSkipped;
  for (Heap* lender : heaps_.all()) {
    const bool is_of_stream = static_cast<const StreamIdentity&>(lender->key) == miss.heap.key;
    if (!lender->is_sourced() || lender->is_closed() || !is_of_stream) continue;
    const Pool* pool = parts_.pools.find(lender->key.pool);
    if (pool == nullptr || pool->source() == nullptr || !pool->lends()) continue;
    if (!parts_.may_serve(*lender, pool->id)) continue;
    HeapLock lender_lock(lender->mutex);
    if (!lender->pending().empty()) lender->complete_finished_frees();
    CachedRange* range = lender->take_again(miss.request, false);
    if (range == nullptr && lender->release_empty_slabs() > 0)
      range = lender->take_again(miss.request, false);
    if (miss.serve(range) != Outcome::kServed) continue;
    miss.served.taken.lock = std::move(lender_lock);
    return Outcome::kServed;
  }
  return Outcome::kSkipped;
}

Result<Ladder::Outcome> Ladder::place_outside(Miss& miss) {
  const std::shared_ptr<const HostPlacement> placement = parts_.last_rungs.placement();
  if (placement == nullptr) return Outcome::kSkipped;
  CUstream stream = nullptr;
  {
    const Lock lock(miss.heap.mutex);  // under which another stream may take the heap over
    if (heaps_.named_has_gone(miss.heap)) return Status::invalid_state("the stream is gone");
    stream = miss.heap.key.stream;
  }
  miss.served.outside = HostBlocks::instance().place(placement, bytes_to_quanta(miss.bytes) * kQuantumBytes,
                                                     stream, parts_.counters);
  return miss.served.outside == nullptr ? Outcome::kInVain : Outcome::kServed;
}

}  // namespace spillway
