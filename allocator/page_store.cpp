#include "allocator/page_store.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

// Only pages' tables point to some small blocks, and a leak checker does not look into mappings of ours
// unless told.
// The names are the leak checker's.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" __attribute__((weak)) void __lsan_register_root_region(const void* begin, size_t size);
extern "C" __attribute__((weak)) void __lsan_unregister_root_region(const void* begin, size_t size);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace spillway {
namespace {

constexpr uint64_t kAliasChunkBytes = uint64_t{64} << 30;
// Ids beyond what the device can back, so that gaps between segments do not exhaust them.
constexpr uint64_t kSpareIds = 1024;
// Created before the driver is asked again what is free.
constexpr uint64_t kMostUnaskedPages = 512;

Status no_headroom() {
  return Status::out_of_memory("what is free on the device stays free: the option reserve says so");
}

Page* map_page_table(PageId ids) {
  void* memory = mmap(nullptr, ids * sizeof(Page), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (__lsan_register_root_region != nullptr) __lsan_register_root_region(memory, ids * sizeof(Page));
  return static_cast<Page*>(memory);
}

}  // namespace

PageStore::PageStore(std::shared_ptr<const Driver> driver, int device, DeviceCounters& counters,
                     PageId id_capacity)
    : driver_(std::move(driver)),
      counters_(counters),
      device_(device),
      id_capacity_(id_capacity),
      devices_{device},
      backed_(id_capacity),
      in_extents_(id_capacity),
      pages_(map_page_table(id_capacity)) {}

Result<std::unique_ptr<PageStore>> PageStore::create(std::shared_ptr<const Driver> driver, int device,
                                                     const DeviceProperties& properties,
                                                     const PageStoreOptions& options,
                                                     DeviceCounters& counters) {
  const uint64_t device_pages = properties.total_bytes / kPageBytes;
  const uint64_t ids = 2 * device_pages + kSpareIds;
  if (device_pages == 0 || ids >= kNoPage) {
    return Status::unsupported(fmt::format("device {}: {} bytes of memory; allowed are 2 MiB to 4 PiB",
                                           device, properties.total_bytes));
  }
  std::unique_ptr<PageStore> store(
      new PageStore(std::move(driver), device, counters, static_cast<PageId>(ids)));
  store->device_bytes_ = properties.total_bytes;
  store->is_sourced_ = options.is_sourced;
  store->vmm_ = options.use_vmm && properties.vmm_supported && kPageBytes % properties.granularity_bytes == 0;
  // A device that does not say would perhaps refuse to create any page so.
  const bool can_export = store->vmm_ && properties.posix_handles == 1 && !properties.is_mig;
  // Network libraries register blocks that programs made like any others.
  store->sharing_ = sharing_of(options.exportable && can_export, store->vmm_ && properties.rdma_vmm == 1);
  if (store->vmm_) {
    Result<AddressRange> home = AddressRange::reserve(*store->driver_, ids * kPageBytes, kPageBytes);
    store->count(DriverCall::kReserve);
    if (!home.ok()) return home.take_status();
    store->home_ = std::move(home.value());
  }
  return store;
}

PageStore::~PageStore() {
  // Everything is given back without looking at answers: the driver may be gone at this point.
  const bool gives_back = vmm_ && !left_to_driver_;
  for (PageId id = 0; id < backed_.end(); ++id) {
    Page& page = pages_[id];
    for (Alias* alias = page.aliases; alias != nullptr;) {
      if (gives_back && alias->is_mapped)
        (void)unmap(*driver_, alias->view->va + alias->slot * kPageBytes, unit_of(id).count * kPageBytes);
      delete std::exchange(alias, alias->next);
    }
    page.free_quanta.reset();
    if (gives_back && page.handle != 0) (void)driver_->cuMemRelease(page.handle);
  }
  // What is mapped exists until it is unmapped.
  for (PageId first = 0; gives_back && first < backed_.end();) {
    PageId end = first;
    while (end < backed_.end() && pages_[end].is_home) ++end;
    if (end > first) (void)unmap(*driver_, pages_[first].va, (end - first) * kPageBytes);
    first = end + 1;
  }
  if (__lsan_unregister_root_region != nullptr) {
    __lsan_unregister_root_region(pages_, id_capacity_ * sizeof(Page));
  }
  munmap(pages_, id_capacity_ * sizeof(Page));
}

PageId PageStore::find_unbacked(uint32_t wanted) const {
  for (PageId id = 0; id < backed_.end();) {
    const PageId first = backed_.next_clear(id);
    const PageId last = backed_.next_set(first);
    if (last >= backed_.end()) break;
    if (last - first >= wanted) return first;
    id = last;
  }
  PageId end = backed_.end();
  while (end > 0 && !backed_.test(end - 1)) --end;
  return uint64_t{end} + wanted <= id_capacity_ ? end : kNoPage;
}

void PageStore::note_new_page(PageId id, uint64_t va, Heap* owner, CUmemGenericAllocationHandle handle) {
  Page& page = pages_[id];
  page.va = va;
  page.owner.store(owner, std::memory_order_relaxed);
  page.handle = handle;
  page.serial = ++pages_ever_;
  page.is_home = true;
  backed_.set(id);
  page_count_.fetch_add(1, std::memory_order_relaxed);
}

void PageStore::note_released_page(PageId id) {
  Page& page = pages_[id];
  page.owner.store(nullptr, std::memory_order_relaxed);
  page.handle = 0;
  if (std::exchange(page.is_home, false) && page.extent_index <= 1) --home_mappings_;
  leave_unit(id);
  backed_.clear(id);
  page_count_.fetch_sub(1, std::memory_order_relaxed);
  count_pages(-1);
}

void PageStore::set_headroom(uint64_t bytes) {
  headroom_bytes_.store(bytes, std::memory_order_relaxed);
  unasked_pages_ = 0;
}

uint32_t PageStore::beside_headroom(uint32_t pages) {
  const uint64_t headroom = headroom_bytes();
  if (headroom == 0) return pages;
  if (unasked_pages_ < pages) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    if (driver_->cuMemGetInfo(&free_bytes, &total_bytes) != CUDA_SUCCESS) return pages;
    const uint64_t room = free_bytes - std::min<uint64_t>(free_bytes, headroom);
    // Others take memory too.
    unasked_pages_ = std::min(room / kPageBytes, std::max<uint64_t>(pages, kMostUnaskedPages));
  }
  const auto allowed = static_cast<uint32_t>(std::min<uint64_t>(pages, unasked_pages_));
  unasked_pages_ -= allowed;
  return allowed;
}

Status PageStore::create_pages(PageId first, uint32_t wanted, Heap* owner, uint32_t* created,
                               const ExtentTerms& terms) {
  *created = 0;
  const uint64_t va = home_.base() + uint64_t{first} * kPageBytes;
  std::vector<NewUnit> units;
  NewRun run = plan_units({first, wanted}, terms);
  if (const uint32_t allowed = beside_headroom(run.most); allowed < run.most)
    run.most = run.needed = std::min(allowed, wanted);
  Status status = create_units(run, units);
  if (status.ok() && run.needed < wanted) status = no_headroom();
  device_is_full_.store(status.code() == SPW_ERROR_OUT_OF_MEMORY, std::memory_order_relaxed);
  if (units.empty()) return status;
  const uint32_t pages = units.back().pages.first + units.back().pages.count - first;
  if (Status access = grant(va, pages * kPageBytes); !access.ok()) {
    if (access.code() == SPW_ERROR_OUT_OF_MEMORY) device_is_full_.store(true, std::memory_order_relaxed);
    undo_units(units);
    return access;
  }
  for (const NewUnit& unit : units) {
    for (PageId id = unit.pages.first; id < unit.pages.first + unit.pages.count; ++id)
      note_new_page(id, home_.base() + uint64_t{id} * kPageBytes, owner, 0);
    set_unit(unit.pages, unit.handle);
    ++home_mappings_;
  }
  *created = pages;
  counters_.trace(TraceKind::kMap, va, pages * kPageBytes, pages * kPageBytes);
  count_pages(pages);
  return status;
}

Result<PageId> PageStore::next_segment(uint32_t wanted) const {
  for (const auto& [first, count] : free_ids_) {
    if (count > wanted) return first;
  }
  if (uint64_t{next_segment_id_} + wanted + 1 <= id_capacity_) return next_segment_id_;
  return Status::out_of_memory("page ids have run out: segments of too many sizes came and went");
}

void PageStore::take_ids(PageId first, uint32_t count) {
  if (first == next_segment_id_) {
    next_segment_id_ += count;
    return;
  }
  auto range = free_ids_.extract(first);
  if (range.mapped() == count) return;
  range.key() += count;
  range.mapped() -= count;
  free_ids_.insert(std::move(range));
}

void PageStore::give_back_ids(PageId first, uint32_t count) noexcept {
  try {
    auto range = free_ids_.emplace(first, count).first;
    if (const auto after = std::next(range); after != free_ids_.end() && after->first == first + count) {
      range->second += after->second;
      free_ids_.erase(after);
    }
    if (range != free_ids_.begin()) {
      if (const auto before = std::prev(range); before->first + before->second == first) {
        before->second += range->second;
        free_ids_.erase(range);
        range = before;
      }
    }
    if (range->first + range->second != next_segment_id_) return;
    next_segment_id_ = range->first;
    free_ids_.erase(range);
  } catch (const std::bad_alloc&) {
    // They are never given out again.
  }
}

void PageStore::note_new_segment(Segment segment, uint64_t va, Heap* owner) {
  take_ids(segment.first, segment.count + 1);
  for (uint32_t i = 0; i < segment.count; ++i)
    note_new_page(segment.first + i, va + i * kPageBytes, owner, 0);
  home_mappings_ += segment.count;
  count_pages(segment.count);
  segments_.push_back(std::move(segment));
}

Status PageStore::create_segment(uint32_t wanted, Heap* owner, PageId* first) {
  Result<PageId> id = next_segment(wanted);
  if (!id.ok()) return id.take_status();
  if (beside_headroom(wanted) < wanted) return no_headroom();
  count(DriverCall::kMemAlloc);
  Result<DeviceBlock> block = DeviceBlock::allocate(*driver_, wanted * kPageBytes);
  if (!block.ok()) return block.take_status();
  *first = id.value();
  const uint64_t va = block->base();
  note_new_segment({*first, wanted, std::move(block.value())}, va, owner);
  return {};
}

Status PageStore::add_segment(const SegmentMemory& memory, uint32_t pages, Heap* owner, PageId* first) {
  Result<PageId> id = next_segment(pages);
  if (!id.ok()) return id.take_status();
  *first = id.value();
  note_new_segment({*first, pages, {}, memory}, memory.first_byte(), owner);
  return {};
}

Result<uint64_t> PageStore::reserve_alias_range(uint64_t bytes) {
  // The lowest that fits: the tables by address stay small.
  for (auto range = free_alias_ranges_.begin(); range != free_alias_ranges_.end(); ++range) {
    const auto [va, free_bytes] = *range;
    if (free_bytes < bytes) continue;
    free_alias_ranges_.erase(range);
    if (free_bytes > bytes) free_alias_ranges_.emplace(va + bytes, free_bytes - bytes);
    return va;
  }
  // Its last page is never used, so that ranges of two reservations do not join.
  const uint64_t chunk = std::max(kAliasChunkBytes, bytes + kPageBytes);
  count(DriverCall::kReserve);
  Result<AddressRange> range = AddressRange::reserve(*driver_, chunk, kPageBytes);
  if (!range.ok()) return range.take_status();
  const uint64_t va = range->base();
  alias_chunks_.push_back(std::move(range.value()));
  give_back_alias_range(va + bytes, chunk - kPageBytes - bytes);
  return va;
}

void PageStore::give_back_alias_range(uint64_t va, uint64_t bytes) {
  if (bytes == 0) return;
  auto after = free_alias_ranges_.lower_bound(va);
  if (after != free_alias_ranges_.end() && after->first == va + bytes) {
    bytes += after->second;
    after = free_alias_ranges_.erase(after);
  }
  if (after != free_alias_ranges_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == va) {
      before->second += bytes;
      return;
    }
  }
  free_alias_ranges_.emplace_hint(after, va, bytes);
}

