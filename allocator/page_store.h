// The physical memory of one device and the address ranges over it.
//
// Every page is mapped once in the *home view*, one large reservation in which page id i lies at base + i * 2
// MiB, for as long as the page exists; whichever heap owns the page may use it there. Scattered pages are
// made contiguous by an *aliasing view*: another range onto which the same pages are mapped. Mapping needs no
// wait; a page is released only when it is unmapped everywhere, after all its users.
//
// Several pages may be one handle, an extent (extents.h): they are mapped, released and moved together.
//
// Pages can be taken out of the device and put back under the same addresses (moved_pages.cpp).
//
// Without virtual memory management (or with backend:malloc) pages come in *segments* of cuMemAlloc: runs of
// consecutive ids, one unused id between two segments, and there are no aliasing views.
//
// Every method needs the arena's lock unless it says otherwise. The page's `free_quanta`, `links` and `dirty`
// belong to the owner's heap.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "allocator/bitmap.h"
#include "allocator/cached_range.h"
#include "allocator/extents.h"
#include "allocator/mutex.h"
#include "allocator/page.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "driver/memory.h"
#include "stats/counters.h"

namespace spillway {

// An aliasing view: slot i of the range shows page pages[i]. A slot whose page was released holds kNoPage. A
// view that is retired, or whose last slot is gone, gives its range back; the object serves again.
struct View {
  uint64_t va = 0;
  std::vector<PageId> pages;
  uint32_t mapped = 0;
  bool retired = false;  // no range may be made in it
  // Counts what its ranges cannot outlive: a slot lost, a retirement. Read under any heap's lock.
  std::atomic<uint32_t> generation{0};

  uint64_t end_va() const { return va + pages.size() * kPageBytes; }
  void lose_ranges() { generation.fetch_add(1, std::memory_order_relaxed); }
};

// Its view lost a page or is retired: the bytes under its address are not the range's any more.
inline bool is_lost(const CachedRange& range) {
  return range.view != nullptr &&
         range.view->generation.load(std::memory_order_relaxed) != range.view_generation;
}

// Device memory that a pool's source gave, and takes back.
struct SegmentMemory {
  void* pointer = nullptr;
  uint64_t bytes = 0;

  uint64_t va() const { return reinterpret_cast<uint64_t>(pointer); }
  // Says where pages may begin, so that slabs lie on their boundaries.
  uint64_t first_byte() const { return (va() + kSlabBytes - 1) / kSlabBytes * kSlabBytes; }
};

struct PageStoreOptions {
  bool use_vmm = true;
  bool exportable = true;   // where the device can: pages may be shown to other processes
  bool is_sourced = false;  // all memory comes by add_segment()
};

class PageStore {
 public:
  static Result<std::unique_ptr<PageStore>> create(std::shared_ptr<const Driver> driver, int device,
                                                   const DeviceProperties& properties,
                                                   const PageStoreOptions& options, DeviceCounters& counters);
  ~PageStore();

  bool uses_vmm() const { return vmm_; }
  bool is_sourced() const { return is_sourced_; }
  bool is_exportable() const { return is_for_processes(sharing_); }
  int device() const { return device_; }
  uint64_t device_bytes() const { return device_bytes_; }

  // Stable for the life of the store; see page.h for who may touch which field.
  Page* pages() const { return pages_; }
  Page& page(PageId id) const { return pages_[id]; }
  PageId id_capacity() const { return id_capacity_; }
  // One past the highest id that has memory.
  PageId home_end() const { return backed_.end(); }
  bool backed(PageId id) const { return backed_.test(id); }

