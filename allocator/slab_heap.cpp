#include "allocator/slab_heap.h"

#include <new>

#include "allocator/address_map.h"

namespace spillway {
namespace {

constexpr uint32_t kSlabGranules = kSlabBytes / kGranuleBytes;

}  // namespace

// ---- Slots

inline void SlabHeap::slot_taken(Class& state, Slab& slab) {
  if (&slab == state.empty) state.empty = nullptr;
  if (!slab.full()) return;
  unlist(slab);
  counters_.on_fragments(-1, SizePool::kSmall);
}

uint64_t SlabHeap::take_slot(uint32_t size_class, uint64_t requested_bytes) {
  Class& state = classes_[size_class];
  Slab& slab = *state.with_room;
  const uint32_t slot = slab.take_slot(requested_bytes);
  slot_taken(state, slab);
  return slab.va_of(slot);
}

void SlabHeap::give_slot(Slab& slab, uint32_t slot) {
  const bool was_full = slab.full();
  slab.give_slot(slot);
  Class& state = classes_[slab.size_class];
  if (was_full) {
    list(slab);
    counters_.on_fragments(1, SizePool::kSmall);
    if (state.empty != nullptr) release(*state.empty);
  }
  if (slab.used > 0) return;
  if (state.room_count > 1) {
    release(slab);
  } else {
    state.empty = &slab;
  }
}

// ---- Slabs

void SlabHeap::list(Slab& slab) {
  Class& state = classes_[slab.size_class];
  const uint32_t number = slab.range->slab_number;
  state.room.insert(number);
  ++state.room_count;
  if (state.with_room == nullptr || number < state.with_room->range->slab_number) state.with_room = &slab;
}

void SlabHeap::unlist(Slab& slab) {
  Class& state = classes_[slab.size_class];
  state.room.erase(slab.range->slab_number);
  --state.room_count;
  if (state.with_room == &slab) {
    const uint32_t first = state.room.least();
    state.with_room = first == IndexSet::kNone ? nullptr : ranges_[first]->slab;
  }
}

void SlabHeap::add_spare() {
  slabs_.push_back(std::make_unique<Slab>());
  spare_.reserve(slabs_.capacity());
  spare_.push_back(slabs_.back().get());
}

bool SlabHeap::make_room(CachedRange& range, uint32_t size_class) noexcept {
  try {
    if (!AddressMap::instance().set(range.va, kSlabGranules, &range)) return false;
    if (spare_.empty()) add_spare();
    if (range.slab_number == IndexSet::kNone) {
      ranges_.push_back(&range);
      range.slab_number = static_cast<uint32_t>(ranges_.size() - 1);
    }
    classes_[size_class].room.reserve(range.slab_number);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool SlabHeap::open(CachedRange& range, uint32_t size_class) {
  if (!make_room(range, size_class)) return false;
  Slab* slab = spare_.back();
  spare_.pop_back();
  slab->open(&range, size_class);
  range.slab = slab;
  list(*slab);
  counters_.on_cached(-static_cast<int64_t>(pages_.taken().page_bytes()));
  if (pages_.taken().fragments != 0) counters_.on_fragments(pages_.taken().fragments);
  counters_.on_slabs(static_cast<int64_t>(kSlabBytes));
  counters_.on_fragments(1, SizePool::kSmall);
  // A free that completed meanwhile may serve the request after all: then this one stays empty.
  Class& state = classes_[size_class];
  if (state.empty != nullptr) release(*state.empty);
  state.empty = slab;
  return true;
}

void SlabHeap::release(Slab& slab) {
  unlist(slab);
  CachedRange& range = *slab.range;
  Class& state = classes_[slab.size_class];
  if (state.empty == &slab) state.empty = nullptr;
  range.slab = nullptr;
  spare_.push_back(&slab);
  const FreePages::Change given = pages_.give(range, timeline_.epoch());
  counters_.on_slabs(-static_cast<int64_t>(kSlabBytes));
  counters_.on_fragments(-1, SizePool::kSmall);
  counters_.on_cached(static_cast<int64_t>(given.page_bytes()));
  if (given.fragments != 0) counters_.on_fragments(given.fragments);
}

size_t SlabHeap::release_empty() {
  size_t released = 0;
  for (Class& state : classes_) {
    if (state.empty == nullptr) continue;
    release(*state.empty);
    ++released;
  }
  return released;
}

void SlabHeap::reserve(size_t slabs) {
  while (spare_.size() < slabs) add_spare();
}

void SlabHeap::restore(Slab& slab, const Slab& saved) {
  for (uint32_t slot = 0; slot < saved.slots; ++slot) {
    if (!saved.is_live(slot)) continue;
    const uint64_t requested = saved.requested[slot];
    if (slab.is_live(slot)) {
      counters_.on_free(SizePool::kSmall, slab.requested[slot], slab.slot_bytes(), 0, 0, slab.va_of(slot));
      counters_.on_allocate(SizePool::kSmall, requested, slab.slot_bytes(), 0, 0, slab.va_of(slot));
      slab.requested[slot] = saved.requested[slot];
    } else {
      slab.take_slot_at(slot, requested);
      slot_taken(classes_[slab.size_class], slab);
      counters_.on_allocate(SizePool::kSmall, requested, slab.slot_bytes(), 0, 0, slab.va_of(slot));
    }
  }
}

std::vector<const CachedRange*> SlabHeap::empty_ranges() const {
  std::vector<const CachedRange*> ranges;
  for (const Class& state : classes_) {
    if (state.empty != nullptr) ranges.push_back(state.empty->range);
  }
  return ranges;
}

uint64_t SlabHeap::largest_slot_bytes() const {
  for (uint32_t size_class = kClassCount; size_class-- > 0;) {
    if (classes_[size_class].room_count > 0) return kClassBytes[size_class];
  }
  return 0;
}

}  // namespace spillway
