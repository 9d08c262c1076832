// A heap with free pages of its own, for tests of what it does with them without the parts above it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "allocator/address_map.h"
#include "allocator/heap.h"
#include "allocator/listing.h"
#include "allocator/size_classes.h"
#include "tests/support/page_stores.h"

namespace spillway::test {

template <typename Kind>
struct HeapOf {
  explicit HeapOf(uint32_t page_count, BlockGrain grain = BlockGrain::kQuantum,
                  const std::string& configuration = "capacity:1GiB")
      : of(configuration), owned(of.heap(nullptr, grain)), heap(*owned) {
    if (page_count > 0) first = give(heap, page_count);
  }

  PageId give(Heap& to, uint32_t count) {
    const ArenaLock lock(of.mutex);
    const Lock heap_lock(to.mutex);
    const PageId given = of.must_give(count, &to);
    to.add_free(given, count);
    return given;
  }
  // A block from what is free of the heap; null where there is no room.
  uint64_t allocate(uint64_t bytes) { return allocate_in(heap, bytes); }
  static uint64_t allocate_in(Heap& in, uint64_t bytes) {
    const Lock lock(in.mutex);
    const bool is_small = bytes <= kLargestSmallBytes && !in.has_no_slabs();
    const uint32_t size_class = is_small ? kClassOfQuanta[bytes_to_quanta(bytes)] : 0;
    void* out = is_small ? in.allocate_small(size_class, bytes) : nullptr;
    if (out != nullptr) return reinterpret_cast<uint64_t>(out);
    const Request request = is_small ? Request::for_slab(size_class) : in.large_request(bytes);
    CachedRange* range = in.take_predicted(request);
    if (range == nullptr) range = in.take_again(request, false);
    if (range == nullptr) return 0;
    const bool is_made =
        is_small ? in.make_slot_live(*range, size_class, bytes, &out) : in.make_live(*range, bytes, &out);
    EXPECT_TRUE(is_made);
    return reinterpret_cast<uint64_t>(out);
  }
  static CachedRange& range_of(uint64_t va) {
    CachedRange* range = AddressMap::instance().find(va);
    if (range == nullptr) throw std::runtime_error("no range has the address");
    return *range;
  }
  Status free(uint64_t va) {
    const Lock lock(heap.mutex);
    return heap.free(range_of(va), va);
  }
  Status record_stream(uint64_t va, CUstream stream) {
    const Lock lock(heap.mutex);
    return heap.record_stream(range_of(va), va, stream);
  }
  size_t complete_finished_frees() {
    const Lock lock(heap.mutex);
    return heap.complete_finished_frees();
  }
  uint32_t free_pages() {
    const Lock lock(heap.mutex);
    return heap.pages().free_count();
  }
  HeapStats stats() const { return heap.counters.snapshot(); }
  Status validate() {
    const Lock lock(heap.mutex);
    return spillway::validate(heap);
  }

  StoreOf<Kind> of;
  const std::unique_ptr<Heap> owned;
  Heap& heap;
  PageId first = kNoPage;
};

}  // namespace spillway::test
