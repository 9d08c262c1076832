#include "allocator/view_budget.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <unordered_map>
#include <utility>

#include "allocator/heap_lock.h"
#include "driver/capture.h"

namespace spillway {
namespace {

// From this share of the mappings that may live beside the home view's on, some 50,000, they are spared:
// small blocks go to windows, programs that do not repeat themselves are kept together, and ever more pages,
// in the end a quarter more, are created where a view would do.
constexpr uint32_t kManyMappingsDivisor = 9;
constexpr uint32_t kMostSpentPagesDivisor = 4;
// Pages are spent for mappings while so large a part of what is held could still be added.
constexpr uint32_t kFarFromLimitDivisor = 16;
// A last purchase, larger than what is left of the share, may exceed the share by so much.
constexpr double kLastPurchase = 1.25;
// This part of the mappings that may live goes at a time.
constexpr uint32_t kRetiredDivisor = 6;

// As far as is known the bound is of a process (docs/hardware-proof.md).
std::atomic<uint32_t> arenas_with_views{0};

}  // namespace

ViewBudget::~ViewBudget() {
  kArenaLock.assert_held();  // by nobody: the arena ends
  if (has_part_) arenas_with_views.fetch_sub(1);
}

uint32_t ViewBudget::part_of_process() const {
  return parts_.options.most_mappings / std::max(1u, arenas_with_views.load());
}

uint32_t ViewBudget::most_mappings() const {
  return std::max(part_of_process(), raised_to_);
}

bool ViewBudget::has_room(uint32_t mappings) {
  if (!has_part_) arenas_with_views.fetch_add(1);
  has_part_ = true;
  return parts_.store->live_mappings() + mappings <= most_mappings();
}

uint32_t ViewBudget::many_mappings() const {
  // Counts the views only: the home view alone is large on a large device.
  const uint32_t most = most_mappings();
  const uint32_t home = std::min(parts_.store->home_mappings(), most);
  return home + (most - home) / kManyMappingsDivisor;
}

uint32_t ViewBudget::pages_to_spend() const {
  const PageStore& store = *parts_.store;
  // Near the limit every page is needed, and there is none where others fill the device.
  if (store.device_is_full()) return 0;
  if (store.easy_room_pages() < store.page_count() / kFarFromLimitDivisor) return 0;
  // Other arenas come and go meanwhile, so that what counts as many may be of another bound.
  const uint64_t most = most_mappings();
  const uint64_t from = std::min<uint64_t>(many_mappings(), most);
  const uint64_t live = std::min<uint64_t>(store.live_mappings(), most);
  const uint64_t above = live - std::min(live, from);
  const uint64_t needed = store.page_count() - std::min<uint64_t>(spent_pages_, store.page_count());
  const uint64_t allowed = needed * above / std::max<uint64_t>(most - from, 1) / kMostSpentPagesDivisor;
  const uint64_t left = allowed - std::min<uint64_t>(allowed, spent_pages_);
  return static_cast<uint32_t>(std::min(left, store.easy_room_pages()));
}

uint32_t ViewBudget::pages_to_buy(const Heap& heap, const Request& request) const {
  // Where views go on being mapped the share grows with them, up to twice the option.
  const uint32_t most = most_mappings();
  const uint32_t mappings = std::min(parts_.store->live_mappings(), most);
  const uint32_t home = std::min(parts_.store->home_mappings(), mappings);
  const double of_views = static_cast<double>(mappings - home) / std::max(most - home, 1u);
  const uint64_t left = heap.purchase().pages_to_buy(
      parts_.store->slack_percent() * (1 + of_views), parts_.store->slack_percent() * kLastPurchase,
      heap.pages().owned(), bytes_to_pages(uint64_t{request.quanta} * kQuantumBytes));
  return static_cast<uint32_t>(std::min(left, parts_.store->easy_room_pages()));
}

std::vector<View*> ViewBudget::list_unused(const std::vector<Heap*>& all) const {
  // Requests since a range in the view was taken last; 0 for one that is in use, or may be by a graph that is
  // replayed.
  std::unordered_map<const View*, uint64_t> ages;
  bool repeats = false;  // a program whose ranges lie in views may
  const AllLocked locked(all);
  for (const Heap* heap : all) {
    heap->mutex.assert_held();  // by `locked`
    const uint64_t now = heap->predictor().now();
    const bool may_repeat = !heap->predictor().is_asleep();
    heap->for_each_range([&](const CachedRange& range) {
      if (range.view == nullptr) return;
      // A block outlives the loss of another slot of its view.
      const bool in_use = range.state != BlockState::kFree || heap->use.keeps_pages;  // mutant: view-in-use
      if (is_lost(range) && !in_use) return;                                          // mutant: view-lost
      repeats = repeats || (may_repeat && !in_use);
      const uint64_t age = in_use ? 0 : now - range.last_use;
      const auto [found, is_new] = ages.emplace(range.view, age);
      if (!is_new) found->second = std::min(found->second, age);
    });
  }
  std::vector<std::pair<uint64_t, View*>> by_age;
  parts_.store->for_each_view([&](View& view) {
    const auto found = ages.find(&view);
    const uint64_t age = found == ages.end() ? UINT64_MAX : found->second;
    if (age > 0) by_age.emplace_back(age, &view);  // mutant: view-age
  });
  std::sort(by_age.begin(), by_age.end(), std::greater<>());
  // Those used last are wanted again by a program that repeats itself. To others all are alike.
  const uint32_t most_old = repeats ? part_of_process() / 2 : UINT32_MAX;
  std::vector<View*> unused;
  uint32_t old = 0;
  for (const auto& [age, view] : by_age) {
    if (old >= most_old) break;
    old += view->mapped;
    unused.push_back(view);
  }
  return unused;
}

void ViewBudget::retire_longest_runs(std::vector<View*>& unused, bool every) {
  // Every call that unmaps is a wait, and one unmaps views that lie side by side.
  std::sort(unused.begin(), unused.end(), [](const View* a, const View* b) { return a->va < b->va; });
  struct Run {
    uint32_t mapped = 0;
    size_t first = 0;
    size_t end = 0;
  };
  std::vector<Run> runs;
  for (size_t i = 0; i < unused.size(); ++i) {
    if (i == 0 || unused[i - 1]->end_va() != unused[i]->va) runs.push_back({0, i, i});
    runs.back().mapped += unused[i]->mapped;
    runs.back().end = i + 1;
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.mapped > b.mapped; });
  const uint32_t too_many = part_of_process() / kRetiredDivisor;
  const uint32_t most = most_mappings();
  const uint32_t enough = every ? 0 : most - std::min(most, too_many);
  uint32_t left = parts_.store->live_mappings();
  for (const Run& run : runs) {
    if (left <= enough) break;
    left -= run.mapped;
    for (size_t i = run.first; i < run.end; ++i) {
      unused[i]->retired = true;
      unused[i]->lose_ranges();
    }
  }
  // Views that are all in use: no further wait before there are many more.
  raised_to_ = left + too_many;
}

bool ViewBudget::retire_views(bool every) {
  const std::vector<Heap*> all = heaps_.all();
  if (heaps_.any_capturing(all)) return false;  // mutant: views-captures
  {
    const ArenaLock lock(parts_.mutex);
    std::vector<View*> unused = list_unused(all);
    retire_longest_runs(unused, every);
  }
  bool everything = false;
  if (!waits_.synchronize(all, &everything).ok() || !everything) return false;  // mutant: views-wait
  const RelaxedCapture relaxed(*parts_.driver);
  const ArenaLock lock(parts_.mutex);
  return parts_.store->unmap_retired().ok();
}

}  // namespace spillway
