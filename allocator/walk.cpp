// Walks everything a heap and an arena hold: to check every counter against a count made from scratch, and to
// list segments and blocks for dumps.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "allocator/address_map.h"
#include "allocator/arena.h"

namespace spillway {
namespace {

struct UsedLines {
  uint32_t begin;
  uint32_t end;
};

Status broken(std::string what) {
  return Status::internal("validate: " + std::move(what));
}

}  // namespace

Status Heap::validate() const {
  std::map<PageId, std::vector<UsedLines>> used;
  int64_t active = 0;
  int64_t requested = 0;
  int64_t pending_bytes = 0;
  for (const std::unique_ptr<Place>& place : places_) {
    if (place->state == BlockState::kFree) continue;
    uint64_t lines = 0;
    for_each_piece(*place, [&](PageId page, uint32_t begin, uint32_t end) {
      used[page].push_back({begin, end});
      lines += end - begin;
    });
    if (lines != place->lines) {
      return broken(
          fmt::format("the block at {:#x} covers {} lines, not its {}", place->va, lines, place->lines));
    }
    if (const Slab* slab = place->slab; slab != nullptr) {
      uint32_t live = 0;
      for (uint32_t slot = 0; slot < slab->slots; ++slot) {
        if (Slab::test(slab->free_slots, slot)) continue;
        ++live;
        active += static_cast<int64_t>(slab->slot_bytes());
        requested += slab->requested[slot];
        if (Slab::test(slab->pending_slots, slot)) pending_bytes += static_cast<int64_t>(slab->slot_bytes());
      }
      if (live != slab->used) {
        return broken(
            fmt::format("the slab at {:#x} has {} used slots and counts {}", place->va, live, slab->used));
      }
    } else {
      active += static_cast<int64_t>(place->bytes());
      requested += static_cast<int64_t>(place->requested_bytes);
      if (place->state == BlockState::kPendingFree) pending_bytes += static_cast<int64_t>(place->bytes());
    }
  }

  uint32_t owned = 0;
  uint32_t vacant = 0;
  for (PageId id = 0; id < store_.home_end(); ++id) {
    const Page& page = store_.page(id);
    const bool mine = owns(page);
    if (!mine) {
      if (vacant_.test(id))
        return broken(fmt::format("page {} is vacant in a heap that does not own it", id));
      if (used.count(id) != 0)
        return broken(fmt::format("page {} has blocks of a heap that does not own it", id));
      continue;
    }
    ++owned;
    std::vector<UsedLines> pieces = used.count(id) != 0 ? used[id] : std::vector<UsedLines>();
    std::sort(pieces.begin(), pieces.end(),
              [](const UsedLines& a, const UsedLines& b) { return a.begin < b.begin; });
    uint32_t used_lines = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0 && pieces[i].begin < pieces[i - 1].end)
        return broken(fmt::format("two blocks share a line of page {}", id));
      if (!page.free_lines.empty()) {
        for (const LineInterval& interval : page.free_lines) {
          if (interval.begin < pieces[i].end && pieces[i].begin < interval.end) {
            return broken(fmt::format("page {} calls used lines free", id));
          }
        }
      }
      used_lines += pieces[i].end - pieces[i].begin;
    }
    if (vacant_.test(id)) {
      ++vacant;
      if (used_lines != 0 || !page.free_lines.empty())
        return broken(fmt::format("page {} is not vacant", id));
    } else if (used_lines == 0 || used_lines + page.free_lines.total_lines() != kPageLines) {
      return broken(fmt::format("page {}: {} lines used and {} free do not make a page", id, used_lines,
                                page.free_lines.total_lines()));
    }
  }
  if (owned != owned_count_ || vacant != vacant_count_) {
    return broken(fmt::format("{} pages and {} vacant ones are counted as {} and {}", owned, vacant,
                              owned_count_, vacant_count_));
  }

  const HeapStats counted = counters.snapshot();
  const auto differs = [&](const char* name, int64_t walked, int64_t count) {
    return walked == count ? Status()
                           : broken(fmt::format("{}: {} by walking, {} counted", name, walked, count));
  };
  const auto page_bytes = [](uint32_t pages) { return static_cast<int64_t>(pages * kPageBytes); };
  if (Status status = differs("active bytes", active, counted.active_bytes); !status.ok()) return status;
  if (Status status = differs("requested bytes", requested, counted.requested_bytes); !status.ok())
    return status;
  if (Status status = differs("pending bytes", pending_bytes, counted.pending_bytes); !status.ok())
    return status;
  if (Status status = differs("owned bytes", page_bytes(owned), counted.owned_bytes); !status.ok())
    return status;
  if (Status status = differs("cached free bytes", page_bytes(vacant), counted.cached_free_bytes);
      !status.ok()) {
    return status;
  }
  return differs("inactive split bytes", page_bytes(owned - vacant) - active, counted.inactive_split_bytes);
}

