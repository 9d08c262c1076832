// The blocks of a heap at one moment, saved and put back: every block is freed but those that were live then,
// and those are allocated again at their ranges. No search and no driver call: the ranges are known, and a
// pool's pages and views stay until its release.

#include <fmt/format.h>

#include <algorithm>

#include "allocator/heap.h"

namespace spillway {
namespace {

// Returns what the state has here, if that is divided as the range is now: into nothing, or into the same
// slots; null where all that lies here is to go.
const SavedRange* kept_of(CachedRange& range, const HeapState& state) {
  const auto found = state.find(&range);
  if (found == state.end()) return nullptr;
  const Slab* saved = found->second.slab.get();
  const bool both_large = saved == nullptr && range.slab == nullptr;
  const bool same_slots =
      saved != nullptr && range.slab != nullptr && saved->size_class == range.slab->size_class;
  return both_large || same_slots ? &found->second : nullptr;
}

// Calls visit(row) for each block that is live in `slab`, or for the large one where that is null.
template <typename Visit>
void for_each_block(const CachedRange& range, const Slab* slab, uint64_t requested_bytes, Visit visit) {
  if (slab == nullptr) {
    visit(BlockRow{range.va, range.bytes(), requested_bytes, BlockKind::kActiveAllocated});
    return;
  }
  for (uint32_t slot = 0; slot < slab->slots; ++slot) {
    if (!slab->is_live(slot)) continue;
    visit(
        BlockRow{slab->va_of(slot), slab->slot_bytes(), slab->requested[slot], BlockKind::kActiveAllocated});
  }
}

// Tells whether something of it stays in use when all its blocks are freed.
bool waits_for_streams(const CachedRange& range) {
  if (const Slab* slab = range.slab; slab != nullptr) {
    return (slab->pending_slots[0] | slab->pending_slots[1] | slab->stream_uses[0] | slab->stream_uses[1]) !=
           0;
  }
  return range.state == BlockState::kPendingFree || range.has_stream_uses;
}

// Tells whether memory of the state would still be in use here after all other blocks were freed.
bool is_in_the_way(CachedRange& range, const HeapState& state) {
  if (const SavedRange* kept = kept_of(range, state); kept != nullptr) {
    if (range.slab == nullptr) return range.state == BlockState::kPendingFree;
    for (uint32_t slot = 0; slot < range.slab->slots; ++slot) {
      if (kept->slab->is_live(slot) && Slab::test(range.slab->pending_slots, slot)) return true;
    }
    return false;
  }
  return waits_for_streams(range) && std::any_of(state.begin(), state.end(), [&](const auto& wanted) {
           return share_a_quantum(*wanted.first, range);
         });
}

Status range_is_taken(const CachedRange& range) {
  return Status::internal(fmt::format("restore: the range at {:#x} is not free", range.va));
}

}  // namespace

HeapState Heap::save() {
  HeapState state;
  ranges_.for_each([&](CachedRange& range) {
    if (range.state != BlockState::kLive) return;
    const Slab* slab = range.slab;
    if (slab != nullptr && !slab->any_live()) return;
    state[&range] = {range.requested_bytes, slab == nullptr ? nullptr : std::make_unique<Slab>(*slab)};
  });
  for (const auto& [range, saved] : state) range->is_saved = true;
  return state;
}

Status Heap::prepare_restore(const HeapState& state, std::vector<RestoredBlock>& freed,
                             std::vector<RestoredBlock>& allocated) {
  const auto list = [this](std::vector<RestoredBlock>& blocks) {
    return [this, &blocks](const BlockRow& row) { blocks.push_back({row, key.stream}); };
  };
  const CachedRange* in_the_way = nullptr;
  ranges_.for_each([&](CachedRange& range) {
    if (is_in_the_way(range, state)) in_the_way = &range;  // mutant: state-takes
    if (range.state == BlockState::kLive)
      for_each_block(range, range.slab, range.requested_bytes, list(freed));
  });
  if (in_the_way != nullptr) {
    return Status::invalid_state(
        fmt::format("pool {{{}, {}}} cannot be restored yet: memory that it had then is freed at {:#x}, and "
                    "another stream still uses it",
                    key.pool.first, key.pool.second, in_the_way->va));
  }
  size_t slabs = 0;
  for (const auto& [range, saved] : state) {
    for_each_block(*range, saved.slab.get(), saved.requested_bytes, list(allocated));
    slabs += saved.slab != nullptr;
  }
  slabs_.reserve(slabs);
  return {};
}

Status Heap::restore(const HeapState& state) {
  ranges_.for_each([&](CachedRange& range) {
    mutex.assert_held();  // by this function
    if (range.state == BlockState::kLive) free_all_but(state, range);
  });
  release_empty_slabs();
  for (const auto& [range, saved] : state) {
    Status status = saved.slab == nullptr ? restore_large(*range, saved.requested_bytes)
                                          : restore_slab(*range, *saved.slab);
    if (!status.ok()) return status;
  }
  return {};
}

void Heap::free_all_but(const HeapState& state, CachedRange& range) {
  const SavedRange* kept = kept_of(range, state);
  const Slab* slab = range.slab;
  if (slab == nullptr) {
    if (kept == nullptr) (void)free(range, range.va);
    return;
  }
  // With its last block the slab may go.
  for (uint32_t slot = 0; range.slab == slab && slot < slab->slots; ++slot) {
    const bool stays = kept != nullptr && kept->slab->is_live(slot);
    if (slab->is_live(slot) && !stays) (void)free(range, slab->va_of(slot));
  }
}

Status Heap::restore_large(CachedRange& range, uint64_t requested_bytes) {
  if (range.state == BlockState::kLive) {
    counters.on_free(SizePool::kLarge, range.requested_bytes, range.bytes(), 0, 0, range.va);
    counters.on_allocate(SizePool::kLarge, requested_bytes, range.bytes(), 0, 0, range.va);
    range.requested_bytes = requested_bytes;
    return {};
  }
  void* block = nullptr;
  if (!pages_.take(range) || !make_live(range, requested_bytes, &block)) return range_is_taken(range);
  return {};
}

Status Heap::restore_slab(CachedRange& range, const Slab& saved) {
  if (range.slab == nullptr) {
    if (!pages_.take(range)) return range_is_taken(range);
    if (!slabs_.open(range, saved.size_class)) {
      give_back(range);
      return range_is_taken(range);
    }
  }
  slabs_.restore(*range.slab, saved);
  return {};
}

}  // namespace spillway
