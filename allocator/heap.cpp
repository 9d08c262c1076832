#include "allocator/heap.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <utility>

#include "allocator/address_map.h"

namespace spillway {
namespace {

Status no_live_block(const char* what, uint64_t va) {
  return Status::invalid_pointer(fmt::format("{} of {:#x}: no live block begins there", what, va));
}

}  // namespace

Heap::Heap(PageStore& store, DeviceCounters& device_counters, EventPool& events, const Driver& driver,
           CUcontext context, const HeapKey& heap_key, std::atomic<const Journal*>& leader, BlockUnit unit)
    : counters(device_counters),
      key(heap_key),
      store_(store),
      unit_(unit),
      pages_(store, *this, unit),
      predictor_(leader),
      slabs_(pages_, timeline, counters),
      pending_(driver, context, store.device(), events, device_counters, [this](Place& place, uint32_t slot) {
        mutex.assert_held();  // by whoever completes frees
        complete_free(place, slot);
      }) {
  counters.set_stream(std::bit_cast<uint64_t>(key.stream));
}

// ---- Whose it is

void Heap::close(bool covered) {
  timeline.seal(covered);
  closed_.store(true, std::memory_order_relaxed);
}

void Heap::take_over(const HeapKey& by) {
  key = by;
  counters.set_stream(std::bit_cast<uint64_t>(key.stream));
  thread_ended = by.thread == 0 ? nullptr : thread_has_ended();
  timeline.reopen();
  pending_.restart(timeline.epoch());
  closed_.store(false, std::memory_order_relaxed);
  extents_.serve_pool_since(predictor_.now());
}

void Heap::serve_pool(PoolId pool) {
  key.pool = pool;
  extents_.serve_pool_since(predictor_.now());
}

void Heap::pool_released() {
  use.keeps_pages = false;
  release_empty_slabs();
  extents_.for_each([](Place& place) { place.is_saved = false; });
  // Replays of a graph stamp nothing: only a wait from now on says that they are over.
  pages_.stamp_all(timeline.epoch());
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
  // At least a unit: the address map has one entry for each, whatever the limit of small requests.
  uint64_t lines = std::max(bytes_to_lines(bytes), kUnitBytes / kLineBytes);
  const bool has_whole_pages = unit_ == BlockUnit::kPage ? lines >= kPageLines : unit_ == BlockUnit::kSegment;
  if (has_whole_pages) lines = bytes_to_pages(bytes) * kPageLines;
  return {static_cast<uint32_t>(lines), 1};
}

void* Heap::allocate_small(uint32_t size_class, uint64_t requested_bytes) {
  Slab* slab = slabs_.with_room(size_class);
  if (slab == nullptr) return nullptr;
  if (slabs_.is_empty(*slab)) {
    const bool reopens = predictor_.reopens(size_class, slab->place, [this](const Place& place) {
      mutex.assert_held();  // by this function
      return pages_.fits(place);
    });
    if (!reopens) {
      slabs_.release(*slab);
      return nullptr;
    }
  }
  return slabs_.take_slot(size_class, requested_bytes);
}

Place* Heap::slab_with_room(const Request& request) const {
  const Slab* slab = request.is_for_slab() ? slabs_.with_room(request.size_class) : nullptr;
  return slab == nullptr ? nullptr : slab->place;
}

Place* Heap::take_predicted(const Request& request) {
  Place* place = predictor_.guess(request);
  return place != nullptr && pages_.take(*place) ? serve(request, place) : nullptr;
}

Place* Heap::take_located(const Request& request) {
  Place* place = predictor_.guess_again(request);
  if (place != nullptr && pages_.take(*place)) return serve(request, place);
  place = predictor_.locate(request);
  return place != nullptr && pages_.take(*place) ? serve(request, place) : nullptr;
}

Place* Heap::take_same_size(const Request& request) {
  Place* place =
      extents_.best_of_size(request.lines, predictor_.mark_expected(), [&](const Place& candidate) {
        mutex.assert_held();  // by this function
        return candidate.va % (request.align_lines * kLineBytes) == 0 && pages_.fits(candidate);
      });
  return place != nullptr && pages_.take(*place) ? serve(request, place) : nullptr;
}

Place* Heap::take_found(const Request& request, bool frugal) {
  if (unit_ == BlockUnit::kSegment) return take_segment(request);
  // Of a program that is not known to repeat itself, the remembered place of a small block says nothing: the
  // best fit keeps free bytes together. For large blocks it spares a view.
  const bool small = request.lines < kPageLines;
  if (predictor_.remembers() && (!small || predictor_.repeats())) {
    if (Place* place = take_same_size(request)) return place;
  }
  std::optional<Layout> found;
  if (small) found = pages_.find_fragment(request);
  if (!found.has_value()) found = pages_.find_hole(request, frugal);
  return found.has_value() ? settle(request, std::move(*found)) : nullptr;
}

Place* Heap::take_segment(const Request& request) {
  if (request.is_for_slab()) return nullptr;
  const std::optional<PageRun> segment = pages_.find_segment(request);
  if (!segment.has_value()) return nullptr;
  const uint32_t lines = segment->count * kPageLines;
  Layout layout = pages_.lay_out_at_home(lines, kNoPage, 0, segment->first);
  Place* place = AddressMap::instance().find(layout.va);
  if (place == nullptr || place->heap != this || place->lines != lines || !pages_.fits(*place))
    place = &extents_.make(*this, lines, std::move(layout), use.keeps_pages);
  pages_.take(*place);
  return place;
}

Place* Heap::take_again(const Request& request, bool frugal) {
  if (Place* place = slab_with_room(request); place != nullptr) return place;
  if (Place* place = take_located(request); place != nullptr) return place;
  return take_found(request, frugal);
}

Place* Heap::settle(const Request& request, Layout layout) {
  Place& place = extents_.make(*this, request.lines, std::move(layout), use.keeps_pages);
  pages_.take(place);
  return serve(request, &place);
}

Place* Heap::take_window(const Request& request, uint32_t most_pages, bool spare_mappings) {
  std::optional<Layout> found = pages_.find_window(request, most_pages, spare_mappings);
  return found.has_value() ? settle(request, std::move(*found)) : nullptr;
}

Result<Place*> Heap::take_planned(const Request& request, const Plan& plan) {
  PageId first = kNoPage;
  if (plan.kind == Plan::Kind::kSegment) {
    if (Status status = store_.create_segment(plan.new_pages, this, &first); !status.ok()) return status;
    add_vacant(first, plan.new_pages);
  } else if (plan.new_pages > 0) {
    first = plan.kind == Plan::Kind::kExtend ? plan.first_new : store_.find_unbacked(plan.new_pages);
    if (first == kNoPage) return Status::out_of_memory("no address left for new pages");
    uint32_t created = 0;
    Status status = store_.create_pages(first, plan.new_pages, this, &created);
    if (created > 0) add_vacant(first, created);
    if (!status.ok()) return status;
  }
  Result<Layout> layout = pages_.lay_out(request, plan, first);
  if (!layout.ok()) return layout.take_status();
  return settle(request, std::move(layout.value()));
}

void Heap::keep_together(bool together, bool breaks_pages) {
  predictor_.keep_together(together);
  pages_.break_pages(breaks_pages);
}

bool Heap::make_live(Place& place, uint64_t requested_bytes, void** out) {
  AddressMap& map = AddressMap::instance();
  if (map.find(place.va) != &place && !map.set(place.va, 1, &place)) {
    give_back(place);
    return false;
  }
  place.requested_bytes = requested_bytes;
  const FreePages::Change& taken = pages_.taken();
  counters.on_allocate(SizePool::kLarge, requested_bytes, place.bytes(), taken.page_bytes(), taken.fragments,
                       place.va);
  *out = reinterpret_cast<void*>(place.va);
  return true;
}

bool Heap::make_slot_live(Place& place, uint32_t size_class, uint64_t requested_bytes, void** out) {
  if (place.slab == nullptr && !slabs_.open(place, size_class)) {
    give_back(place);
    return false;
  }
  *out = slabs_.take_slot(size_class, requested_bytes);
  return true;
}

void Heap::give_back(Place& place) {
  const FreePages::Change taken = pages_.taken();
  const FreePages::Change undone = pages_.give(place, timeline.epoch());
  counters.on_cached(static_cast<int64_t>(undone.page_bytes() - taken.page_bytes()));
  counters.on_fragments(undone.fragments + taken.fragments);
}

// ---- Frees

Status Heap::free(Place& place, uint64_t va) {
  if (place.state != BlockState::kLive || place.heap != this) return no_live_block("free", va);
  uint32_t slot = kMostSlots;
  if (Slab* slab = place.slab; slab != nullptr) {
    slot = slab->slot_at(va);
    if (slot == kMostSlots || !slab->is_live(slot)) return no_live_block("free", va);
    if (!Slab::test(slab->stream_uses, slot)) {
      slabs_.give_slot(*slab, slot, false);
      return {};
    }
  } else {
    if (place.va != va) {
      return Status::invalid_pointer(
          fmt::format("free of {:#x}: it lies inside the block that begins at {:#x}", va, place.va));
    }
    if (!place.has_stream_uses) {
      const FreePages::Change given = pages_.give(place, timeline.epoch());
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
  if (!begins_live(place, va, &slot)) return no_live_block("record_stream", va);
  Result<StreamIdentity> user = pending_.identify_user(stream);
  if (!user.ok()) return user.take_status();
  if (user.value() == static_cast<const StreamIdentity&>(key)) return {};
  if (Status status = pending_.add_use(va, user.value(), stream, use.keeps_pages); !status.ok())
    return status;
  if (place.slab != nullptr) {
    Slab::set(place.slab->stream_uses, slot);
  } else {
    place.has_stream_uses = true;
  }
  return {};
}

Status Heap::withhold(Place& place, uint64_t va, uint64_t* bytes) {
  uint32_t slot = kMostSlots;
  if (!begins_live(place, va, &slot)) return no_live_block("free", va);
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
  if (place.slab != nullptr) {
    Slab::clear(place.slab->stream_uses, slot);
  } else {
    place.has_stream_uses = false;
  }
  pending_.add(place, slot, va, timeline.epoch());
}

void Heap::complete_free(Place& place, uint32_t slot) {
  if (place.slab != nullptr) {
    Slab::clear(place.slab->pending_slots, slot);
    slabs_.give_slot(*place.slab, slot, true);
    return;
  }
  const FreePages::Change given = pages_.give(place, timeline.epoch());
  counters.on_free_completed(SizePool::kLarge, place.requested_bytes, place.bytes(), given.page_bytes(),
                             given.fragments, place.va);
}

// ---- Pages that come and go

bool Heap::is_idle() {
  release_empty_slabs();
  if (pages_.owned() != pages_.vacant() || !pending_.empty()) return false;
  return pages_.are_all_vacant([this](PageId page) {
    mutex.assert_held();  // by this function
    return is_done_with(page);
  });
}

void Heap::list_leavable(std::vector<PageId>& out) const {
  pages_.choose_vacant(pages_.vacant(), out);
  if (!use.keeps_pages) return;
  std::unordered_set<PageId> used;
  if (use.may_move || counters.is_away() || !extents_.list_pages_of_pool(used)) return out.clear();
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

void Heap::add_vacant(PageId first, uint32_t count) {
  pages_.add(first, count);
  count_in_pool(static_cast<int64_t>(count * kPageBytes));
  counters.on_pages(static_cast<int64_t>(count * kPageBytes));
}

void Heap::drop_vacant(PageId first, uint32_t count) {
  pages_.drop(first, count);
  count_in_pool(-static_cast<int64_t>(count * kPageBytes));
  counters.on_pages(-static_cast<int64_t>(count * kPageBytes));
}

FreeSpace Heap::free_space() {
  FreeSpace space = pages_.space_without(slabs_.empty_places());
  space.slot_bytes = slabs_.largest_slot_bytes();
  return space;
}

uint64_t Heap::metadata_bytes() const {
  return sizeof(Heap) + pages_.metadata_bytes() + extents_.metadata_bytes() + predictor_.metadata_bytes() +
         slabs_.metadata_bytes();
}

}  // namespace spillway