Result<View*> PageStore::map_view(const std::vector<PageId>& pages) {
  const uint64_t bytes = pages.size() * kPageBytes;
  Result<uint64_t> range = reserve_alias_range(bytes);
  if (!range.ok()) return range.take_status();
  const uint64_t va = range.value();
  uint32_t mapped = 0;
  Status status;
  while (mapped < pages.size()) {
    const PageRun unit = unit_of(pages[mapped]);
    count(DriverCall::kMap);
    status = map(*driver_, va + mapped * kPageBytes, unit.count * kPageBytes, pages_[unit.first].handle);
    if (!status.ok()) break;
    mapped += unit.count;
  }
  if (status.ok()) status = grant(va, bytes);
  const bool undone = !status.ok() && (mapped == 0 || undo_mapping(va, mapped * kPageBytes));
  if (undone) {
    give_back_alias_range(va, bytes);
    return status;
  }
  if (spare_views_.empty()) {
    views_.push_back(std::make_unique<View>());
    spare_views_.push_back(views_.back().get());
  }
  View* view = spare_views_.back();
  spare_views_.pop_back();
  view->va = va;
  view->pages = pages;
  view_slots_ += pages.size();
  view->mapped = mapped;
  // What could not be undone stays known, so that its pages are unmapped before they go, but serves nobody.
  view->retired = !status.ok();
  for (uint32_t slot = 0; slot < mapped; slot += unit_of(pages[slot]).count) {
    Page& page = pages_[pages[slot]];
    page.aliases = new Alias{view, slot, true, page.aliases};
    ++view_mappings_;
  }
  std::fill(view->pages.begin() + mapped, view->pages.end(), kNoPage);
  if (!status.ok()) return status;
  counters_.trace(TraceKind::kMap, va, bytes, 0);
  return view;
}

