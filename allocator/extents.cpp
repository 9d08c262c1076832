#include "allocator/extents.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "allocator/page_store.h"

namespace spillway {
namespace {

// Extents are made of runs that are so long, or end in one. Of a heap that frees, blocks of less than 80 MiB
// come and go, and leave parts of extents to others.
constexpr uint32_t least_run(ExtentRoom room) {
  return room == ExtentRoom::kQuarter ? 40 : 2 * kExtentPages;
}

// An extent is a small part of what may be held: at least so many would fit, 8 GiB.
constexpr uint64_t kLeastExtents = 256;
// Of a heap that frees, runs end in an extent only where it is a tiny part, 32 GiB: other blocks share it.
constexpr uint64_t kLeastExtentsToShare = 1024;

// What may be held is that much in eighths when no more extents are made.
constexpr uint64_t eighths(ExtentRoom room) {
  constexpr std::array<uint64_t, 5> kEighths = {0, 1, 2, 4, 7};
  return kEighths[static_cast<size_t>(room)];
}

}  // namespace

void keep_units(const Page* pages, std::vector<PageId>& ids, size_t most) {
  std::vector<PageId> kept;
  PageRun last{kNoPage, 0};  // an extent that is more than what still lacks
  const auto keep = [&](const PageRun& unit) {
    for (uint32_t i = 0; i < unit.count; ++i) kept.push_back(unit.first + i);
  };
  for (size_t at = 0; at < ids.size() && kept.size() < most;) {
    const PageRun unit = unit_of(pages, ids[at]);
    uint32_t there = 0;
    while (there < unit.count && at + there < ids.size() && ids[at + there] == unit.first + there) ++there;
    if (there == unit.count && unit.count > most - kept.size()) {
      last = unit;
    } else if (there == unit.count) {
      keep(unit);
    }
    at += std::max(there, 1u);
  }
  if (kept.size() < most) keep(last);
  ids = std::move(kept);
}

void widen_to_units(const Page* pages, std::vector<PageId>& ids) {
  std::vector<PageId> wide;
  for (const PageId id : ids) {
    const PageRun unit = unit_of(pages, id);
    if (unit.count > 1 && std::find(wide.begin(), wide.end(), id) != wide.end()) continue;
    for (uint32_t i = 0; i < unit.count; ++i) wide.push_back(unit.first + i);
  }
  ids = std::move(wide);
}

// ---- What the store has of them

uint64_t PageStore::attainable_pages() const {
  return std::min(
      {most_pages(), soft_most_pages_.load(std::memory_order_relaxed), device_bytes_ / kPageBytes});
}

bool PageStore::has_extent_room(uint32_t wanted, ExtentRoom room) const {
  if (device_is_full()) return false;
  const uint64_t most = attainable_pages();
  return most >= kLeastExtents * kExtentPages && page_count() + uint64_t{wanted} <= most * eighths(room) / 8;
}

PageStore::NewRun PageStore::plan_units(const PageRun& wanted, const ExtentTerms& terms) const {
  const uint32_t beyond = wanted.count % kExtentPages;
  const uint32_t spare = beyond == 0 ? 0 : kExtentPages - beyond;
  const PageId end = wanted.first + wanted.count;
  const PageId next = backed_.next_set(end);
  const bool is_followed = next < backed_.end() && next < end + spare;
  const bool frees = terms.room <= ExtentRoom::kQuarter;
  const bool may_share = !frees || attainable_pages() >= kLeastExtentsToShare * kExtentPages;
  const bool may_end_in_extent =
      may_share && spare <= terms.most_spare && !is_followed && uint64_t{end} + spare <= id_capacity_;
  const uint32_t most = wanted.count + (may_end_in_extent ? spare : 0);
  const bool is_shared = wanted.count < (frees ? least_run(terms.room) : kExtentPages);
  const ExtentRoom room = is_shared ? std::min(terms.room, ExtentRoom::kEighth) : terms.room;
  if ((wanted.count < least_run(terms.room) && !may_end_in_extent) || !has_extent_room(most, room))
    return {wanted.first, wanted.count, wanted.count, false};
  return {wanted.first, wanted.count, most, true};
}

Status PageStore::create_units(NewRun run, std::vector<NewUnit>& units) {
  units.reserve(run.makes_extents ? run.most / kExtentPages + kExtentPages : run.most);
  for (uint32_t made = 0; made < (run.makes_extents ? run.most : run.needed);) {
    const uint32_t pages = run.makes_extents && run.most - made >= kExtentPages ? kExtentPages : 1;
    count(DriverCall::kCreate);
    Result<PhysicalHandle> handle = PhysicalHandle::create(*driver_, device_, pages * kPageBytes, sharing_);
    if (!handle.ok()) {
      if (pages == 1 || handle.status().code() != SPW_ERROR_OUT_OF_MEMORY) return handle.take_status();
      run.makes_extents = false;  // single pages take what is left
      continue;
    }
    const PageRun unit{run.first + made, pages};
    count(DriverCall::kMap);
    Status mapped = map(*driver_, home_.base() + uint64_t{unit.first} * kPageBytes, handle.value());
    if (!mapped.ok()) return mapped;
    units.push_back({unit, 0});
    units.back().handle = handle->detach();
    made += pages;
  }
  return {};
}

void PageStore::set_unit(const PageRun& pages, CUmemGenericAllocationHandle handle) {
  pages_[pages.first].handle = handle;
  if (pages.count == 1) return;
  extents_.fetch_add(1, std::memory_order_relaxed);
  in_extents_.set(pages.first, pages.count);
  for (uint32_t i = 0; i < pages.count; ++i)
    pages_[pages.first + i].extent_index = static_cast<uint8_t>(i + 1);
}

void PageStore::leave_unit(PageId id) {
  const uint8_t index = std::exchange(pages_[id].extent_index, 0);
  if (index == 0) return;
  in_extents_.clear(id);
  if (index == 1) extents_.fetch_sub(1, std::memory_order_relaxed);
}

void PageStore::undo_units(const std::vector<NewUnit>& units) {
  const PageId first = units.front().pages.first;
  const PageId end = units.back().pages.first + units.back().pages.count;
  // Nobody has used them: they can go without a wait.
  const bool unmapped = undo_mapping(home_.base() + uint64_t{first} * kPageBytes, (end - first) * kPageBytes);
  for (const NewUnit& unit : units) {
    if (unmapped) {
      count(DriverCall::kRelease);
      (void)driver_->cuMemRelease(unit.handle);
      continue;
    }
    // The driver holds on to them: their ids are not used again, and the end of the store tries once more.
    for (PageId id = unit.pages.first; id < unit.pages.first + unit.pages.count; ++id) {
      pages_[id].va = home_.base() + uint64_t{id} * kPageBytes;
      pages_[id].is_home = true;
      backed_.set(id);
    }
    set_unit(unit.pages, unit.handle);
  }
}

Status PageStore::validate_extents() const {
  uint32_t extents = 0;
  for (PageId id = 0; id < backed_.end();) {
    const PageRun unit = unit_of(id);
    if (unit.count > 1 && backed_.test(id)) {
      ++extents;
      const Heap* owner = pages_[id].owner.load(std::memory_order_relaxed);
      for (uint32_t i = 0; i < unit.count; ++i) {
        const Page& page = pages_[unit.first + i];
        const bool is_of_it = unit.first == id && page.extent_index == i + 1 &&
                              backed_.test(unit.first + i) &&
                              page.owner.load(std::memory_order_relaxed) == owner;
        const bool has_no_more = i == 0 || (page.handle == 0 && page.aliases == nullptr);
        if (!is_of_it || !has_no_more)
          return Status::internal(
              fmt::format("validate: page {} is no part of the extent at {}", id + i, id));
      }
    }
    id = unit.first + unit.count;
  }
  if (extents == extents_.load(std::memory_order_relaxed)) return {};
  return Status::internal(fmt::format("validate: {} extents, {} counted", extents, extents_.load()));
}

}  // namespace spillway