  uint64_t reserved_bytes() const { return uint64_t{page_count()} * kPageBytes; }
  uint32_t page_count() const { return page_count_.load(std::memory_order_relaxed); }
  // No more than this many pages are created; lowering it below page_count() releases nothing.
  void set_most_pages(uint64_t pages) { most_pages_ = pages; }
  // Above so many pages more are created only for what nothing else serves without a host wait.
  void set_soft_most_pages(uint64_t pages) { soft_most_pages_ = pages; }
  // See Purchase; 0: nothing is bought. Need no lock.
  void set_slack_percent(double percent) { slack_percent_.store(percent, std::memory_order_relaxed); }
  double slack_percent() const { return slack_percent_.load(std::memory_order_relaxed); }
  uint64_t most_pages() const { return most_pages_.load(std::memory_order_relaxed); }
  uint64_t room_pages() const {
    const uint64_t most = most_pages();
    const uint32_t count = page_count();
    return most > count ? most - count : 0;
  }
  // So much of the device stays free while pages are created, by what the driver calls free; it is asked
  // again after so many pages. 0: all of it may be taken, and nothing is asked.
  void set_headroom(uint64_t bytes) SPW_REQUIRES(kArenaLock);
  uint64_t headroom_bytes() const { return headroom_bytes_.load(std::memory_order_relaxed); }
  // Returns the same within the soft limit.
  uint64_t easy_room_pages() const {
    const uint64_t most = soft_most_pages_.load(std::memory_order_relaxed);
    const uint32_t count = page_count();
    return std::min(room_pages(), most > count ? most - count : 0);
  }
  // Easy room for so many pages more, as far as is known without trying: others may have filled the device.
  // Needs no lock.
  bool may_have_room(uint64_t pages) const {
    return !device_is_full_.load(std::memory_order_relaxed) && easy_room_pages() >= pages;
  }
  // The driver had no page left when it was asked last, or note_room() since. Need no lock.
  bool device_is_full() const { return device_is_full_.load(std::memory_order_relaxed); }
  void note_room() { device_is_full_.store(false, std::memory_order_relaxed); }
  uint32_t live_mappings() const SPW_REQUIRES(kArenaLock) { return home_mappings_ + view_mappings_; }
  uint32_t home_mappings() const SPW_REQUIRES(kArenaLock) { return home_mappings_; }

  // The pages that are mapped, released and moved with this one: an extent, or it alone.
  PageRun unit_of(PageId id) const { return spillway::unit_of(pages_, id); }
  // Says which pages are in extents. Those of a heap's own pages change nowhere while it has them.
  const Bitmap& in_extents() const { return in_extents_; }
  bool has_extents() const { return extents_.load(std::memory_order_relaxed) > 0; }

  // The lowest run of `count` consecutive ids without memory; kNoPage when ids have run out.
  PageId find_unbacked(uint32_t count) const SPW_REQUIRES(kArenaLock);

  // Creates pages [first, first + count) for `owner`, and what ends in an extent beyond them, in extents as
  // far as `terms` and the room allow, and maps them at home. Stops at the first failure; `created` says how
  // many exist then, all usable. Their bytes are free; the caller tells the owner's heap.
  Status create_pages(PageId first, uint32_t count, Heap* owner, uint32_t* created,
                      const ExtentTerms& terms = {}) SPW_REQUIRES(kArenaLock);
  // Without VMM: one segment of at least `count` pages, at ids of the store's choice.
  Status create_segment(uint32_t count, Heap* owner, PageId* first) SPW_REQUIRES(kArenaLock);

  // Makes the same from memory that was got elsewhere, which must hold the pages behind its first_byte().
  Status add_segment(const SegmentMemory& memory, uint32_t count, Heap* owner, PageId* first)
      SPW_REQUIRES(kArenaLock);

  // Maps the pages, each at most once, into a new range; extents whole and in their order.
  Result<View*> map_view(const std::vector<PageId>& pages) SPW_REQUIRES(kArenaLock);

  // Whoever may use the pages: the device itself, and its peers.
  const std::vector<int>& devices() const SPW_REQUIRES(kArenaLock) { return devices_; }
  bool is_granted(int device) const SPW_REQUIRES(kArenaLock) {
    return std::find(devices_.begin(), devices_.end(), device) != devices_.end();
  }
  // Gives another device access to every page, in every view, now and from now on. On failure all is as it
  // was, or the text says what is not. peers.cpp.
  Status grant_peer(int peer) SPW_REQUIRES(kArenaLock);

