#include "cli/report/fits.h"

#include <algorithm>

namespace spillway {
namespace {

std::optional<uint64_t> device_free(const MemoryView& view) {
  if (view.device_free_bytes) return view.device_free_bytes;
  if (!view.device_bytes || !view.other_bytes) return std::nullopt;
  const uint64_t held = *view.other_bytes + view.now.reserved();
  return *view.device_bytes - std::min(*view.device_bytes, held);
}

// Returns what can be reserved when `given_back` of what is reserved now has gone.
uint64_t new_memory(const MemoryView& view, uint64_t free, uint64_t given_back) {
  const uint64_t room = free + given_back;
  if (!view.limit_bytes) return room;
  const uint64_t kept = view.now.reserved() - given_back;
  return std::min(room, *view.limit_bytes - std::min(*view.limit_bytes, kept));
}

}  // namespace

Fits fits_of(const MemoryView& view) {
  Fits out;
  out.within = view.largest_free_bytes.value_or(0);
  if (view.joins_pages) out.within = std::max(out.within, view.now.cached);
  const std::optional<uint64_t> free = device_free(view);
  if (!free) return out;
  const uint64_t cached = view.now.cached;
  const uint64_t fresh = new_memory(view, *free, 0);
  out.now = view.joins_pages ? std::max(out.within, cached + fresh) : std::max(out.within, fresh);
  out.after_trim = std::max(*out.now, new_memory(view, *free, cached));
  uint64_t evictable = 0;
  for (const RegionView& region : view.tiers.regions) {
    if (region.pins == 0) evictable += region.device_bytes;
  }
  const uint64_t reserved = view.now.reserved();
  out.after_evict =
      std::max(*out.after_trim, new_memory(view, *free, std::min(reserved, cached + evictable)));
  return out;
}

}  // namespace spillway
