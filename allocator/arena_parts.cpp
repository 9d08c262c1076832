#include "allocator/arena_parts.h"

#include <algorithm>

namespace spillway {

void ArenaParts::update_most_pages() {
  const uint64_t device_bytes = store->device_bytes();
  const uint64_t reserve = std::min(reserve_bytes, device_bytes);
  const uint64_t most = std::min(limit.load(std::memory_order_relaxed), device_bytes - reserve);
  store->set_most_pages((most - std::min(most, held_elsewhere_bytes())) / kPageBytes);
  exceeds_limit.store(store->page_count() > store->most_pages(), std::memory_order_relaxed);
  if (traced_limit != most) counters.trace(TraceKind::kLimit, 0, traced_limit = most, 0);
}

}  // namespace spillway