void PageStore::drop(View& view) {
  view.lose_ranges();
  counters_.trace(TraceKind::kUnmap, view.va, view.pages.size() * kPageBytes, 0);
  give_back_alias_range(view.va, view.pages.size() * kPageBytes);
  view_slots_ -= view.pages.size();
  view.pages.clear();
  view.mapped = 0;
  spare_views_.push_back(&view);
}

void PageStore::forget_unmapped(std::vector<PageId>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (const PageId id : ids) {
    for (Alias** link = &pages_[id].aliases; *link != nullptr;) {
      if ((*link)->view->pages[(*link)->slot] != kNoPage) {
        link = &(*link)->next;
      } else {
        delete std::exchange(*link, (*link)->next);
      }
    }
  }
}

Status PageStore::unmap_retired() {
  std::vector<View*> views;
  uint32_t mapped = 0;
  for_each_view([&](View& view) {
    if (!view.retired) return;
    views.push_back(&view);
    mapped += view.mapped;
  });
  std::sort(views.begin(), views.end(), [](const View* a, const View* b) { return a->va < b->va; });
  // A page may be shown by very many views: all that lose it are looked for at once.
  std::vector<PageId> shown;
  shown.reserve(mapped);
  Status status = unmap_stretches(views, shown);
  forget_unmapped(shown);
  for (View* view : views) {
    if (view->mapped == 0 && !view->pages.empty()) drop(*view);
  }
  return status;
}

