#include "allocator/heap.h"

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <utility>

#include "allocator/address_map.h"

namespace spillway {
namespace {

// Dead places of the home view that a heap remembers before it recycles the least recently used.
constexpr size_t kMostPlaces = 1u << 15;
constexpr int kMostTries = 512;
// Requests by which a heap must be ahead to be the leader: what others noted by the old one's time is lost.
constexpr uint64_t kLeastLead = 1024;
// A heap follows the leader while that serves more than so many requests for each of its own.
constexpr uint64_t kMuchBusier = 4;
constexpr uint64_t kFewestToReview = 64;

}  // namespace

Heap::Heap(PageStore& store, DeviceCounters& device_counters, EventPool& events, const Driver& driver,
           CUcontext context, const HeapKey& heap_key, std::atomic<const Journal*>& leader, BlockUnit unit)
    : counters(device_counters),
      key(heap_key),
      store_(store),
      events_(events),
      driver_(driver),
      context_(context),
      device_counters_(device_counters),
      unit_(unit),
      vacant_(store.id_capacity()),
      fragments_(store.pages()),
      leader_(leader),
      epochs_(store.id_capacity() / kEpochPages + 1, 0) {
  counters.set_stream(std::bit_cast<uint64_t>(key.stream));
}

Heap::~Heap() {
  for (const std::unique_ptr<Place>& place : places_) leave_address_map(*place);
}

void Heap::leave_address_map(const Place& place) {
  AddressMap& map = AddressMap::instance();
  const uint64_t units = place.lines == kSlabLines ? kSlabBytes / kUnitBytes : 1;
  for (uint64_t unit = 0; unit < units; ++unit) {
    map.clear_if(place.va + unit * kUnitBytes, &place);
  }
}

// ---- Bytes of places

bool Heap::piece_is_free(PageId id, uint32_t begin, uint32_t end) const {
  if (vacant_.test(id)) return true;
  const Page& page = store_.page(id);
  return owns(page) && page.free_lines.contains(begin, end);
}

bool Heap::has_moved(const Place& place) const {
  if (place.head_page != kNoPage) return va_of(place.head_page, place.head_begin) != place.va;
  const PageId first = place.runs.begin() != place.runs.end() ? place.runs.begin()->first : place.tail_page;
  return va_of(first, 0) != place.va;
}

bool Heap::ends_fit(const Place& place) const {
  if (place.state != BlockState::kFree) return false;
  if (is_lost(place)) return false;
  if (!store_.uses_vmm() && has_moved(place)) return false;
  if (place.head_page != kNoPage && !piece_is_free(place.head_page, place.head_begin, place.head_end))
    return false;
  return place.tail_page == kNoPage || piece_is_free(place.tail_page, 0, place.tail_end);
}

bool Heap::fits(const Place& place) const {
  if (!ends_fit(place)) return false;
  for (const PageRun& run : place.runs) {
    if (!vacant_.all_set(run.first, run.count)) return false;
  }
  return true;
}

void Heap::take_piece(PageId id, uint32_t begin, uint32_t end, Change& change) {
  LineSet& free_lines = store_.page(id).free_lines;
  const uint32_t pieces = free_lines.size();
  if (vacant_.test(id)) {
    vacant_.clear(id);
    ++change.pages;
    free_lines.fill_outside(begin, end);
  } else {
    free_lines.take(begin, end);
  }
  change.fragments += static_cast<int64_t>(free_lines.size()) - pieces;
  mark_dirty(id);
}

void Heap::give_piece(PageId id, uint32_t begin, uint32_t end, Change& change) {
  Page& page = store_.page(id);
  const uint32_t pieces = page.free_lines.size();
  if (page.free_lines.is_all_outside(begin, end)) {
    page.free_lines.clear();
    vacant_.set(id);
    ++change.pages;
    stamp(id, 1);
  } else {
    page.free_lines.give(begin, end);
  }
  change.fragments += static_cast<int64_t>(page.free_lines.size()) - pieces;
  mark_dirty(id);
}

bool Heap::take(Place& place) {
  if (!ends_fit(place)) return false;
  int64_t pages = 0;
  for (const PageRun& run : place.runs) {
    if (!vacant_.clear_if_all_set(run.first, run.count)) {
      for (const PageRun* taken = place.runs.begin(); taken != &run; ++taken)
        vacant_.set(taken->first, taken->count);
      return false;
    }
    pages += run.count;
  }
  // Written where they stay: a copy of both numbers at once would wait until the two stores have reached the
  // cache, a tenth of a hit.
  taken_.pages = pages;
  taken_.fragments = 0;
  if (place.head_page != kNoPage) take_piece(place.head_page, place.head_begin, place.head_end, taken_);
  if (place.tail_page != kNoPage) take_piece(place.tail_page, 0, place.tail_end, taken_);
  vacant_count_ -= static_cast<uint32_t>(taken_.pages);
  place.state = BlockState::kLive;
  return true;
}

Heap::Change Heap::give(Place& place) {
  Change change;
  for (const PageRun& run : place.runs) {
    vacant_.set(run.first, run.count);
    change.pages += run.count;
    stamp(run.first, run.count);
  }
  if (place.head_page != kNoPage) give_piece(place.head_page, place.head_begin, place.head_end, change);
  if (place.tail_page != kNoPage) give_piece(place.tail_page, 0, place.tail_end, change);
  vacant_count_ += static_cast<uint32_t>(change.pages);
  place.state = BlockState::kFree;
  return change;
}

void Heap::reindex() {
  if (std::exchange(dirty_is_short_, false)) [[unlikely]] {
    for (PageId id = 0; id < store_.home_end(); ++id) {
      Page& page = store_.page(id);
      if (owns(page) && std::exchange(page.dirty, false)) fragments_.update(id);
    }
  }
  for (const PageId id : dirty_) {
    Page& page = store_.page(id);
    page.dirty = false;
    fragments_.update(id);
  }
  dirty_.clear();
}

// ---- Places

void Heap::index_by_size(Place& place) {
  Place*& newest = newest_by_size_[place.lines];
  place.older_same_size = newest;
  place.newer_same_size = nullptr;
  if (newest != nullptr) newest->newer_same_size = &place;
  newest = &place;
}

void Heap::unindex_by_size(Place& place) {
  if (place.older_same_size != nullptr) place.older_same_size->newer_same_size = place.newer_same_size;
  if (place.newer_same_size != nullptr) {
    place.newer_same_size->older_same_size = place.older_same_size;
  } else if (place.older_same_size != nullptr) {
    newest_by_size_[place.lines] = place.older_same_size;
  } else {
    newest_by_size_.erase(place.lines);
  }
}

Place* Heap::oldest_dead_place() {
  // One turn of a clock over all places: good enough for the least recently used.
  Place* oldest = nullptr;
  for (int tries = 0; tries < 64; ++tries) {
    Place& place = *places_[recycle_hand_++ % places_.size()];
    if (place.state != BlockState::kFree) continue;
    // What names the views that graphs of an open pool may use, and what its saved states name.
    if (keeps_pages && (place.view != nullptr || place.is_saved)) continue;
    if (is_lost(place)) return &place;
    if (oldest == nullptr || place.last_use < oldest->last_use) oldest = &place;
  }
  return oldest;
}

Place* Heap::new_place(uint32_t lines, uint64_t va, View* view) {
  Place* place = places_.size() < kMostPlaces ? nullptr : oldest_dead_place();
  if (place != nullptr) {
    leave_address_map(*place);
    unindex_by_size(*place);
    if (keeps_pages) served_since_ = 0;  // what the place was used for is not known any more
    ++place->generation;
    place->head_page = place->tail_page = kNoPage;
    place->runs.assign({});
  } else {
    places_.push_back(std::make_unique<Place>());
    place = places_.back().get();
    place->heap = this;
  }
  place->va = va;
  place->lines = lines;
  place->view = view;
  place->view_generation = view == nullptr ? 0 : view->generation.load(std::memory_order_relaxed);
  index_by_size(*place);
  return place;
}

Request Heap::large_request(uint64_t bytes) const {
  // At least a unit: the address map has one entry for each, whatever the limit of small requests.
  uint64_t lines = std::max(bytes_to_lines(bytes), kUnitBytes / kLineBytes);
  const bool has_whole_pages = unit_ == BlockUnit::kPage ? lines >= kPageLines : unit_ == BlockUnit::kSegment;
  if (has_whole_pages) lines = bytes_to_pages(bytes) * kPageLines;
  return {static_cast<uint32_t>(lines), 1};
}

Place* Heap::take_predicted(const Request& request) {
  if (!remembers()) return nullptr;
  Place* place = request.slab_class == nullptr ? journal_.guess(request.lines)
                                               : request.slab_class->openings.guess(journal_);
  return place != nullptr && take(*place) ? placed(request, place) : nullptr;
}

Place* Heap::expected(const Request& request) const {
  if (!remembers()) return nullptr;
  if (request.slab_class != nullptr) return request.slab_class->openings.guess(journal_);
  Place* place = journal_.best_candidate();
  return place != nullptr && place->lines == request.lines ? place : journal_.guess(request.lines);
}

Place* Heap::take_same_size(const Request& request) {
  const auto found = newest_by_size_.find(request.lines);
  if (found == newest_by_size_.end()) return nullptr;
  // Best is a place that nobody expects to take soon, of these the one used last: in a program that repeats
  // itself it is wanted again last. Else the one expected last, so that few others are displaced in turn.
  const uint64_t now = journal_.mark_expected();
  const auto rank = [&](const Place& place) {
    const bool expected = place.expected_at >= now && place.expected_at - now < Journal::kHorizon;
    return std::pair<bool, uint64_t>(!expected, expected ? place.expected_at : place.last_use);
  };
  const auto serves = [&](const Place& place) {
    mutex.assert_held();  // by this function
    return place.va % (request.align_lines * kLineBytes) == 0 && fits(place);
  };
  // The best of those that `may` be it.
  const auto best_where = [&](const auto& may) {
    Place* best = nullptr;
    std::pair<bool, uint64_t> highest;
    int tries = 0;
    for (Place* place = found->second; place != nullptr && tries < kMostTries;
         place = place->older_same_size, ++tries) {
      if (place->state != BlockState::kFree) continue;
      const std::pair<bool, uint64_t> here = rank(*place);
      if ((best != nullptr && here <= highest) || !may(*place)) continue;
      best = place;
      highest = here;
    }
    return best;
  };
  // A place that nobody has is free as a rule, its bytes too: the best is looked at first, and all of them
  // only where others have its bytes.
  Place* best = best_where([](const Place&) { return true; });
  if (best != nullptr && !serves(*best)) best = best_where(serves);
  if (best == nullptr) return nullptr;
  take(*best);
  return placed(request, best);
}

Place* Heap::take_located(const Request& request) {
  ++guessed_;
  if (Place* place = take_predicted(request)) return place;
  if (request.slab_class != nullptr) return nullptr;
  review_leader();
  Place* place = journal_.search(request.lines, led_by_);
  if (!remembers()) return nullptr;
  if (request.lines < kPageLines && !journal_.is_sure()) return nullptr;
  return place != nullptr && take(*place) ? placed(request, place) : nullptr;
}

void Heap::review_leader() {
  const Journal* leader = leader_.load(std::memory_order_relaxed);
  if (leader == nullptr || journal_.now() > 2 * leader->now() + kLeastLead) {
    leader_.store(leader = &journal_, std::memory_order_relaxed);
  }
  const uint64_t own = journal_.now() - reviewed_own_;
  const uint64_t others = leader->now() - reviewed_leader_;
  if (leader != &journal_ && own < kFewestToReview) {
    if (led_by_ == nullptr && reviewed_own_ == 0) led_by_ = leader;
    return;
  }
  led_by_ = leader != &journal_ && own * kMuchBusier < others ? leader : nullptr;
  reviewed_own_ = journal_.now();
  reviewed_leader_ = leader->now();
}

Place* Heap::take_found(const Request& request, bool frugal) {
  if (unit_ == BlockUnit::kSegment) return take_segment(request);
  // Of a program that is not known to repeat itself, the remembered place of a small block says nothing: the
  // best fit keeps free bytes together. For large blocks it spares a view.
  const bool small = request.lines < kPageLines;
  const bool repeats = journal_.then() != Journal::kNever;
  if (remembers() && (!small || repeats)) {
    if (Place* place = take_same_size(request)) return place;
  }
  reindex();
  if (request.lines < kPageLines) {
    if (Place* place = take_fragment(request)) return place;
  }
  return take_hole(request, frugal);
}

Place* Heap::take_again(const Request& request, bool frugal) {
  if (Place* place = slab_with_room(request); place != nullptr) return place;
  if (Place* place = take_located(request); place != nullptr) return place;
  return take_found(request, frugal);
}

bool Heap::make_live(Place& place, uint64_t requested_bytes) {
  AddressMap& map = AddressMap::instance();
  if (map.find(place.va) != &place && !map.set(place.va, 1, &place)) {
    const Change undone = give(place);
    counters.on_cached(static_cast<int64_t>(undone.page_bytes() - taken_.page_bytes()));
    counters.on_fragments(undone.fragments + taken_.fragments);
    return false;
  }
  place.requested_bytes = requested_bytes;
  counters.on_allocate(SizePool::kLarge, requested_bytes, place.bytes(), taken_.page_bytes(),
                       taken_.fragments, place.va);
  return true;
}

// ---- Pages that come and go

void Heap::pages_missing_from(const Place& place, std::vector<PageId>& missing) const {
  missing.clear();
  if (place.state != BlockState::kFree || is_lost(place)) return;
  const auto add = [&](PageId id) SPW_REQUIRES(mutex) {
    if (!vacant_.test(id)) missing.push_back(id);
  };
  for (const PageRun& run : place.runs) {
    for (uint32_t i = 0; i < run.count; ++i) add(run.first + i);
  }
  if (place.head_page != kNoPage && !piece_is_free(place.head_page, place.head_begin, place.head_end)) {
    missing.push_back(place.head_page);
  }
  if (place.tail_page != kNoPage && !piece_is_free(place.tail_page, 0, place.tail_end)) {
    missing.push_back(place.tail_page);
  }
}

void Heap::choose_vacant(uint32_t most, std::vector<PageId>& out) const {
  std::vector<PageRun> runs;
  for (PageId first = vacant_.next_set(0); first < vacant_.end();) {
    const PageId last = vacant_.next_clear(first);
    runs.push_back({first, last - first});
    first = vacant_.next_set(last);
  }
  std::sort(runs.begin(), runs.end(), [](const PageRun& a, const PageRun& b) {
    return a.count != b.count ? a.count > b.count : a.first < b.first;
  });
  // Longest runs first, so that few remain in pieces; the last one is the shortest that still suffices.
  for (size_t i = 0; i < runs.size() && most > 0; ++i) {
    size_t pick = i;
    if (runs[i].count > most) {
      while (pick + 1 < runs.size() && runs[pick + 1].count >= most) ++pick;
    }
    const uint32_t count = std::min(runs[pick].count, most);
    for (uint32_t k = 0; k < count; ++k) out.push_back(runs[pick].first + k);
    most -= count;
  }
}

void Heap::list_leavable(std::vector<PageId>& out) const {
  choose_vacant(vacant_count_, out);
  if (!keeps_pages) return;
  if (served_since_ == 0 || may_move || counters.is_away()) return out.clear();
  std::unordered_set<PageId> used;
  for (const std::unique_ptr<Place>& place : places_) {
    if (place->last_use < served_since_) continue;
    for_each_piece(*place, [&](PageId page, uint32_t, uint32_t) { used.insert(page); });
  }
  std::erase_if(out, [&](PageId page) { return used.count(page) != 0; });
}

void Heap::serve_pool(PoolId pool) {
  key.pool = pool;
  served_since_ = journal_.now();
}

void Heap::receive(Heap& from, const std::vector<PageId>& pages) {
  from.reindex();
  const int64_t bytes = static_cast<int64_t>(pages.size() * kPageBytes);
  for (const PageId id : pages) {
    from.vacant_.clear(id);
    vacant_.set(id);
    Page& page = store_.page(id);
    page.owner.store(this, std::memory_order_relaxed);
    stamp(id, 1);
  }
  from.vacant_count_ -= static_cast<uint32_t>(pages.size());
  vacant_count_ += static_cast<uint32_t>(pages.size());
  from.owned_count_ -= static_cast<uint32_t>(pages.size());
  owned_count_ += static_cast<uint32_t>(pages.size());
  if (pool_bytes_ != from.pool_bytes_) {
    from.count_in_pool(-bytes);
    count_in_pool(bytes);
  }
  counters.on_transfer(from.counters, bytes);
}

void Heap::add_vacant(PageId first, uint32_t count) {
  vacant_.set(first, count);
  vacant_count_ += count;
  owned_count_ += count;
  count_in_pool(static_cast<int64_t>(count * kPageBytes));
  counters.on_pages(static_cast<int64_t>(count * kPageBytes));
}

void Heap::drop_vacant(PageId first, uint32_t count) {
  reindex();
  vacant_.clear(first, count);
  vacant_count_ -= count;
  owned_count_ -= count;
  count_in_pool(-static_cast<int64_t>(count * kPageBytes));
  counters.on_pages(-static_cast<int64_t>(count * kPageBytes));
}

void Heap::count_for(spw_stat* pool_bytes) {
  if (pool_bytes == pool_bytes_) return;
  const auto bytes = static_cast<int64_t>(owned_count_ * kPageBytes);
  count_in_pool(-bytes);
  pool_bytes_ = pool_bytes;
  count_in_pool(bytes);
}

void Heap::count_in_pool(int64_t bytes) {
  if (pool_bytes_ != nullptr && bytes != 0) add_bytes(*pool_bytes_, bytes);
}

bool Heap::is_idle() {
  release_empty_slabs();
  if (owned_count_ != vacant_count_ || !pending_.empty()) return false;
  for (PageId id = vacant_.next_set(0); id < vacant_.end(); id = vacant_.next_set(id + 1)) {
    if (!timeline.is_complete(last_use(id))) return false;
  }
  return true;
}

uint64_t Heap::metadata_bytes() const {
  uint64_t bytes = sizeof(Heap) + places_.size() * (sizeof(Place) + sizeof(std::unique_ptr<Place>)) +
                   newest_by_size_.size() * 32 + slabs_.size() * sizeof(Slab) + vacant_.end() / 8 +
                   journal_.metadata_bytes();
  for (const SlabClass& state : classes_) bytes += state.openings.metadata_bytes();
  return bytes;
}

}  // namespace spillway