Status Arena::validate() const {
  const ArenaLock lock(parts_.mutex);
  const std::vector<Heap*> all = heaps_.all();
  const AllLocked locked(all);
  int64_t active = 0;
  int64_t owned = 0;
  int64_t cached = 0;
  std::map<const spw_stat*, int64_t> in_pools;
  for (const Heap* heap : all) {
    heap->mutex.assert_held();  // by `locked`
    if (Status status = heap->validate(); !status.ok()) return status;
    if (heap->counters.is_away()) continue;
    const HeapStats stats = heap->counters.snapshot();
    active += stats.active_bytes;
    owned += stats.owned_bytes;
    cached += stats.cached_free_bytes;
    in_pools[heap->pool_bytes()] += stats.owned_bytes;
  }
  Status counted;
  parts_.pools.for_each([&](const Pool& pool) {
    const spw_stat& bytes = pool.bytes;
    const int64_t walked = in_pools[&bytes];
    if (bytes.current == walked && bytes.peak >= walked) return;
    counted = broken(fmt::format("pool {{{}, {}}} holds {} bytes, {} counted, {} at its peak", pool.id.first,
                                 pool.id.second, walked, bytes.current, bytes.peak));
  });
  if (!counted.ok()) return counted;
  if (Status status = parts_.shared.validate(); !status.ok()) return status;
  const HeapStats shared = parts_.shared.stats();
  active += shared.active_bytes;
  owned += shared.owned_bytes;
  cached += shared.cached_free_bytes;
  const DeviceStats stats = parts_.counters.snapshot();
  const auto reserved = static_cast<int64_t>(parts_.store->reserved_bytes() + parts_.held_elsewhere_bytes());
  if (owned != reserved || stats.reserved_bytes.all.current != reserved) {
    return broken(fmt::format("{} bytes owned by heaps, {} held, {} counted as reserved", owned, reserved,
                              stats.reserved_bytes.all.current));
  }
  if (stats.active_bytes.all.current != active || stats.cached_free_bytes != cached ||
      stats.inactive_split_bytes.all.current != reserved - active - cached) {
    return broken(fmt::format("reserved {} = active {} + inactive split {} + cached free {} does not hold",
                              reserved, stats.active_bytes.all.current,
                              stats.inactive_split_bytes.all.current, stats.cached_free_bytes));
  }
  if (stats.requested_bytes.all.current > active || stats.allocated_bytes.all.current > active ||
      active > reserved) {
    return broken("requested, allocated <= active <= reserved does not hold");
  }
  return {};
}

std::vector<PageId> Heap::pages_of(const Place& place) {
  std::vector<PageId> pages;
  for_each_piece(place, [&](PageId page, uint32_t, uint32_t) { pages.push_back(page); });
  return pages;
}