  // Unmaps views that lost their ranges (View::lose_ranges, retired) and that no work uses any more,
  // neighbours in one call. Stops at the first error; what is left stays retired.
  Status unmap_retired() SPW_REQUIRES(kArenaLock);

  // moved_pages.cpp. Releases pages that have no live byte and whose users are all done, whole units of them:
  // unmaps them from every view, a run of addresses in one call. What the driver does not unmap at home stays
  // backed, and is used as before; so do all where bad_alloc is thrown, before anything changed. Without VMM
  // a page goes only with its whole segment: release_segments().
  Status release_pages(const std::vector<PageId>& pages) SPW_REQUIRES(kArenaLock);
  // Without VMM: releases every segment of which `free(first, count)` answers true.
  template <typename Free, typename Released>
  Status release_segments(Free free, Released released) SPW_REQUIRES(kArenaLock);

  // Takes out what add_segment brought, every segment of whose pages `may_go(page)` answers true; it is the
  // caller's again.
  template <typename MayGo, typename Released>
  std::vector<SegmentMemory> take_segments(MayGo may_go, Released released) SPW_REQUIRES(kArenaLock);

  // moved_pages.cpp. Pages that leave the device and come back, whole units; only with VMM. Nothing uses them
  // from before take_out() to after put_back(), and they count for nothing while count_out() says so.
  void count_out(const std::vector<PageId>& pages, bool out) SPW_REQUIRES(kArenaLock);
  // Unmaps them everywhere and gives their memory to the driver. Of the views that show them, the slots for
  // which `keeps(view, slot)` answers true are theirs to come back to; the others are lost. What the driver
  // does not unmap stays mapped, and is used again by put_back(). Throws bad_alloc before anything changed.
  using KeepsSlot = std::function<bool(const View*, uint32_t)>;
  void take_out(const std::vector<PageId>& pages, const KeepsSlot& keeps) SPW_REQUIRES(kArenaLock);
  // Each goes where it was. On failure they are out as before; throws as take_out().
  Status put_back(const std::vector<PageId>& pages) SPW_REQUIRES(kArenaLock);
  // Pages that are out, and that nobody needs any more.
  void forget_out(const std::vector<PageId>& pages) noexcept SPW_REQUIRES(kArenaLock);
  // Returns what is still mapped of these pages, which are out.
  uint64_t stuck_bytes(const std::vector<PageId>& pages) const SPW_REQUIRES(kArenaLock);

  // Nothing is unmapped or released any more, not even at the end: something may still use it.
  void leave_to_driver() { left_to_driver_ = true; }

  // extents.cpp. Looks at every extent. Errors: internal.
  Status validate_extents() const SPW_REQUIRES(kArenaLock);
  // Bytes of host memory that the tables take.
  uint64_t metadata_bytes() const SPW_REQUIRES(kArenaLock);
  template <typename Visit>
  void for_each_view(Visit visit) const SPW_REQUIRES(kArenaLock) {
    for (const std::unique_ptr<View>& view : views_) {
      if (view->mapped > 0) visit(*view);
    }
  }

 private:
  PageStore(std::shared_ptr<const Driver> driver, int device, DeviceCounters& counters, PageId id_capacity);

  struct Segment {
    PageId first;
    uint32_t count;
    DeviceBlock block;
    SegmentMemory memory{};  // instead of the block

    template <typename Is>
    bool all_pages(Is is) const {
      PageId id = first;
      while (id < first + count && is(id)) ++id;
      return id == first + count;
    }
  };

