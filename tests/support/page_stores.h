// The kinds of page store, as types for tests of what is the same in all of them: virtual memory, segments of
// cuMemAlloc, and segments of a source. A test that is typed with StoreKinds runs once for each.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "allocator/heap.h"
#include "allocator/mutex.h"
#include "allocator/page_store.h"
#include "driver/context.h"
#include "driver/event.h"
#include "driver/memory.h"
#include "stats/counters.h"
#include "tests/support/device.h"

namespace spillway::test {

struct VirtualMemory {
  static constexpr const char* kName = "VirtualMemory";
  static constexpr bool kHasViews = true;
  static constexpr PageStoreOptions kOptions{};
};
struct Segments {
  static constexpr const char* kName = "Segments";
  static constexpr bool kHasViews = false;
  static constexpr PageStoreOptions kOptions{.use_vmm = false};
};
struct SourcedSegments {
  static constexpr const char* kName = "SourcedSegments";
  static constexpr bool kHasViews = false;
  static constexpr PageStoreOptions kOptions{.use_vmm = false, .is_sourced = true};
};
using StoreKinds = testing::Types<VirtualMemory, Segments, SourcedSegments>;

struct KindName {
  template <typename Kind>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): the name is GoogleTest's
    return Kind::kName;
  }
};

// A store of that kind on a device of its own, with what heaps over it need.
template <typename Kind>
class StoreOf {
 public:
  explicit StoreOf(const std::string& configuration = "capacity:1GiB")
      : device(configuration), events(*device.driver) {
    Result<DeviceProperties> properties = query_device(*device.driver, 0);
    if (!properties.ok()) throw std::runtime_error(properties.status().text());
    Result<std::unique_ptr<PageStore>> made =
        PageStore::create(device.driver, 0, properties.value(), Kind::kOptions, counters);
    if (!made.ok()) throw std::runtime_error(made.status().text());
    owned_ = std::move(made.value());
  }

  PageStore& store() { return *owned_; }
  std::unique_ptr<Heap> heap(CUstream stream = nullptr, BlockGrain grain = BlockGrain::kQuantum) {
    HeapKey key;
    key.stream = stream;
    return std::make_unique<Heap>(*owned_, counters, events, *device.driver, device.context, key, leader_,
                                  grain);
  }
  int64_t counted_bytes() const { return counters.snapshot().reserved_bytes.all.current; }

  // So many pages in a row; not ok, and none, where the driver has none.
  Status give(uint32_t count, Heap* owner, PageId* first) SPW_REQUIRES(kArenaLock) {
    if constexpr (Kind::kHasViews) {
      *first = owned_->find_unbacked(count);
      uint32_t created = 0;
      return owned_->create_pages(*first, count, owner, &created);
    } else if constexpr (Kind::kOptions.is_sourced) {
      // Room to begin at a multiple of a slab's bytes.
      Result<DeviceBlock> block = DeviceBlock::allocate(*device.driver, count * kPageBytes + kSlabBytes);
      if (!block.ok()) return block.take_status();
      const SegmentMemory memory{reinterpret_cast<void*>(block->base()), block->bytes()};
      if (Status status = owned_->add_segment(memory, count, owner, first); !status.ok()) return status;
      blocks_[memory.pointer] = std::move(block.value());
      return {};
    } else {
      return owned_->create_segment(count, owner, first);
    }
  }
  PageId must_give(uint32_t count, Heap* owner) SPW_REQUIRES(kArenaLock) {
    PageId first = kNoPage;
    const Status status = give(count, owner, &first);
    EXPECT_TRUE(status.ok()) << status.text();
    return first;
  }
  // Gives back every page, or every segment of only such pages, of which `may_go(page)` answers true.
  template <typename MayGo>
  void release(MayGo may_go) SPW_REQUIRES(kArenaLock) {
    if constexpr (Kind::kHasViews) {
      for (PageId id = 0; id < owned_->home_end(); ++id) {
        if (owned_->backed(id) && may_go(id)) SPW_EXPECT_OK(owned_->release_pages({id}));
      }
    } else if constexpr (Kind::kOptions.is_sourced) {
      for (const SegmentMemory& memory : owned_->take_segments(may_go, [](PageId) {}))
        blocks_.erase(memory.pointer);
    } else {
      const auto all_may_go = [&](PageId first, uint32_t count) {
        PageId id = first;
        while (id < first + count && may_go(id)) ++id;
        return id == first + count;
      };
      SPW_EXPECT_OK(owned_->release_segments(all_may_go, [](PageId, uint32_t) {}));
    }
  }

  Device device;
  DeviceCounters counters;
  EventPool events;
  Mutex mutex;

 private:
  std::atomic<const SequencePredictor*> leader_{nullptr};
  std::map<void*, DeviceBlock> blocks_;  // of the source
  std::unique_ptr<PageStore> owned_;
};

}  // namespace spillway::test
