#include "allocator/heap.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <utility>

#include "allocator/address_map.h"

namespace spillway {
namespace {

// Pages are spent while so large a part of what is held could still be added: a program that needs them all
// is served frugally in time.
constexpr uint32_t kPlentyDivisor = 64;

Status no_live_block(const char* what, uint64_t va) {
  return Status::invalid_pointer(fmt::format("{} of {:#x}: no live block begins there", what, va));
}

}  // namespace

Heap::Heap(PageStore& store, DeviceCounters& device_counters, EventPool& events, const Driver& driver,
           CUcontext context, const HeapKey& heap_key, std::atomic<const SequencePredictor*>& leader,
           BlockGrain grain)
    : counters(device_counters),
      key(heap_key),
      store_(store),
      grain_(grain),
      pages_(store, *this, grain),
      predictor_(leader),
      slabs_(pages_, timeline, counters),
      pending_(driver, context, store.device(), events, device_counters,
               [this](CachedRange& range, uint32_t slot) {
                 mutex.assert_held();  // by whoever completes frees
                 complete_free(range, slot);
               }) {
  counters.set_stream(std::bit_cast<uint64_t>(key.stream));
}

// ---- Whose it is

void Heap::close(bool covered) {
  timeline.seal(covered);
  life.is_over.store(true, std::memory_order_relaxed);
}

void Heap::take_over(const HeapKey& by) {
  key = by;
  counters.set_stream(std::bit_cast<uint64_t>(key.stream));
  life.thread_ended = by.thread == 0 ? nullptr : thread_has_ended();
  timeline.reopen();
  pending_.restart(timeline.epoch());
  life.is_over.store(false, std::memory_order_relaxed);
  ranges_.serve_pool_since(predictor_.now());
}

void Heap::serve_pool(PoolId pool) {
  key.pool = pool;
  ranges_.serve_pool_since(predictor_.now());
}

void Heap::pool_released() {
  use.keeps_pages = false;
  release_empty_slabs();
  ranges_.for_each([](CachedRange& range) { range.is_saved = false; });
  // Replays of a graph stamp nothing: only a wait from now on says that they are over.
  pages_.stamp_all(timeline.epoch());  // mutant: stamp-released
}

void Heap::count_for(spw_stat* pool_bytes) {
  if (pool_bytes == pool_bytes_) return;
  const auto bytes = static_cast<int64_t>(pages_.owned() * kPageBytes);
  count_in_pool(-bytes);
  pool_bytes_ = pool_bytes;
  count_in_pool(bytes);
}

void Heap::count_in_pool(int64_t bytes) {
  if (pool_bytes_ != nullptr && bytes != 0) add_bytes(*pool_bytes_, bytes);
}

// ---- Requests

Request Heap::large_request(uint64_t bytes) const {
  // At least a granule: the address map has one entry for each, whatever the limit of small requests.
  uint64_t quanta = std::max(bytes_to_quanta(bytes), kGranuleBytes / kQuantumBytes);
  const bool has_whole_pages =
      grain_ == BlockGrain::kPage ? quanta >= kPageQuanta : grain_ == BlockGrain::kSegment;
  if (has_whole_pages) quanta = bytes_to_pages(bytes) * kPageQuanta;
  return {static_cast<uint32_t>(quanta), 1};
}

inline void* Heap::take_slot(uint32_t size_class, uint64_t requested_bytes) {
  const uint64_t va = slabs_.take_slot(size_class, requested_bytes);
  counters.on_allocate(SizePool::kSmall, requested_bytes, kClassBytes[size_class], 0, 0, va);
  return reinterpret_cast<void*>(va);
}

void* Heap::allocate_small(uint32_t size_class, uint64_t requested_bytes) {
  Slab* slab = slabs_.with_room(size_class);
  if (slab == nullptr) return nullptr;
  if (slabs_.is_empty(size_class, *slab)) {
    const bool reopens = predictor_.reopens(size_class, slab->range, [this](const CachedRange& range) {
      mutex.assert_held();  // by this function
      return pages_.fits(range);
    });
    if (!reopens) {
      slabs_.release(*slab);
      return nullptr;
    }
  }
  return take_slot(size_class, requested_bytes);
}

CachedRange* Heap::slab_with_room(const Request& request) const {
  const Slab* slab = request.is_for_slab() ? slabs_.with_room(request.size_class) : nullptr;
  return slab == nullptr ? nullptr : slab->range;
}

CachedRange* Heap::take_predicted(const Request& request) {
  CachedRange* range = predictor_.guess(request);
  return range != nullptr && pages_.take(*range) ? serve(request, range) : nullptr;
}

CachedRange* Heap::take_located(const Request& request) {
  CachedRange* range = predictor_.guess_again(request);
  return range != nullptr && pages_.take(*range) ? serve(request, range) : take_searched(request);
}

CachedRange* Heap::take_searched(const Request& request) {
  CachedRange* range = predictor_.locate(request);
  return range != nullptr && pages_.take(*range) ? serve(request, range) : nullptr;
}

void Heap::note_unserved(const Request& request) {
  purchase_.note_request(request.quanta, predictor_.now());
}

void Heap::note_miss(const Request& request) {
  if (!request.is_for_slab()) predictor_.note_miss(request.quanta);
}

Heap::Placement Heap::placement() const {
  const bool is_asleep = predictor_.is_asleep();
  if (!is_asleep && !predictor_.misses_often()) return Placement::kFrugal;
  const bool may_spend = grain_ != BlockGrain::kSegment && !is_sourced() && !use.keeps_pages;
  if (!may_spend || store_.slack_percent() <= 0) return Placement::kFrugal;
  // What small blocks lose at the closest fit is more than their views cost, unless there is memory for it:
  // as much as is held could be added again.
  const bool asks_for_large = purchase_.spares_mappings(predictor_.now());
  if (!asks_for_large && !purchase_.spared_mappings()) return Placement::kFrugal;
  const uint32_t wanted = asks_for_large ? store_.page_count() / kPlentyDivisor : store_.page_count();
  if (!store_.may_have_room(1 + wanted)) return Placement::kFrugal;
  return is_asleep && asks_for_large ? Placement::kSpending : Placement::kClose;
}

CachedRange* Heap::take_close_fit(const Request& request) {
  const Placement now = placement();
  if (now == Placement::kFrugal || predictor_.is_time_to_look()) return nullptr;
  // The program is awake, and is not where it was thought to be: a look will tell.
  if (!predictor_.is_asleep() && predictor_.guess(request) == nullptr) return nullptr;
  if (now == Placement::kSpending)
    purchase_.note_need(counters.active_bytes() + uint64_t{request.quanta} * kQuantumBytes);
  std::optional<Layout> found = pages_.find_close_fit(request);
  if (!found.has_value()) return nullptr;
  note_miss(request);
  return settle(request, std::move(*found), now);
}

CachedRange* Heap::take_same_size(const Request& request) {
  const auto mark_expected = [&] {
    mutex.assert_held();  // by this function
    return predictor_.mark_expected();
  };
  CachedRange* range = ranges_.best_of_size(request.quanta, mark_expected, [&](const CachedRange& candidate) {
    mutex.assert_held();  // by this function
    return candidate.va % (request.align_quanta * kQuantumBytes) == 0 && pages_.fits(candidate);
  });
  return range != nullptr && pages_.take(*range) ? serve(request, range) : nullptr;
}

CachedRange* Heap::take_found(const Request& request, bool frugal) {
  if (grain_ == BlockGrain::kSegment) return take_segment(request);
  const Placement now = placement();
  // Where nothing comes around and large blocks are asked for too, small ones that are spread break the pages
  // which those need.
  const bool packs_low = predictor_.is_asleep() && purchase_.spares_mappings(predictor_.now());
  if (now == Placement::kFrugal) {
    if (!packs_low) pages_.forget_holes();
  } else if (request.is_for_slab() || request.align_quanta == 1) {
    std::optional<Layout> found = pages_.find_close_fit(request);
    return found.has_value() ? settle(request, std::move(*found), now) : nullptr;
  }
  // For a program that is not known to repeat itself, the remembered range of a small block says nothing: the
  // best fit keeps free bytes together. For large blocks it spares a view.
  const bool small = request.quanta < kPageQuanta;
  if (predictor_.remembers() && (!small || predictor_.repeats())) {
    if (CachedRange* range = take_same_size(request)) return range;
  }
  std::optional<Layout> found;
  if (small) found = packs_low ? pages_.find_low_fragment(request) : pages_.find_fragment(request);
  if (!found.has_value()) found = pages_.find_hole(request, frugal);
  return found.has_value() ? settle(request, std::move(*found), now) : nullptr;
}

CachedRange* Heap::take_segment(const Request& request) {
  if (request.is_for_slab()) return nullptr;
  const std::optional<PageRun> segment = pages_.find_segment(request);
  if (!segment.has_value()) return nullptr;
  const uint32_t quanta = segment->count * kPageQuanta;
  Layout layout = pages_.lay_out_at_home(quanta, kNoPage, 0, segment->first);
  CachedRange* range = AddressMap::instance().find(layout.va);
  if (range == nullptr || range->heap != this || range->quanta != quanta || !pages_.fits(*range))
    range = &ranges_.make(*this, quanta, std::move(layout), {.keeps_views = use.keeps_pages});
  pages_.take(*range);
  return range;
}

CachedRange* Heap::take_again(const Request& request, bool frugal) {
  if (CachedRange* range = slab_with_room(request); range != nullptr) return range;
  if (CachedRange* range = take_located(request); range != nullptr) return range;
  return take_found(request, frugal);
}

CachedRange* Heap::settle(const Request& request, Layout layout, Placement placed) {
  using Memory = RangeCache::Memory;
  AddressMap::instance().prefetch(layout.va);
  const bool is_asleep = predictor_.is_asleep();
  const Memory of_placement = is_asleep ? Memory::kNone : Memory::kSequence;
  const RangeCache::Terms terms{.keeps_views = use.keeps_pages,
                                .memory = placed == Placement::kFrugal ? Memory::kSize : of_placement,
                                .is_asleep = is_asleep || placed != Placement::kFrugal,
                                .now = predictor_.now()};
  CachedRange& range = ranges_.make(*this, request.quanta, std::move(layout), terms);
  pages_.take(range);
  return serve(request, &range);
}

CachedRange* Heap::reuse_view(const Request& request, uint32_t most_pages, bool spare_mappings) {
  std::optional<Layout> found = pages_.find_in_view(request, most_pages, spare_mappings);
  return found.has_value() ? settle(request, std::move(*found), placement()) : nullptr;
}

Plan Heap::plan(const Request& request, uint32_t spare_pages) {
  return pages_.plan(request, spare_pages);
}

Result<CachedRange*> Heap::take_planned(const Request& request, const Plan& plan) {
  PageId first = kNoPage;
  if (plan.kind == Plan::Kind::kSegment) {
    if (Status status = store_.create_segment(plan.new_pages, this, &first); !status.ok()) return status;
    add_free(first, plan.new_pages);
  } else if (plan.new_pages > 0) {
    first = plan.kind == Plan::Kind::kExtend ? plan.first_new : store_.find_unbacked(plan.new_pages);
    if (first == kNoPage) return Status::out_of_memory("no address left for new pages");
    uint32_t created = 0;
    const bool spends = spends_pages();
    ExtentTerms terms = pages_.extent_terms(plan, spends);
    if (spends && plan.is_at_home()) {
      terms.most_spare = purchase_.spare_pages(store_.slack_percent(),
                                               pages_.owned() + uint64_t{plan.new_pages}, terms.most_spare);
    }
    Status status = store_.create_pages(first, plan.new_pages, this, &created, terms);
    if (created > 0) add_free(first, created);
    if (!status.ok()) return status;
  }
  if (plan.kind == Plan::Kind::kView && !plan.is_at_home())
    purchase_.note_view(plan.new_pages + plan.full_pages);
  Result<Layout> layout = pages_.lay_out(request, plan, first);
  if (!layout.ok()) return layout.take_status();
  return settle(request, std::move(layout.value()), placement());
}

void Heap::keep_together(bool together, bool breaks_pages) {
  predictor_.keep_together(together);
  pages_.break_pages(breaks_pages);
}

bool Heap::make_live(CachedRange& range, uint64_t requested_bytes, void** out) {
  AddressMap& map = AddressMap::instance();
  if (map.find(range.va) != &range && !map.set(range.va, 1, &range)) {
    give_back(range);
    return false;
  }
  range.requested_bytes = requested_bytes;
  range.stack = 0;
  const FreePages::Change& taken = pages_.taken();
  counters.on_allocate(SizePool::kLarge, requested_bytes, range.bytes(), taken.page_bytes(), taken.fragments,
                       range.va);
  *out = reinterpret_cast<void*>(range.va);
  return true;
}

bool Heap::make_slot_live(CachedRange& range, uint32_t size_class, uint64_t requested_bytes, void** out) {
  if (range.slab == nullptr && !slabs_.open(range, size_class)) {
    give_back(range);
    return false;
  }
  *out = take_slot(size_class, requested_bytes);
  return true;
}

void Heap::give_back(CachedRange& range) {
  const FreePages::Change taken = pages_.taken();
  const FreePages::Change undone = pages_.give(range, timeline.epoch());
  counters.on_cached(static_cast<int64_t>(undone.page_bytes() - taken.page_bytes()));
  counters.on_fragments(undone.fragments + taken.fragments);
}

// ---- Frees

Status Heap::free(CachedRange& range, uint64_t va) {
  if (range.state != BlockState::kLive || range.heap != this) return no_live_block("free", va);
  uint32_t slot = kMostSlots;
  if (Slab* slab = range.slab; slab != nullptr) {
    slot = slab->slot_at(va);
    if (slot == kMostSlots || !slab->is_live(slot)) return no_live_block("free", va);
    if (!Slab::test(slab->stream_uses, slot)) {  // mutant: free-small
      counters.on_free(SizePool::kSmall, slab->requested[slot], slab->slot_bytes(), 0, 0, va);
      slabs_.give_slot(*slab, slot);
      return {};
    }
  } else {
    if (range.va != va) {
      return Status::invalid_pointer(
          fmt::format("free of {:#x}: it lies inside the block that begins at {:#x}", va, range.va));
    }
    if (!range.has_stream_uses) {  // mutant: free-large
      const FreePages::Change given = pages_.give(range, timeline.epoch());
      counters.on_free(SizePool::kLarge, range.requested_bytes, range.bytes(), given.page_bytes(),
                       given.fragments, range.va);
      return {};
    }
  }
  mark_pending(range, slot);
  free_after_streams(range, va, slot);
  return {};
}

bool Heap::begins_live(const CachedRange& range, uint64_t va, uint32_t* slot) const {
  *slot = kMostSlots;
  if (range.state != BlockState::kLive || range.heap != this) return false;
  if (range.slab == nullptr) return range.va == va;
  *slot = range.slab->slot_at(va);
  return *slot != kMostSlots && range.slab->is_live(*slot);
}

Status Heap::record_stream(CachedRange& range, uint64_t va, CUstream stream) {
  uint32_t slot = kMostSlots;
  if (!begins_live(range, va, &slot)) return no_live_block("record_stream", va);
  Result<StreamIdentity> user = pending_.identify_user(stream);
  if (!user.ok()) return user.take_status();
  user->ends_unseen = life.users_end_unseen && !is_default_stream(stream);
  if (user.value() == static_cast<const StreamIdentity&>(key)) return {};  // mutant: owner-uses
  if (Status status = pending_.add_use(va, user.value(), stream, use.keeps_pages); !status.ok())
    return status;
  if (range.slab != nullptr) {
    Slab::set(range.slab->stream_uses, slot);
  } else {
    range.has_stream_uses = true;
  }
  return {};
}

Status Heap::quarantine(CachedRange& range, uint64_t va, uint64_t* bytes) {
  uint32_t slot = kMostSlots;
  if (!begins_live(range, va, &slot)) return no_live_block("free", va);
  mark_pending(range, slot);
  if (bytes != nullptr) *bytes = range.slab != nullptr ? range.slab->slot_bytes() : range.bytes();
  return {};
}

Status Heap::release_quarantined(CachedRange& range, uint64_t va) {
  Slab* slab = range.heap == this ? range.slab : nullptr;
  const uint32_t slot = slab == nullptr ? kMostSlots : slab->slot_at(va);
  const bool quarantined =
      slab != nullptr ? slot != kMostSlots && Slab::test(slab->pending_slots, slot)
                      : range.heap == this && range.state == BlockState::kPendingFree && range.va == va;
  if (!quarantined)
    return Status::invalid_pointer(fmt::format("release of {:#x}: no block is quarantined there", va));
  if (slab != nullptr ? Slab::test(slab->stream_uses, slot) : range.has_stream_uses) {
    free_after_streams(range, va, slot);
  } else {
    complete_free(range, slot);
  }
  return {};
}

void Heap::mark_pending(CachedRange& range, uint32_t slot) {
  if (range.slab != nullptr) {
    Slab::set(range.slab->pending_slots, slot);
    counters.on_free_requested(SizePool::kSmall, range.slab->slot_bytes(), range.slab->requested[slot],
                               range.slab->va_of(slot));
  } else {
    range.state = BlockState::kPendingFree;
    counters.on_free_requested(SizePool::kLarge, range.bytes(), range.requested_bytes, range.va);
  }
}

void Heap::free_after_streams(CachedRange& range, uint64_t va, uint32_t slot) {
  if (range.slab != nullptr) {
    Slab::clear(range.slab->stream_uses, slot);
  } else {
    range.has_stream_uses = false;
  }
  pending_.add(range, slot, va, timeline.epoch());
}

size_t Heap::complete_finished_frees() {
  return pending_.complete_finished(timeline, key.stream);
}

void Heap::complete_free(CachedRange& range, uint32_t slot) {
  if (range.slab != nullptr) {
    Slab& slab = *range.slab;
    Slab::clear(slab.pending_slots, slot);
    counters.on_free_completed(SizePool::kSmall, slab.requested[slot], slab.slot_bytes(), 0, 0,
                               slab.va_of(slot));
    slabs_.give_slot(slab, slot);
    return;
  }
  const FreePages::Change given = pages_.give(range, timeline.epoch());
  counters.on_free_completed(SizePool::kLarge, range.requested_bytes, range.bytes(), given.page_bytes(),
                             given.fragments, range.va);
}

// ---- Pages that come and go

bool Heap::is_done_with(PageId page) const {
  return timeline.is_complete(pages_.last_use(page));
}

bool Heap::is_idle() {
  release_empty_slabs();
  if (pages_.owned() != pages_.free_count() || !pending_.empty()) return false;
  return pages_.are_all_free([this](PageId page) {
    mutex.assert_held();  // by this function
    // mutant: idle-pages
    return is_done_with(page);
  });
}

void Heap::list_leavable(std::vector<PageId>& out) const {
  pages_.choose_free(pages_.free_count(), out);
  if (!use.keeps_pages) return;  // mutant: pool-pages-leave
  std::unordered_set<PageId> used;
  if (use.may_move || use.is_away || !ranges_.list_pages_of_pool(used)) return out.clear();
  std::erase_if(out, [&](PageId page) { return used.count(page) != 0; });
}

void Heap::receive(Heap& from, const std::vector<PageId>& pages) {
  const auto bytes = static_cast<int64_t>(pages.size() * kPageBytes);
  pages_.receive(from.pages_, pages, timeline.epoch());
  for (const PageId id : pages) store_.page(id).owner.store(this, std::memory_order_relaxed);
  if (pool_bytes_ != from.pool_bytes_) {
    from.count_in_pool(-bytes);
    count_in_pool(bytes);
  }
  counters.on_transfer(from.counters, bytes);
}

void Heap::add_free(PageId first, uint32_t count) {
  pages_.add(first, count);
  count_in_pool(static_cast<int64_t>(count * kPageBytes));
  counters.on_pages(static_cast<int64_t>(count * kPageBytes));
}

void Heap::drop_free(PageId first, uint32_t count) {
  purchase_.forget_need();
  pages_.drop(first, count);
  count_in_pool(-static_cast<int64_t>(count * kPageBytes));
  counters.on_pages(-static_cast<int64_t>(count * kPageBytes));
}

Status Heap::release_free(std::vector<PageId>& pages) {
  // What was freed since the wait stays.
  std::erase_if(pages, [this](PageId id) {
    mutex.assert_held();  // by this function
    return !is_done_with(id);
  });
  keep_units(store_.pages(), pages);
  for (const PageId id : pages) drop_free(id, 1);
  Status status = caught([&] {
    kArenaLock.assert_held();  // by this function
    return store_.release_pages(pages);
  });
  std::erase_if(pages, [this](PageId id) {
    mutex.assert_held();  // by this function
    if (!store_.backed(id)) return false;
    add_free(id, 1);
    return true;
  });
  return status;
}

FreeSpace Heap::free_space() {
  FreeSpace space = pages_.space_without(slabs_.empty_ranges());
  space.slot_bytes = slabs_.largest_slot_bytes();
  return space;
}

uint64_t Heap::metadata_bytes() const {
  return sizeof(Heap) + pages_.metadata_bytes() + ranges_.metadata_bytes() + predictor_.metadata_bytes() +
         slabs_.metadata_bytes();
}

}  // namespace spillway