  // How many of these pages may be created.
  uint32_t beside_headroom(uint32_t pages) SPW_REQUIRES(kArenaLock);
  Result<uint64_t> reserve_alias_range(uint64_t bytes) SPW_REQUIRES(kArenaLock);
  void give_back_alias_range(uint64_t va, uint64_t bytes) SPW_REQUIRES(kArenaLock);
  // Forgets these pages' aliases in slots that show them no more.
  void forget_unmapped(std::vector<PageId>& ids) SPW_REQUIRES(kArenaLock);
  // Unmaps the slots of these views, in the order of their addresses, and adds what each showed.
  Status unmap_stretches(const std::vector<View*>& views, std::vector<PageId>& shown)
      SPW_REQUIRES(kArenaLock);
  // The slots show nothing any more, and their view ends with the last.
  void lose_slots(View& view, uint32_t first, uint32_t count) SPW_REQUIRES(kArenaLock);
  struct Mapping;
  // Returns the mappings of the pages, by address.
  std::vector<Mapping> mappings_of(const std::vector<PageId>& pages) const SPW_REQUIRES(kArenaLock);
  void note_mapped(const Mapping& mapping, bool mapped) SPW_REQUIRES(kArenaLock);
  // Slots of these pages that are not mapped any more show nothing, unless `keeps` answers true.
  void lose_unmapped(const std::vector<PageId>& pages, const KeepsSlot& keeps) SPW_REQUIRES(kArenaLock);
  // Unmaps those of them that `are(mapping)`, and calls done(first, end) for each run that is unmapped.
  // Returns the first error, and goes on behind it.
  template <typename Are, typename Done>
  Status unmap_runs(const std::vector<Mapping>& mappings, Are are, Done done) SPW_REQUIRES(kArenaLock);
  void take_out(const std::vector<PageId>& pages, const std::vector<Mapping>& mappings,
                const KeepsSlot& keeps) SPW_REQUIRES(kArenaLock);
  void drop(View& view) SPW_REQUIRES(kArenaLock);
  // Ids in a row for a segment and the gap behind it, which keeps it apart from the next.
  Result<PageId> next_segment(uint32_t count) const SPW_REQUIRES(kArenaLock);
  void take_ids(PageId first, uint32_t count) SPW_REQUIRES(kArenaLock);
  void give_back_ids(PageId first, uint32_t count) noexcept SPW_REQUIRES(kArenaLock);
  void note_new_segment(Segment segment, uint64_t va, Heap* owner) SPW_REQUIRES(kArenaLock);
  void note_new_page(PageId id, uint64_t va, Heap* owner, CUmemGenericAllocationHandle handle)
      SPW_REQUIRES(kArenaLock);
  // Pages to be created: those that are needed, and up to `most` where extents are made of them.
  struct NewRun {
    PageId first;
    uint32_t needed;
    uint32_t most;
    bool makes_extents;
  };
  NewRun plan_units(const PageRun& wanted, const ExtentTerms& terms) const SPW_REQUIRES(kArenaLock);
  // Returns how many pages may be held by the limits, on this device.
  uint64_t attainable_pages() const;
  bool has_extent_room(uint32_t wanted, ExtentRoom room) const SPW_REQUIRES(kArenaLock);
  // Handles for the pages of a run, mapped at home and not granted yet. extents.cpp.
  struct NewUnit {
    PageRun pages;
    CUmemGenericAllocationHandle handle;
  };
  Status create_units(NewRun run, std::vector<NewUnit>& units) SPW_REQUIRES(kArenaLock);
  // Their handle and their indices in it.
  void set_unit(const PageRun& pages, CUmemGenericAllocationHandle handle) SPW_REQUIRES(kArenaLock);
  void leave_unit(PageId id) SPW_REQUIRES(kArenaLock);
  // Takes units that could not be granted apart again.
  void undo_units(const std::vector<NewUnit>& units) SPW_REQUIRES(kArenaLock);
  void note_released_page(PageId id) SPW_REQUIRES(kArenaLock);
  Status grant(uint64_t va, uint64_t bytes) SPW_REQUIRES(kArenaLock) {
    count(DriverCall::kSetAccess);
    return set_access(*driver_, va, bytes, devices_.data(), devices_.size());
  }
  // Calls visit(va, bytes), which answers a Status, for each stretch of mapped pages until one is not ok.
  template <typename Visit>
  Status for_each_mapped_range(Visit visit) const SPW_REQUIRES(kArenaLock);
  // Unmaps what was mapped a moment ago and never used; false if the driver refuses twice.
  bool undo_mapping(uint64_t va, uint64_t bytes) SPW_REQUIRES(kArenaLock);
  // Pages that came from the driver, or went.
  void count_pages(int64_t pages) { counters_.on_reserve(pages * static_cast<int64_t>(kPageBytes), pages); }
  void count(DriverCall call) { counters_.on_driver_call(call); }

