// A page store with views, for tests of them.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "allocator/page_store.h"
#include "tests/support/page_stores.h"

namespace spillway::test {

class Views : public testing::Test {
 protected:
  Views() : store(of.store()) {}

  View* must_map(const std::vector<PageId>& pages) SPW_REQUIRES(kArenaLock) {
    Result<View*> view = store.map_view(pages);
    EXPECT_TRUE(view.ok()) << view.status().text();
    return view.value();
  }
  uint8_t read(uint64_t va) const {
    uint8_t byte = 0;
    EXPECT_EQ(of.device.driver->cuMemcpyDtoH(&byte, va, 1), CUDA_SUCCESS);
    return byte;
  }
  void write(uint64_t va, uint8_t byte) const {
    EXPECT_EQ(of.device.driver->cuMemcpyHtoD(va, &byte, 1), CUDA_SUCCESS);
  }
  uint32_t views() const SPW_REQUIRES(kArenaLock) {
    uint32_t count = 0;
    store.for_each_view([&](View&) { ++count; });
    return count;
  }
  // Returns what a range that was made in the view at some time is now.
  static CachedRange range_in(View& view) {
    CachedRange range;
    range.view = &view;
    range.view_generation = view.generation.load();
    return range;
  }

  StoreOf<VirtualMemory> of;
  PageStore& store;
};

}  // namespace spillway::test
