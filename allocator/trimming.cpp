#include "allocator/trimming.h"

#include <algorithm>
#include <utility>

#include "allocator/heap_lock.h"
#include "driver/capture.h"

namespace spillway {
namespace {

// Taken back under one hold of the arena's lock.
constexpr uint32_t kMostPagesAtOnce = 64;

// What the driver takes for a graph comes from what is free on the device: of it, a share of the device, at
// most so much.
constexpr uint64_t kGraphsShare = 64;
constexpr uint64_t kMostForGraphs = uint64_t{256} << 20;

}  // namespace

Status Trimming::settle() {
  // Segments cannot be joined: what is free in several serves a large block only from the driver again.
  return trim_heaps(heaps_.all(), nullptr, parts_.store->uses_vmm() ? Amount::kForGraphs : Amount::kAll);
}

Status Trimming::trim_for_now() {
  GivenBack given;
  Status status = trim_heaps(heaps_.all(), &given);
  const ArenaLock lock(parts_.mutex);
  if (!given.empty()) given_back_ = std::move(given);
  return status;
}

Status Trimming::trim_pool(PoolId id) {
  const std::vector<Heap*> owned = heaps_.of(id);
  const auto has_memory = [](Heap* heap) {
    const Lock heap_lock(heap->mutex);
    return heap->pages().owned() > 0;
  };
  return std::any_of(owned.begin(), owned.end(), has_memory) ? trim_heaps(owned) : Status();
}

void Trimming::keep_limit() {
  if (!parts_.exceeds_limit.load(std::memory_order_relaxed)) return;
  const std::vector<Heap*> all = heaps_.all();
  {
    const ArenaLock lock(parts_.mutex);
    parts_.update_most_pages();
    if (!parts_.exceeds_limit.load(std::memory_order_relaxed)) return;
    bool helps = parts_.shared.has_idle();
    for (Heap* heap : all) {
      const Lock heap_lock(heap->mutex);
      heap->release_empty_slabs();
      const bool may_give = !heap->use.keeps_pages && !heap->is_sourced();
      helps = helps || (may_give && (!heap->pending().empty() || heap->pages().free_count() > 0));
    }
    if (!helps) return;
  }
  // What cannot go now goes before a later request.
  (void)trim_heaps(all, nullptr, Amount::kToLimit);
}

Status Trimming::trim_heaps(const std::vector<Heap*>& chosen, GivenBack* given, Amount amount) {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  const std::vector<Heap*> all = heaps_.all();
  if (Status gone = context_gone(*parts_.driver); !gone.ok()) return gone;
  if (heaps_.any_capturing(all)) {  // mutant: trim-captures
    return Status::invalid_state("trim while a stream is being captured: nothing can be unmapped now");
  }
  // Questions about events and unmapping, too, would end a capture that the arena does not know of.
  const RelaxedCapture relaxed(*parts_.driver);
  // mutant: trim-waits
  if (Status status = waits_.synchronize_with_frees(all, chosen); !status.ok()) return status;
  Status released;
  Status pages;
  {
    const ArenaLock lock(parts_.mutex);
    if (chosen.size() == all.size()) released = parts_.shared.release_idle();
    parts_.update_most_pages();
    pages = release_free_pages(chosen, given, amount);
    parts_.update_most_pages();
  }
  sources_.return_segments();
  (void)mover_.give_up_freed();
  return released.ok() ? std::move(pages) : std::move(released);
}

Status Trimming::release_free_pages(const std::vector<Heap*>& chosen, GivenBack* given, Amount amount) {
  views_.on_pages_released();
  if (!parts_.store->uses_vmm()) return release_free_segments(chosen, amount);
  for (Heap* heap : chosen) {
    if (heap->is_sourced()) continue;
    const Lock heap_lock(heap->mutex);
    std::vector<PageId> pages;
    heap->list_leavable(pages);
    keep_units(parts_.store->pages(), pages, pages_to_go(amount));
    Status status = heap->release_free(pages);
    for (size_t i = 0; given != nullptr && i < pages.size(); ++i) given->emplace_back(heap, pages[i]);
    if (!status.ok()) return status;
  }
  return {};
}

size_t Trimming::pages_to_go(Amount amount) const {
  if (amount == Amount::kAll) return SIZE_MAX;
  const uint64_t most = parts_.store->most_pages();
  const uint64_t count = parts_.store->page_count();
  const uint64_t beyond_limit = count > most ? count - most : 0;
  return amount == Amount::kForGraphs ? std::max(beyond_limit, pages_for_graphs()) : beyond_limit;
}

uint64_t Trimming::pages_for_graphs() const {
  size_t free = 0;
  size_t total = 0;
  if (parts_.driver->cuMemGetInfo(&free, &total) != CUDA_SUCCESS) return 0;
  const uint64_t wanted = std::min<uint64_t>(total / kGraphsShare, kMostForGraphs);
  return wanted > free ? (wanted - free + kPageBytes - 1) / kPageBytes : 0;
}

Status Trimming::release_free_segments(const std::vector<Heap*>& chosen, Amount amount) {
  const AllLocked locked(heaps_.all());
  const auto owner_of = [&](PageId id) -> Heap& { return *parts_.store->page(id).owner.load(); };
  const auto is_chosen = [&](const Heap* heap) {
    return std::find(chosen.begin(), chosen.end(), heap) != chosen.end();
  };
  const auto goes = [&](PageId first, uint32_t count) {
    for (PageId id = first; id < first + count; ++id) {
      const Heap& owner = owner_of(id);
      owner.mutex.assert_held();  // by `locked`
      if (!is_chosen(&owner) || !owner.may_release(id)) return false;
    }
    return pages_to_go(amount) > 0;
  };
  const auto drop = [&](PageId first, uint32_t count) {
    for (PageId id = first; id < first + count; ++id) {
      Heap& owner = owner_of(id);
      owner.mutex.assert_held();  // by `locked`
      owner.drop_free(id, 1);
    }
  };
  return parts_.store->release_segments(goes, drop);
}

uint64_t Trimming::take_back() {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return 0;
  const RelaxedCapture relaxed(*parts_.driver);
  GivenBack wanted;
  {
    const ArenaLock lock(parts_.mutex);
    wanted.swap(given_back_);
    parts_.update_most_pages();
  }
  uint64_t taken = 0;
  for (size_t next = 0; next < wanted.size();) {
    // Others that need pages wait for a run at most.
    const ArenaLock lock(parts_.mutex);
    const auto [heap, first] = wanted[next];
    uint32_t count = 0;
    while (count < kMostPagesAtOnce && next < wanted.size() &&
           wanted[next] == std::pair{heap, first + count} && !parts_.store->backed(first + count)) {
      ++count;
      ++next;
    }
    if (count == 0) ++next;  // somebody was faster
    count = static_cast<uint32_t>(std::min<uint64_t>(count, parts_.store->easy_room_pages()));
    const Lock heap_lock(heap->mutex);
    if (count == 0 || heap->is_closed() || heap->key.pool.is_private()) continue;
    uint32_t created = 0;
    const ExtentTerms terms{heap->pages().extent_room(false)};
    const Status status = parts_.store->create_pages(first, count, heap, &created, terms);
    if (created > 0) heap->add_free(first, created);
    taken += uint64_t{created} * kPageBytes;
    if (!status.ok()) break;
  }
  return taken;
}

}  // namespace spillway
