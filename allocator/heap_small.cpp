// Small requests of a heap: slabs and their slots.

#include <algorithm>

#include "allocator/address_map.h"
#include "allocator/heap.h"

namespace spillway {
namespace {

constexpr uint32_t kSlabUnits = kSlabBytes / kUnitBytes;
constexpr uint32_t kUnitLines = kUnitBytes / kLineBytes;

}  // namespace

void Heap::list(Slab& slab) {
  SlabClass& state = classes_[slab.size_class];
  const uint32_t number = slab.place->slab_number;
  state.room.insert(number);
  ++state.room_count;
  if (state.with_room == nullptr || number < state.with_room->place->slab_number) state.with_room = &slab;
}

void Heap::unlist(Slab& slab) {
  SlabClass& state = classes_[slab.size_class];
  state.room.erase(slab.place->slab_number);
  --state.room_count;
  if (state.with_room == &slab) {
    const uint32_t first = state.room.least();
    state.with_room = first == IndexSet::kNone ? nullptr : slab_places_[first]->slab;
  }
}

void* Heap::allocate_small(uint32_t size_class, uint64_t requested_bytes) {
  SlabClass& state = classes_[size_class];
  Slab* slab = state.with_room;
  if (slab == nullptr) return nullptr;
  if (slab == state.empty && !reopens(*slab)) {
    release_slab(*slab);
    return nullptr;
  }
  return allocate_slot(size_class, requested_bytes);
}

void* Heap::allocate_slot(uint32_t size_class, uint64_t requested_bytes) {
  SlabClass& state = classes_[size_class];
  Slab& slab = *state.with_room;
  const uint32_t slot = slab.take_slot(requested_bytes);
  slot_taken(state, slab, slot, requested_bytes);
  return reinterpret_cast<void*>(slab.va_of(slot));
}

void Heap::slot_taken(SlabClass& state, Slab& slab, uint32_t slot, uint64_t requested_bytes) {
  if (&slab == state.empty) state.empty = nullptr;
  if (slab.full()) {
    unlist(slab);
    counters.on_fragments(-1, SizePool::kSmall);
  }
  counters.on_allocate(SizePool::kSmall, requested_bytes, slab.slot_bytes(), 0, 0, slab.va_of(slot));
}

bool Heap::reopens(const Slab& slab) {
  Openings& openings = classes_[slab.size_class].openings;
  if (openings.opened_now(journal_, slab.place)) return true;
  Place* wanted = remembers() ? openings.guess(journal_) : nullptr;
  if (wanted != nullptr && wanted != slab.place && fits(*wanted)) return false;
  openings.append(journal_, slab.place);
  return true;
}

Request Heap::slab_request(uint32_t size_class) {
  return {kSlabLines, kUnitLines, &classes_[size_class], size_class};
}

void Heap::add_spare_slab() {
  slabs_.push_back(std::make_unique<Slab>());
  spare_slabs_.reserve(slabs_.capacity());
  spare_slabs_.push_back(slabs_.back().get());
}

bool Heap::make_room_for_slab(Place& place, uint32_t size_class) noexcept {
  try {
    if (!AddressMap::instance().set(place.va, kSlabUnits, &place)) return false;
    if (spare_slabs_.empty()) add_spare_slab();
    if (place.slab_number == IndexSet::kNone) {
      slab_places_.push_back(&place);
      place.slab_number = static_cast<uint32_t>(slab_places_.size() - 1);
    }
    classes_[size_class].room.insert(place.slab_number);
    classes_[size_class].room.erase(place.slab_number);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool Heap::open_slab(Place& place, uint32_t size_class) {
  if (!make_room_for_slab(place, size_class)) {
    const Change undone = give(place);
    counters.on_cached(static_cast<int64_t>(undone.page_bytes() - taken_.page_bytes()));
    counters.on_fragments(undone.fragments + taken_.fragments);
    return false;
  }
  Slab* slab = spare_slabs_.back();
  spare_slabs_.pop_back();
  slab->open(&place, size_class);
  place.slab = slab;
  list(*slab);
  counters.on_cached(-static_cast<int64_t>(taken_.page_bytes()));
  if (taken_.fragments != 0) counters.on_fragments(taken_.fragments);
  counters.on_slabs(static_cast<int64_t>(kSlabBytes));
  counters.on_fragments(1, SizePool::kSmall);
  // A free that completed meanwhile may serve the request after all: then this one stays empty.
  SlabClass& state = classes_[size_class];
  if (state.empty != nullptr) release_slab(*state.empty);
  state.empty = slab;
  return true;
}

void Heap::slot_freed(Slab& slab, uint32_t slot, bool was_pending) {
  const uint64_t requested = slab.requested[slot];
  const bool was_full = slab.full();
  slab.give_slot(slot);
  if (was_pending) {
    counters.on_free_completed(SizePool::kSmall, requested, slab.slot_bytes(), 0, 0, slab.va_of(slot));
  } else {
    counters.on_free(SizePool::kSmall, requested, slab.slot_bytes(), 0, 0, slab.va_of(slot));
  }
  SlabClass& state = classes_[slab.size_class];
  if (was_full) {
    list(slab);
    counters.on_fragments(1, SizePool::kSmall);
    if (state.empty != nullptr) release_slab(*state.empty);
  }
  if (slab.used > 0) return;
  if (state.room_count > 1) {
    release_slab(slab);
  } else {
    state.empty = &slab;
  }
}

void Heap::release_slab(Slab& slab) {
  unlist(slab);
  Place& place = *slab.place;
  SlabClass& state = classes_[slab.size_class];
  if (state.empty == &slab) state.empty = nullptr;
  place.slab = nullptr;
  spare_slabs_.push_back(&slab);
  const Change given = give(place);
  counters.on_slabs(-static_cast<int64_t>(kSlabBytes));
  counters.on_fragments(-1, SizePool::kSmall);
  counters.on_cached(static_cast<int64_t>(given.page_bytes()));
  if (given.fragments != 0) counters.on_fragments(given.fragments);
}

size_t Heap::release_empty_slabs() {
  size_t released = 0;
  for (SlabClass& state : classes_) {
    if (state.empty == nullptr) continue;
    release_slab(*state.empty);
    ++released;
  }
  return released;
}

}  // namespace spillway
