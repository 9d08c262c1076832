// Segments and blocks of a heap and an arena, for dumps, and the block that lies at an address.

#include <fmt/format.h>

#include <algorithm>

#include "allocator/listing.h"

#include "allocator/address_map.h"
#include "allocator/arena.h"

namespace spillway {

void list_blocks(const Heap& heap, std::vector<BlockRow>& rows) {
  heap.for_each_range([&](const CachedRange& each) {
    const CachedRange* range = &each;
    if (range->state == BlockState::kFree) return;
    if (const Slab* slab = range->slab; slab != nullptr) {
      for (uint32_t slot = 0; slot < slab->slots; ++slot) {
        const bool free_slot = Slab::test(slab->free_slots, slot);
        const BlockKind kind = free_slot                               ? BlockKind::kInactive
                               : Slab::test(slab->pending_slots, slot) ? BlockKind::kActivePendingFree
                                                                       : BlockKind::kActiveAllocated;
        rows.push_back({slab->va_of(slot), slab->slot_bytes(), free_slot ? 0u : slab->requested[slot], kind});
      }
      const uint64_t slots_bytes = slab->slots * slab->slot_bytes();
      if (slots_bytes < kSlabBytes)
        rows.push_back({range->va + slots_bytes, kSlabBytes - slots_bytes, 0, {}});
      rows.back().kind = slots_bytes < kSlabBytes ? BlockKind::kInactive : rows.back().kind;
    } else {
      const bool pending = range->state == BlockState::kPendingFree;
      rows.push_back({range->va, range->bytes(), range->requested_bytes,
                      pending ? BlockKind::kActivePendingFree : BlockKind::kActiveAllocated, range->stack});
    }
  });
  for (PageId id = 0; id < heap.store().home_end(); ++id) {
    const Page& page = heap.store().page(id);
    if (!heap.pages().owns(page)) continue;
    if (heap.pages().is_free(id)) rows.push_back({page.va, kPageBytes, 0, BlockKind::kInactive});
    for (const QuantumInterval& interval : page.free_quanta) {
      rows.push_back({page.va + interval.begin * kQuantumBytes, interval.quanta() * kQuantumBytes, 0,
                      BlockKind::kInactive});
    }
  }
}

Result<BlockRow> find_block(const Heap& heap, const CachedRange& range, uint64_t va) {
  if (range.heap == &heap) {
    if (const Slab* slab = range.slab; slab != nullptr) {
      const uint32_t slot = slab->slot_at(va);
      if (slot != kMostSlots && !Slab::test(slab->free_slots, slot)) {
        const bool pending = Slab::test(slab->pending_slots, slot);
        return BlockRow{va, slab->slot_bytes(), slab->requested[slot],
                        pending ? BlockKind::kActivePendingFree : BlockKind::kActiveAllocated};
      }
    } else if (range.va == va && range.state != BlockState::kFree) {
      const bool pending = range.state == BlockState::kPendingFree;
      return BlockRow{va, range.bytes(), range.requested_bytes,
                      pending ? BlockKind::kActivePendingFree : BlockKind::kActiveAllocated};
    }
  }
  return Status::invalid_pointer(fmt::format("no block begins at {:#x}", va));
}

namespace {

// Says which lock guards the member, as its own declaration cannot: Heap is not complete there.
void set_stack([[maybe_unused]] const Heap& heap, CachedRange& range, uint32_t stack)
    SPW_REQUIRES(heap.mutex) {
  range.stack = stack;
}

}  // namespace

void Arena::note_stack(const void* pointer, uint32_t stack) {
  CachedRange* const range = AddressMap::instance().find(reinterpret_cast<uint64_t>(pointer));
  if (range == nullptr || range->slab != nullptr) return;
  Heap& heap = *range->heap;
  const Lock lock(heap.mutex);
  set_stack(heap, *range, stack);
}

Result<FoundBlock> Arena::find_block(const void* pointer) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  if (CachedRange* range = AddressMap::instance().find(va); range != nullptr) {
    Heap& heap = *range->heap;
    const Lock lock(heap.mutex);
    Result<BlockRow> row = spillway::find_block(heap, *range, va);
    if (!row.ok()) return row.take_status();
    const HeapKey& key = heap.key;
    return FoundBlock{row.value(), heap.device(), reinterpret_cast<uint64_t>(key.stream), key.pool.first,
                      key.pool.second};
  }
  if (const Arena* arena = SharedBlocks::arena_of(va); arena != nullptr) {
    std::vector<SegmentRow> shared;
    {
      const ArenaLock lock(arena->parts_.mutex);
      arena->parts_.shared.list_segments(shared);
    }
    for (const SegmentRow& segment : shared) {
      for (const BlockRow& row : segment.blocks) {
        if (row.address == va && row.kind != BlockKind::kInactive) {
          return FoundBlock{row, arena->device(), segment.stream, 0, 0};
        }
      }
    }
  }
  return Status::invalid_pointer(fmt::format("no block begins at {:#x}", va));
}

