// What the parts of an arena have in common, put together by hand, so that each part can be tested without
// those above it.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "allocator/arena_parts.h"
#include "allocator/heap.h"
#include "tests/allocator/device.h"

namespace spillway::test {

struct MadeParts {
  explicit MadeParts(const std::string& configuration = "capacity:1GiB", const ArenaOptions& options = {})
      : device(configuration), arena(device.arena()), parts(device.driver, 0, options, *arena) {
    Result<DeviceProperties> properties = query_device(*device.driver, 0);
    Result<RetainedContext> context = RetainedContext::retain(device.driver, 0);
    if (!properties.ok() || !context.ok()) throw std::runtime_error("no device");
    parts.properties = properties.value();
    parts.context = std::move(context.value());
    const PageStoreOptions store_options{options.use_vmm, options.exportable};
    Result<std::unique_ptr<PageStore>> store =
        PageStore::create(device.driver, 0, parts.properties, store_options, parts.counters);
    if (!store.ok()) throw std::runtime_error(store.status().text());
    parts.store = std::move(store.value());
    const ArenaLock lock(parts.mutex);
    parts.update_most_pages();
  }

  // So many free pages in a row for the heap.
  PageId give(Heap& heap, uint32_t count) {
    const ArenaLock lock(parts.mutex);
    const Lock heap_lock(heap.mutex);
    PageId first = kNoPage;
    Status status;
    if (parts.store->uses_vmm()) {
      first = parts.store->find_unbacked(count);
      uint32_t created = 0;
      status = parts.store->create_pages(first, count, &heap, &created);
    } else {
      status = parts.store->create_segment(count, &heap, &first);
    }
    EXPECT_TRUE(status.ok()) << status.text();
    if (status.ok()) heap.add_free(first, count);
    return first;
  }

  Device device;
  std::unique_ptr<Arena> arena;  // only so that there is one to refer to
  ArenaParts parts;
};

}  // namespace spillway::test
