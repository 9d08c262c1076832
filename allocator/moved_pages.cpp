// Pages that leave the device, for good or to come back to the same addresses. Who copies their bytes
// meanwhile, and when nothing uses them, is the mover's to know (pool_mover.h).

#include <algorithm>
#include <new>
#include <utility>

#include "allocator/page_store.h"

namespace spillway {

// A mapping of a unit, a page or an extent: at home where there is no alias.
struct PageStore::Mapping {
  uint64_t va;
  Page* page;  // its first
  Alias* alias;
  uint32_t pages;

  uint64_t bytes() const { return pages * kPageBytes; }
  uint64_t end_va() const { return va + bytes(); }
  bool is_mapped() const { return alias == nullptr ? page->is_home : alias->is_mapped; }
  void set_mapped(bool mapped) const {
    if (alias != nullptr) {
      alias->is_mapped = mapped;
      return;
    }
    for (uint32_t i = 0; i < pages; ++i) page[i].is_home = mapped;
  }
};

namespace {

bool is_mapped_somewhere(const Page& page) {
  bool mapped = page.is_home;
  for (const Alias* alias = page.aliases; alias != nullptr; alias = alias->next)
    mapped = mapped || alias->is_mapped;
  return mapped;
}

// Calls visit(first, end) for each run of mappings that `are(mapping)` and whose addresses lie in a row.
template <typename Mappings, typename Are, typename Visit>
void for_each_run(const Mappings& mappings, Are are, Visit visit) {
  for (size_t first = 0; first < mappings.size();) {
    size_t end = first;
    while (end < mappings.size() && are(mappings[end]) &&
           (end == first || mappings[end].va == mappings[end - 1].end_va())) {
      ++end;
    }
    if (end > first) visit(first, end);
    first = std::max(end, first + 1);
  }
}

}  // namespace

std::vector<PageStore::Mapping> PageStore::mappings_of(const std::vector<PageId>& pages) const {
  std::vector<Mapping> all;
  for (const PageId id : pages) {
    Page& page = pages_[id];
    if (page.extent_index > 1) continue;
    const uint32_t count = unit_of(id).count;
    all.push_back({page.va, &page, nullptr, count});
    for (Alias* alias = page.aliases; alias != nullptr; alias = alias->next)
      all.push_back({alias->view->va + alias->slot * kPageBytes, &page, alias, count});
  }
  std::sort(all.begin(), all.end(), [](const Mapping& a, const Mapping& b) { return a.va < b.va; });
  return all;
}

void PageStore::note_mapped(const Mapping& mapping, bool mapped) {
  mapping.set_mapped(mapped);
  uint32_t& mappings = mapping.alias == nullptr ? home_mappings_ : view_mappings_;
  mapped ? ++mappings : --mappings;
}

template <typename Are, typename Done>
Status PageStore::unmap_runs(const std::vector<Mapping>& mappings, Are are, Done done) {
  Status all;
  for_each_run(mappings, are, [&](size_t first, size_t end) {
    kArenaLock.assert_held();  // by this function
    count(DriverCall::kUnmap);
    Status one = unmap(*driver_, mappings[first].va, mappings[end - 1].end_va() - mappings[first].va);
    if (!one.ok()) {
      if (all.ok()) all = std::move(one);
      return;
    }
    for (size_t i = first; i < end; ++i) note_mapped(mappings[i], false);
    done(first, end);
  });
  return all;
}

void PageStore::lose_unmapped(const std::vector<PageId>& pages, const KeepsSlot& keeps) {
  for (const PageId id : pages) {
    const uint32_t count = unit_of(id).count;
    const auto keeps_any = [&](const Alias& alias) {
      uint32_t slot = alias.slot;
      while (slot < alias.slot + count && !keeps(alias.view, slot)) ++slot;
      return slot < alias.slot + count;
    };
    for (Alias** link = &pages_[id].aliases; *link != nullptr;) {
      Alias& alias = **link;
      if (alias.is_mapped || keeps_any(alias)) {
        link = &alias.next;
        continue;
      }
      try {
        lose_slots(*alias.view, alias.slot, count);
      } catch (const std::bad_alloc&) {
        // The view's addresses are not used again.
      }
      delete std::exchange(*link, alias.next);
    }
  }
}

Status PageStore::release_pages(const std::vector<PageId>& pages) {
  const std::vector<Mapping> mappings = mappings_of(pages);
  // Those at home go last: a page that stays is mapped there.
  const auto is_alias = [](const Mapping& mapping) { return mapping.alias != nullptr; };
  Status status = unmap_runs(mappings, is_alias, [](size_t, size_t) {});
  lose_unmapped(pages, [](const View*, uint32_t) { return false; });
  const auto may_go = [&](const Mapping& mapping) {
    return mapping.alias == nullptr && mapping.page->aliases == nullptr;
  };
  Status homes = unmap_runs(mappings, may_go, [&](size_t first, size_t end) {
    const uint64_t bytes = mappings[end - 1].end_va() - mappings[first].va;
    counters_.trace(TraceKind::kUnmap, mappings[first].va, bytes, bytes);
  });
  if (status.ok()) status = std::move(homes);
  for (const PageId id : pages) {
    if (pages_[id].is_home) continue;
    Status released;
    if (pages_[id].extent_index <= 1) {
      count(DriverCall::kRelease);
      released = driver_->check(driver_->cuMemRelease(pages_[id].handle), "cuMemRelease");
    }
    note_released_page(id);
    if (status.ok()) status = std::move(released);
  }
  return status;
}

void PageStore::count_out(const std::vector<PageId>& pages, bool out) {
  const auto count = static_cast<uint32_t>(pages.size());
  if (out) {
    page_count_.fetch_sub(count, std::memory_order_relaxed);
  } else {
    page_count_.fetch_add(count, std::memory_order_relaxed);
  }
  count_pages(out ? -int64_t{count} : int64_t{count});
}

void PageStore::take_out(const std::vector<PageId>& pages, const KeepsSlot& keeps) {
  take_out(pages, mappings_of(pages), keeps);
}

void PageStore::take_out(const std::vector<PageId>& pages, const std::vector<Mapping>& mappings,
                         const KeepsSlot& keeps) {
  const auto is_mapped = [](const Mapping& mapping) { return mapping.is_mapped(); };
  (void)unmap_runs(mappings, is_mapped, [](size_t, size_t) {});
  lose_unmapped(pages, keeps);
  for (const PageId id : pages) {
    Page& page = pages_[id];
    if (page.handle == 0 || is_mapped_somewhere(page)) continue;
    count(DriverCall::kRelease);
    (void)driver_->cuMemRelease(std::exchange(page.handle, 0));
  }
  note_room();
}

Status PageStore::put_back(const std::vector<PageId>& pages) {
  const std::vector<Mapping> mappings = mappings_of(pages);
  Status status = caught([&]() -> Status {
    kArenaLock.assert_held();  // by this function
    for (const PageId id : pages) {
      const PageRun unit = unit_of(id);
      if (unit.first != id || pages_[id].handle != 0) continue;
      count(DriverCall::kCreate);
      Result<PhysicalHandle> handle =
          PhysicalHandle::create(*driver_, device_, unit.count * kPageBytes, sharing_);
      if (!handle.ok()) return handle.take_status();
      pages_[id].handle = handle->detach();
      for (uint32_t i = 0; i < unit.count; ++i) pages_[id + i].serial = ++pages_ever_;
    }
    for (const Mapping& mapping : mappings) {
      if (mapping.is_mapped()) continue;
      count(DriverCall::kMap);
      Status one = map(*driver_, mapping.va, mapping.bytes(), mapping.page->handle);
      if (!one.ok()) return one;
      note_mapped(mapping, true);
    }
    Status granted;
    for_each_run(
        mappings, [](const Mapping&) { return true; },
        [&](size_t first, size_t end) {
          kArenaLock.assert_held();  // by this function
          const uint64_t va = mappings[first].va;
          if (granted.ok()) granted = grant(va, mappings[end - 1].end_va() - va);
        });
    return granted;
  });
  if (!status.ok()) take_out(pages, mappings, [](const View*, uint32_t) { return true; });
  return status;
}

void PageStore::forget_out(const std::vector<PageId>& pages) noexcept {
  try {
    take_out(pages, [](const View*, uint32_t) { return false; });
  } catch (const std::bad_alloc&) {
    // Their numbers are not used again.
  }
  for (const PageId id : pages) {
    Page& page = pages_[id];
    page.owner.store(nullptr, std::memory_order_relaxed);
    // What the driver holds on to keeps its number, and the end of the store tries once more.
    const Page& first = pages_[unit_of(id).first];
    if (first.handle != 0 || first.aliases != nullptr) continue;
    leave_unit(id);
    backed_.clear(id);
  }
}

uint64_t PageStore::stuck_bytes(const std::vector<PageId>& pages) const {
  const auto stuck = std::count_if(pages.begin(), pages.end(),
                                   [this](PageId id) { return pages_[unit_of(id).first].handle != 0; });
  return static_cast<uint64_t>(stuck) * kPageBytes;
}

}  // namespace spillway
