// The blocks of a heap at one moment, saved and put back: every block is freed but those that were live then,
// and those are allocated again at their places. No search and no driver call: the places are known, and a
// pool's pages and views stay until its release.

#include <fmt/format.h>

#include <algorithm>

#include "allocator/heap.h"

namespace spillway {
namespace {

// What the state has here, if that is divided as the place is now: into nothing, or into the same slots. Null
// where all that lies here is to go.
const SavedPlace* kept_of(Place& place, const HeapState& state) {
  const auto found = state.find(&place);
  if (found == state.end()) return nullptr;
  const Slab* saved = found->second.slab.get();
  const bool both_large = saved == nullptr && place.slab == nullptr;
  const bool same_slots =
      saved != nullptr && place.slab != nullptr && saved->size_class == place.slab->size_class;
  return both_large || same_slots ? &found->second : nullptr;
}

// Calls visit(row) for each block that is live in `slab`, or for the large one where that is null.
template <typename Visit>
void for_each_block(const Place& place, const Slab* slab, uint64_t requested_bytes, Visit visit) {
  if (slab == nullptr) {
    visit(BlockRow{place.va, place.bytes(), requested_bytes, BlockKind::kActiveAllocated});
    return;
  }
  for (uint32_t slot = 0; slot < slab->slots; ++slot) {
    if (!slab->is_live(slot)) continue;
    visit(
        BlockRow{slab->va_of(slot), slab->slot_bytes(), slab->requested[slot], BlockKind::kActiveAllocated});
  }
}

// Whether something of it stays in use when all its blocks are freed.
bool waits_for_streams(const Place& place) {
  if (const Slab* slab = place.slab; slab != nullptr) {
    return (slab->pending_slots[0] | slab->pending_slots[1] | slab->stream_uses[0] | slab->stream_uses[1]) !=
           0;
  }
  return place.state == BlockState::kPendingFree || place.has_stream_uses;
}

// Whether memory of the state would still be in use here after all other blocks were freed.
bool is_in_the_way(Place& place, const HeapState& state) {
  if (const SavedPlace* kept = kept_of(place, state); kept != nullptr) {
    if (place.slab == nullptr) return place.state == BlockState::kPendingFree;
    for (uint32_t slot = 0; slot < place.slab->slots; ++slot) {
      if (kept->slab->is_live(slot) && Slab::test(place.slab->pending_slots, slot)) return true;
    }
    return false;
  }
  return waits_for_streams(place) && std::any_of(state.begin(), state.end(), [&](const auto& wanted) {
           return share_a_line(*wanted.first, place);
         });
}

Status place_is_taken(const Place& place) {
  return Status::internal(fmt::format("restore: the place at {:#x} is not free", place.va));
}

}  // namespace

HeapState Heap::save() {
  HeapState state;
  extents_.for_each([&](Place& place) {
    if (place.state != BlockState::kLive) return;
    const Slab* slab = place.slab;
    if (slab != nullptr && !slab->any_live()) return;
    state[&place] = {place.requested_bytes, slab == nullptr ? nullptr : std::make_unique<Slab>(*slab)};
  });
  for (const auto& [place, saved] : state) place->is_saved = true;
  return state;
}

Status Heap::prepare_restore(const HeapState& state, std::vector<RestoredBlock>& freed,
                             std::vector<RestoredBlock>& allocated) {
  const auto list = [this](std::vector<RestoredBlock>& blocks) {
    return [this, &blocks](const BlockRow& row) { blocks.push_back({row, key.stream}); };
  };
  const Place* in_the_way = nullptr;
  extents_.for_each([&](Place& place) {
    if (is_in_the_way(place, state)) in_the_way = &place;
    if (place.state == BlockState::kLive)
      for_each_block(place, place.slab, place.requested_bytes, list(freed));
  });
  if (in_the_way != nullptr) {
    return Status::invalid_state(
        fmt::format("pool {{{}, {}}} cannot be restored yet: memory that it had then is freed at {:#x}, and "
                    "another stream still uses it",
                    key.pool.first, key.pool.second, in_the_way->va));
  }
  size_t slabs = 0;
  for (const auto& [place, saved] : state) {
    for_each_block(*place, saved.slab.get(), saved.requested_bytes, list(allocated));
    slabs += saved.slab != nullptr;
  }
  slabs_.reserve(slabs);
  return {};
}

Status Heap::restore(const HeapState& state) {
  extents_.for_each([&](Place& place) {
    mutex.assert_held();  // by this function
    if (place.state == BlockState::kLive) free_all_but(state, place);
  });
  release_empty_slabs();
  for (const auto& [place, saved] : state) {
    Status status = saved.slab == nullptr ? restore_large(*place, saved.requested_bytes)
                                          : restore_slab(*place, *saved.slab);
    if (!status.ok()) return status;
  }
  return {};
}

void Heap::free_all_but(const HeapState& state, Place& place) {
  const SavedPlace* kept = kept_of(place, state);
  const Slab* slab = place.slab;
  if (slab == nullptr) {
    if (kept == nullptr) (void)free(place, place.va);
    return;
  }
  // With its last block the slab may go.
  for (uint32_t slot = 0; place.slab == slab && slot < slab->slots; ++slot) {
    const bool stays = kept != nullptr && kept->slab->is_live(slot);
    if (slab->is_live(slot) && !stays) (void)free(place, slab->va_of(slot));
  }
}

Status Heap::restore_large(Place& place, uint64_t requested_bytes) {
  if (place.state == BlockState::kLive) {
    counters.on_free(SizePool::kLarge, place.requested_bytes, place.bytes(), 0, 0, place.va);
    counters.on_allocate(SizePool::kLarge, requested_bytes, place.bytes(), 0, 0, place.va);
    place.requested_bytes = requested_bytes;
    return {};
  }
  void* block = nullptr;
  if (!pages_.take(place) || !make_live(place, requested_bytes, &block)) return place_is_taken(place);
  return {};
}

Status Heap::restore_slab(Place& place, const Slab& saved) {
  if (place.slab == nullptr) {
    if (!pages_.take(place)) return place_is_taken(place);
    if (!slabs_.open(place, saved.size_class)) {
      give_back(place);
      return place_is_taken(place);
    }
  }
  slabs_.restore(*place.slab, saved);
  return {};
}

}  // namespace spillway