namespace {

// Tells whether the range that was entered for the granule at `entered` is used, before `va`, and still one
// that the granule is a part of.
bool is_used_at(const Heap& heap, const CachedRange& range, uint64_t entered, uint64_t va)
    SPW_REQUIRES(heap.mutex) {
  return range.heap == &heap && range.state != BlockState::kFree && range.va <= va &&
         range.va < entered + kGranuleBytes && entered < range.va + range.bytes();
}

}  // namespace

Result<FoundBlock> Arena::find_block_around(const void* pointer, uint64_t most_bytes) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  const void* begin = nullptr;
  AddressMap::instance().find_before(va, most_bytes, [&](CachedRange& range, uint64_t entered) {
    Heap& heap = *range.heap;
    const Lock lock(heap.mutex);
    if (!is_used_at(heap, range, entered, va)) return false;
    // Blocks do not overlap: the nearest that is not free, or none.
    if (va - range.va >= range.bytes()) return true;
    const Slab* slab = range.slab;
    begin = reinterpret_cast<const void*>(
        slab == nullptr ? range.va : range.va + (va - range.va) / slab->slot_bytes() * slab->slot_bytes());
    return true;
  });
  Result<FoundBlock> found = find_block(begin);
  if (found.ok() && found->row.kind == BlockKind::kActiveAllocated) return found;
  return Status::invalid_pointer(fmt::format("{:#x} lies in no block", va));
}

std::vector<SegmentRow> Arena::segments() const {
  const ArenaLock lock(parts_.mutex);
  std::vector<SegmentRow> segments;
  for (const Heap* heap : heaps_.all()) {
    if (heap->use.is_away) continue;
    std::vector<BlockRow> rows;
    {
      const Lock heap_lock(const_cast<Heap*>(heap)->mutex);
      list_blocks(*heap, rows);
    }
    std::sort(rows.begin(), rows.end(),
              [](const BlockRow& a, const BlockRow& b) { return a.address < b.address; });
    uint64_t end = 0;
    for (const BlockRow& row : rows) {
      if (segments.empty() || end != row.address) {
        SegmentRow segment;
        segment.address = row.address;
        segment.stream = reinterpret_cast<uint64_t>(heap->key.stream);
        segment.pool_first = heap->key.pool.first;
        segment.pool_second = heap->key.pool.second;
        segments.push_back(std::move(segment));
      }
      SegmentRow& segment = segments.back();
      const bool joins = row.kind == BlockKind::kInactive && !segment.blocks.empty() &&
                         segment.blocks.back().kind == BlockKind::kInactive;
      if (joins) {
        segment.blocks.back().bytes += row.bytes;
      } else {
        segment.blocks.push_back(row);
      }
      segment.total_bytes += row.bytes;
      if (row.kind != BlockKind::kInactive) segment.active_bytes += row.bytes;
      if (row.kind == BlockKind::kActiveAllocated) segment.allocated_bytes += row.bytes;
      segment.requested_bytes += row.requested_bytes;
      end = row.address + row.bytes;
    }
  }
  parts_.shared.list_segments(segments);
  return segments;
}

void trace_end(Heap& heap) {
  heap.for_each_range([&](const CachedRange& each) {
    const CachedRange* range = &each;
    const bool is_pending = range->state == BlockState::kPendingFree;
    if (!is_pending && range->state != BlockState::kLive) return;
    const Slab* slab = range->slab;
    if (slab == nullptr)
      heap.counters.trace_end(is_pending, range->requested_bytes, range->bytes(), range->va);
    for (uint32_t slot = 0; slab != nullptr && slot < slab->slots; ++slot) {
      const bool was_freed = Slab::test(slab->pending_slots, slot);
      if (was_freed || slab->is_live(slot))
        heap.counters.trace_end(was_freed, slab->requested[slot], slab->slot_bytes(), slab->va_of(slot));
    }
  });
}

}  // namespace spillway
