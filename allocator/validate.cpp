// Walks everything that a heap and an arena hold, and checks every counter against a count made from scratch.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "allocator/arena.h"
#include "allocator/listing.h"

namespace spillway {
namespace {

struct UsedQuanta {
  uint32_t begin;
  uint32_t end;
};

// The blocks of one heap, counted.
struct WalkedBlocks {
  std::map<PageId, std::vector<UsedQuanta>> used;
  int64_t active = 0;
  int64_t requested = 0;
  int64_t pending = 0;
};

Status broken(std::string what) {
  return Status::internal("validate: " + std::move(what));
}

Status walk_slab(const Slab& slab, WalkedBlocks& walked) {
  const auto slot_bytes = static_cast<int64_t>(slab.slot_bytes());
  uint32_t live = 0;
  for (uint32_t slot = 0; slot < slab.slots; ++slot) {
    if (Slab::test(slab.free_slots, slot)) continue;
    ++live;
    walked.active += slot_bytes;
    walked.requested += slab.requested[slot];
    if (Slab::test(slab.pending_slots, slot)) walked.pending += slot_bytes;
  }
  if (live == slab.used) return {};
  return broken(
      fmt::format("the slab at {:#x} has {} used slots and counts {}", slab.range->va, live, slab.used));
}

Status walk_block(const CachedRange& range, WalkedBlocks& walked) {
  if (range.state == BlockState::kFree) return {};
  uint64_t quanta = 0;
  for_each_piece(range, [&](PageId page, uint32_t begin, uint32_t end) {
    walked.used[page].push_back({begin, end});
    quanta += end - begin;
  });
  if (quanta != range.quanta) {
    return broken(
        fmt::format("the block at {:#x} covers {} quanta, not its {}", range.va, quanta, range.quanta));
  }
  if (range.slab != nullptr) return walk_slab(*range.slab, walked);
  walked.active += static_cast<int64_t>(range.bytes());
  walked.requested += static_cast<int64_t>(range.requested_bytes);
  if (range.state == BlockState::kPendingFree) walked.pending += static_cast<int64_t>(range.bytes());
  return {};
}

// Checks a page of the heap: what is used of it, and what it calls free.
Status check_page(PageId id, const Page& page, bool is_free, std::vector<UsedQuanta> pieces) {
  std::sort(pieces.begin(), pieces.end(),
            [](const UsedQuanta& a, const UsedQuanta& b) { return a.begin < b.begin; });
  uint32_t used_quanta = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0 && pieces[i].begin < pieces[i - 1].end)
      return broken(fmt::format("two blocks share a quantum of page {}", id));
    for (const QuantumInterval& interval : page.free_quanta) {
      if (interval.begin < pieces[i].end && pieces[i].begin < interval.end)
        return broken(fmt::format("page {} calls used quanta free", id));
    }
    used_quanta += pieces[i].end - pieces[i].begin;
  }
  if (is_free) {
    return used_quanta != 0 || !page.free_quanta.empty() ? broken(fmt::format("page {} is not free", id))
                                                         : Status();
  }
  if (used_quanta != 0 && used_quanta + page.free_quanta.total_quanta() == kPageQuanta) return {};
  return broken(fmt::format("page {}: {} quanta used and {} free do not make a page", id, used_quanta,
                            page.free_quanta.total_quanta()));
}

Status same(const char* name, int64_t walked, int64_t counted) {
  return walked == counted ? Status()
                           : broken(fmt::format("{}: {} by walking, {} counted", name, walked, counted));
}

int64_t page_bytes(uint32_t pages) {
  return static_cast<int64_t>(pages * kPageBytes);
}

// `walked` has the bytes that heaps own, by the counter of their pool.
Status validate_pools(const PoolTable& pools, std::map<const spw_stat*, int64_t>& walked) {
  Status status;
  pools.for_each([&](const Pool& pool) {
    const spw_stat& bytes = pool.bytes;
    const int64_t owned = walked[&bytes];
    if (bytes.current == owned && bytes.peak >= owned) return;
    status = broken(fmt::format("pool {{{}, {}}} holds {} bytes, {} counted, {} at its peak", pool.id.first,
                                pool.id.second, owned, bytes.current, bytes.peak));
  });
  return status;
}

}  // namespace

Status validate(const Heap& heap) {
  WalkedBlocks walked;
  Status status;
  heap.for_each_range([&](const CachedRange& range) {
    if (status.ok()) status = walk_block(range, walked);
  });
  if (!status.ok()) return status;

  uint32_t owned = 0;
  uint32_t free = 0;
  for (PageId id = 0; id < heap.store().home_end(); ++id) {
    const Page& page = heap.store().page(id);
    const bool is_free = heap.pages().is_free(id);
    const auto used = walked.used.find(id);
    if (!heap.pages().owns(page)) {
      if (is_free) return broken(fmt::format("page {} is free in a heap that does not own it", id));
      if (used != walked.used.end())
        return broken(fmt::format("page {} has blocks of a heap that does not own it", id));
      continue;
    }
    ++owned;
    free += is_free;
    std::vector<UsedQuanta> pieces;
    if (used != walked.used.end()) pieces = used->second;
    status = check_page(id, page, is_free, std::move(pieces));
    if (!status.ok()) return status;
  }
  if (owned != heap.pages().owned() || free != heap.pages().free_count()) {
    return broken(fmt::format("{} pages and {} free ones are counted as {} and {}", owned, free,
                              heap.pages().owned(), heap.pages().free_count()));
  }

  const HeapStats counted = heap.counters.snapshot();
  for (const Status& one : {
           same("active bytes", walked.active, counted.active_bytes),
           same("requested bytes", walked.requested, counted.requested_bytes),
           same("pending bytes", walked.pending, counted.pending_bytes),
           same("owned bytes", page_bytes(owned), counted.owned_bytes),
           same("cached free bytes", page_bytes(free), counted.cached_free_bytes),
           same("inactive split bytes", page_bytes(owned - free) - walked.active,
                counted.inactive_split_bytes),
       }) {
    if (!one.ok()) return one;
  }
  return {};
}

void Arena::check_now_and_then() {
  constexpr uint64_t kMissesPerCheck = 256;
  if (misses_.fetch_add(1, std::memory_order_relaxed) % kMissesPerCheck != 0) return;
  const Status found = validate();
  if (found.ok() || is_broken_.exchange(true) || parts_.options.on_broken == nullptr) return;
  parts_.options.on_broken(found);
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
    if (Status status = spillway::validate(*heap); !status.ok()) return status;
    if (heap->use.is_away) continue;
    const HeapStats stats = heap->counters.snapshot();
    active += stats.active_bytes;
    owned += stats.owned_bytes;
    cached += stats.cached_free_bytes;
    in_pools[heap->pool_bytes()] += stats.owned_bytes;
  }
  if (Status status = validate_pools(parts_.pools, in_pools); !status.ok()) return status;
  if (Status status = parts_.store->validate_extents(); !status.ok()) return status;
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

}  // namespace spillway