  std::shared_ptr<const Driver> driver_;
  DeviceCounters& counters_;
  const int device_;
  const PageId id_capacity_;
  std::vector<int> devices_ SPW_GUARDED_BY(kArenaLock);
  bool vmm_ = true;
  bool is_sourced_ = false;
  Sharing sharing_ = Sharing::kNone;
  uint64_t pages_ever_ SPW_GUARDED_BY(kArenaLock) = 0;
  bool left_to_driver_ = false;
  uint64_t device_bytes_ = 0;

  Bitmap backed_;
  Bitmap in_extents_;
  Page* pages_ = nullptr;                // after all that may fail to be made: only the destructor unmaps it
  std::atomic<uint32_t> page_count_{0};  // changed under the lock
  std::atomic<bool> device_is_full_{false};
  std::atomic<uint64_t> headroom_bytes_{0};
  uint64_t unasked_pages_ SPW_GUARDED_BY(kArenaLock) = 0;  // may be created before the driver is asked again
  std::atomic<uint64_t> soft_most_pages_{~uint64_t{0}};
  std::atomic<double> slack_percent_{0};
  std::atomic<uint64_t> most_pages_{~uint64_t{0}};  // also read for messages, without the lock
  uint32_t home_mappings_ SPW_GUARDED_BY(kArenaLock) = 0;
  uint32_t view_mappings_ SPW_GUARDED_BY(kArenaLock) = 0;
  std::atomic<uint32_t> extents_{0};  // changed under the lock
  uint64_t view_slots_ SPW_GUARDED_BY(kArenaLock) = 0;

  AddressRange home_;
  std::vector<AddressRange> alias_chunks_ SPW_GUARDED_BY(kArenaLock);
  std::map<uint64_t, uint64_t> free_alias_ranges_ SPW_GUARDED_BY(kArenaLock);  // va -> bytes, no two adjacent
  std::vector<std::unique_ptr<View>> views_ SPW_GUARDED_BY(kArenaLock);
  std::vector<View*> spare_views_ SPW_GUARDED_BY(kArenaLock);
  std::vector<Segment> segments_ SPW_GUARDED_BY(kArenaLock);
  PageId next_segment_id_ SPW_GUARDED_BY(kArenaLock) = 0;
  std::map<PageId, uint32_t> free_ids_
      SPW_GUARDED_BY(kArenaLock);  // below it; first -> how many, no two adjacent
};

template <typename Free, typename Released>
Status PageStore::release_segments(Free free, Released released) {
  for (size_t i = 0; i < segments_.size();) {
    Segment& segment = segments_[i];
    if (!free(segment.first, segment.count)) {
      ++i;
      continue;
    }
    count(DriverCall::kMemFree);
    if (Status status = segment.block.release(); !status.ok()) return status;
    released(segment.first, segment.count);
    for (uint32_t page = 0; page < segment.count; ++page) note_released_page(segment.first + page);
    give_back_ids(segment.first, segment.count + 1);
    segments_[i] = std::move(segments_.back());
    segments_.pop_back();
  }
  return {};
}

template <typename MayGo, typename Released>
std::vector<SegmentMemory> PageStore::take_segments(MayGo may_go, Released released) {
  std::vector<SegmentMemory> taken;
  for (size_t i = 0; i < segments_.size();) {
    const Segment& segment = segments_[i];
    if (!segment.all_pages(may_go)) {
      ++i;
      continue;
    }
    for (PageId id = segment.first; id < segment.first + segment.count; ++id) {
      released(id);
      note_released_page(id);
    }
    taken.push_back(segment.memory);
    give_back_ids(segment.first, segment.count + 1);
    std::swap(segments_[i], segments_.back());
    segments_.pop_back();
  }
  return taken;
}

}  // namespace spillway