void Heap::list_blocks(std::vector<BlockRow>& rows) const {
  for (const std::unique_ptr<Place>& place : places_) {
    if (place->state == BlockState::kFree) continue;
    if (const Slab* slab = place->slab; slab != nullptr) {
      for (uint32_t slot = 0; slot < slab->slots; ++slot) {
        const bool free_slot = Slab::test(slab->free_slots, slot);
        const BlockKind kind = free_slot                               ? BlockKind::kInactive
                               : Slab::test(slab->pending_slots, slot) ? BlockKind::kActivePendingFree
                                                                       : BlockKind::kActiveAllocated;
        rows.push_back({slab->va_of(slot), slab->slot_bytes(), free_slot ? 0u : slab->requested[slot], kind});
      }
      const uint64_t slots_bytes = slab->slots * slab->slot_bytes();
      if (slots_bytes < kSlabBytes)
        rows.push_back({place->va + slots_bytes, kSlabBytes - slots_bytes, 0, {}});
      rows.back().kind = slots_bytes < kSlabBytes ? BlockKind::kInactive : rows.back().kind;
    } else {
      const bool pending = place->state == BlockState::kPendingFree;
      rows.push_back({place->va, place->bytes(), place->requested_bytes,
                      pending ? BlockKind::kActivePendingFree : BlockKind::kActiveAllocated});
    }
  }
  for (PageId id = 0; id < store_.home_end(); ++id) {
    const Page& page = store_.page(id);
    if (!owns(page)) continue;
    if (vacant_.test(id)) rows.push_back({page.va, kPageBytes, 0, BlockKind::kInactive});
    for (const LineInterval& interval : page.free_lines) {
      rows.push_back(
          {page.va + interval.begin * kLineBytes, interval.lines() * kLineBytes, 0, BlockKind::kInactive});
    }
  }
}

Result<BlockRow> Heap::find_block(const Place& place, uint64_t va) const {
  if (place.heap == this) {
    if (const Slab* slab = place.slab; slab != nullptr) {
      const uint32_t slot = slab->slot_at(va);
      if (slot != kMostSlots && !Slab::test(slab->free_slots, slot)) {
        const bool pending = Slab::test(slab->pending_slots, slot);
        return BlockRow{va, slab->slot_bytes(), slab->requested[slot],
                        pending ? BlockKind::kActivePendingFree : BlockKind::kActiveAllocated};
      }
    } else if (place.va == va && place.state != BlockState::kFree) {
      const bool pending = place.state == BlockState::kPendingFree;
      return BlockRow{va, place.bytes(), place.requested_bytes,
                      pending ? BlockKind::kActivePendingFree : BlockKind::kActiveAllocated};
    }
  }
  return Status::invalid_pointer(fmt::format("no block begins at {:#x}", va));
}

Result<FoundBlock> Arena::find_block(const void* pointer) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  if (Place* place = AddressMap::instance().find(va); place != nullptr) {
    Heap& heap = *place->heap;
    const Lock lock(heap.mutex);
    Result<BlockRow> row = heap.find_block(*place, va);
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

Result<FoundBlock> Arena::find_block_around(const void* pointer, uint64_t most_bytes) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  const void* begin = nullptr;
  AddressMap::instance().find_before(va, most_bytes, [&](Place& place) {
    Heap& heap = *place.heap;
    const Lock lock(heap.mutex);
    if (place.heap != &heap || place.state == BlockState::kFree || place.va > va) return false;
    // Blocks do not overlap: the nearest that is not free, or none.
    if (va - place.va >= place.bytes()) return true;
    const Slab* slab = place.slab;
    begin = reinterpret_cast<const void*>(
        slab == nullptr ? place.va : place.va + (va - place.va) / slab->slot_bytes() * slab->slot_bytes());
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
    if (heap->counters.is_away()) continue;
    std::vector<BlockRow> rows;
    {
      const Lock heap_lock(const_cast<Heap*>(heap)->mutex);
      heap->list_blocks(rows);
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

}  // namespace spillway