Status PageStore::unmap_stretches(const std::vector<View*>& views, std::vector<PageId>& shown) {
  // A stretch of mapped slots, which may go on from one view into the next.
  uint64_t begin = 0;
  uint64_t end = 0;
  size_t first_view = 0;
  const auto unmap_stretch = [&](size_t last_view) SPW_REQUIRES(kArenaLock) -> Status {
    if (begin == end) return {};
    count(DriverCall::kUnmap);
    if (Status status = unmap(*driver_, begin, end - begin); !status.ok()) return status;
    for (size_t i = first_view; i <= last_view; ++i) {
      View& view = *views[i];
      for (uint32_t slot = 0; slot < view.pages.size(); ++slot) {
        const uint64_t va = view.va + slot * kPageBytes;
        if (view.pages[slot] == kNoPage || va < begin || va >= end) continue;
        const PageId id = std::exchange(view.pages[slot], kNoPage);
        --view.mapped;
        if (pages_[id].extent_index > 1) continue;
        shown.push_back(id);
        --view_mappings_;
      }
    }
    return {};
  };
  for (size_t i = 0; i < views.size(); ++i) {
    const uint64_t va = views[i]->va;
    const auto slots = static_cast<uint32_t>(views[i]->pages.size());
    for (uint32_t slot = 0; slot < slots; ++slot) {
      if (views[i]->pages[slot] == kNoPage) continue;
      if (va + slot * kPageBytes != end) {
        if (Status status = unmap_stretch(i); !status.ok()) return status;
        begin = va + slot * kPageBytes;
        first_view = i;
      }
      end = va + (slot + 1) * kPageBytes;
    }
  }
  return views.empty() ? Status() : unmap_stretch(views.size() - 1);
}

bool PageStore::undo_mapping(uint64_t va, uint64_t bytes) {
  for (int tries = 0; tries < 2; ++tries) {
    count(DriverCall::kUnmap);
    if (unmap(*driver_, va, bytes).ok()) return true;
  }
  return false;
}

void PageStore::lose_slots(View& view, uint32_t first, uint32_t count) {
  std::fill_n(view.pages.begin() + first, count, kNoPage);
  view.mapped -= count;
  view.lose_ranges();  // mutant: view-loses
  if (view.mapped == 0) drop(view);
}

uint64_t PageStore::metadata_bytes() const {
  return uint64_t{backed_.end()} * sizeof(Page) + backed_.end() / 8 + views_.size() * sizeof(View) +
         view_slots_ * sizeof(PageId) + view_mappings_ * sizeof(Alias);
}

}  // namespace spillway
