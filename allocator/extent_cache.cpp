#include "allocator/extent_cache.h"

#include "allocator/address_map.h"
#include "allocator/journal.h"
#include "allocator/page_store.h"

namespace spillway {
namespace {

// Dead places that a heap remembers before it recycles the least recently used.
constexpr size_t kMostPlaces = 1u << 15;
// Places that one search for that looks at: one turn of a clock over all of them is good enough.
constexpr int kMostLooks = 64;

// Entries of blocks that are gone stay until others replace them, so those of a place that goes are cleared.
void leave_address_map(const Place& place) {
  AddressMap& map = AddressMap::instance();
  const uint64_t units = place.lines == kSlabLines ? kSlabBytes / kUnitBytes : 1;
  for (uint64_t unit = 0; unit < units; ++unit) {
    map.clear_if(place.va + unit * kUnitBytes, &place);
  }
}

}  // namespace

ExtentCache::~ExtentCache() {
  for (const std::unique_ptr<Place>& place : places_) leave_address_map(*place);
}

void ExtentCache::index_by_size(Place& place) {
  Place*& newest = newest_by_size_[place.lines];
  place.older_same_size = newest;
  place.newer_same_size = nullptr;
  if (newest != nullptr) newest->newer_same_size = &place;
  newest = &place;
}

void ExtentCache::unindex_by_size(Place& place) {
  if (place.older_same_size != nullptr) place.older_same_size->newer_same_size = place.newer_same_size;
  if (place.newer_same_size != nullptr) {
    place.newer_same_size->older_same_size = place.older_same_size;
  } else if (place.older_same_size != nullptr) {
    newest_by_size_[place.lines] = place.older_same_size;
  } else {
    newest_by_size_.erase(place.lines);
  }
}

bool ExtentCache::is_expected(const Place& place, uint64_t marked) {
  return place.expected_at >= marked && place.expected_at - marked < Journal::kHorizon;
}

Place* ExtentCache::oldest_dead(bool keeps_views) {
  Place* oldest = nullptr;
  for (int looks = 0; looks < kMostLooks; ++looks) {
    Place& place = *places_[recycle_hand_++ % places_.size()];
    if (place.state != BlockState::kFree) continue;
    if (keeps_views && (place.view != nullptr || place.is_saved)) continue;
    if (is_lost(place)) return &place;
    if (oldest == nullptr || place.last_use < oldest->last_use) oldest = &place;
  }
  return oldest;
}

Place& ExtentCache::make(Heap& heap, uint32_t lines, Layout layout, bool keeps_views) {
  Place* place = places_.size() < kMostPlaces ? nullptr : oldest_dead(keeps_views);
  if (place != nullptr) {
    leave_address_map(*place);
    unindex_by_size(*place);
    if (keeps_views) pool_since_ = 0;  // what the place was used for is not known any more
    ++place->generation;
  } else {
    places_.push_back(std::make_unique<Place>());
    place = places_.back().get();
    place->heap = &heap;
  }
  place->va = layout.va;
  place->lines = lines;
  place->view = layout.view;
  place->view_generation =
      layout.view == nullptr ? 0 : layout.view->generation.load(std::memory_order_relaxed);
  place->head_page = layout.head_page;
  place->head_begin = layout.head_begin;
  place->head_end = layout.head_end;
  place->runs = std::move(layout.runs);
  place->tail_page = layout.tail_page;
  place->tail_end = layout.tail_end;
  index_by_size(*place);
  return *place;
}

bool ExtentCache::list_pages_of_pool(std::unordered_set<PageId>& pages) const {
  if (pool_since_ == 0) return false;
  for (const std::unique_ptr<Place>& place : places_) {
    if (place->last_use < pool_since_) continue;
    for_each_piece(*place, [&](PageId page, uint32_t, uint32_t) { pages.insert(page); });
  }
  return true;
}

}  // namespace spillway
