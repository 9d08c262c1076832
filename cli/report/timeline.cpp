#include "cli/report/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "cli/size.h"

namespace spillway {
namespace {

// Coarser than the classes of tables.h: a picture of seven layers can be read.
constexpr uint64_t kClassBounds[] = {1u << 20, 4u << 20, 16u << 20, 64u << 20, 256u << 20, 1u << 30};
constexpr size_t kClasses = std::size(kClassBounds) + 1;

size_t class_of(uint64_t bytes) {
  return static_cast<size_t>(std::lower_bound(std::begin(kClassBounds), std::end(kClassBounds), bytes) -
                             std::begin(kClassBounds));
}

std::vector<std::string> class_names() {
  std::vector<std::string> out;
  for (const uint64_t bound : kClassBounds) out.push_back("up to " + format_bound(bound));
  out.push_back("above " + format_bound(kClassBounds[kClasses - 2]));
  return out;
}

// The moments that a picture shows: of each stretch, the one with the most live and the one with the most
// reserved bytes.
class Thinning {
 public:
  explicit Thinning(size_t moments) : stride_(std::max<size_t>(1, 2 * moments / kMostTimelinePoints)) {}

  void see(int64_t index, const Parts& parts) {
    const uint64_t live = parts.live + parts.pending;
    if (seen_ == 0 || live > most_live_) {
      most_live_ = live;
      live_at_ = index;
    }
    if (seen_ == 0 || parts.reserved() > most_reserved_) {
      most_reserved_ = parts.reserved();
      reserved_at_ = index;
    }
    last_ = index;
    if (++seen_ == stride_) flush();
  }

  std::vector<int64_t> take() {
    if (seen_ > 0) flush();
    kept_.push_back(last_);
    std::sort(kept_.begin(), kept_.end());
    kept_.erase(std::unique(kept_.begin(), kept_.end()), kept_.end());
    return std::move(kept_);
  }

 private:
  void flush() {
    kept_.push_back(live_at_);
    kept_.push_back(reserved_at_);
    seen_ = 0;
  }

  const size_t stride_;
  size_t seen_ = 0;
  uint64_t most_live_ = 0, most_reserved_ = 0;
  int64_t live_at_ = -1, reserved_at_ = -1, last_ = -1;
  std::vector<int64_t> kept_;
};

class Painter {
 public:
  Painter(const MemoryView& view, const std::vector<std::string>& largest_sites) : view_(view) {
    in_events_ = std::all_of(view.events.begin(), view.events.end(),
                             [](const MemoryEvent& event) { return event.time_us == 0; });
    state_ = {"by state", in_events_, {"live", "rounding", "pending", "inactive split", "cached"}, {}};
    class_ = {"by size class", in_events_, class_names(), {}};
    site_ = {"by call site", in_events_, largest_sites, {}};
    site_.series.push_back("other sites");
    for (Timeline* each : {&class_, &site_}) {
      each->series.push_back("rounding");
      each->series.push_back("free");
    }
    for (uint32_t i = 0; i < view.sites.size(); ++i) {
      const auto found = std::find(largest_sites.begin(), largest_sites.end(), view.sites[i]);
      site_series_.push_back(static_cast<size_t>(found - largest_sites.begin()));
    }
  }

  void paint(int64_t index, const Parts& parts, const History& history) {
    const int64_t at = when(index);
    state_.points.push_back(
        {at, {parts.live, parts.rounding, parts.pending, parts.inactive_split, parts.cached}});
    std::vector<uint64_t> classes(class_.series.size());
    std::vector<uint64_t> sites(site_.series.size());
    for (const auto& [address, block] : history.blocks()) {
      classes[class_of(block.requested_bytes)] += block.requested_bytes;
      sites[site_series_[block.site]] += block.requested_bytes;
    }
    for (auto* row : {&classes, &sites}) {
      (*row)[row->size() - 2] = parts.rounding;
      row->back() = parts.free();
    }
    class_.points.push_back({at, std::move(classes)});
    site_.points.push_back({at, std::move(sites)});
  }

  std::vector<Timeline> take() { return {std::move(state_), std::move(class_), std::move(site_)}; }

 private:
  // Of events whose clocks run backwards, the later one waits.
  int64_t when(int64_t index) {
    if (in_events_) return index + 1;
    const int64_t first = view_.events.front().time_us;
    const int64_t now = index < 0 ? 0 : view_.events[static_cast<size_t>(index)].time_us - first;
    latest_ = std::max(latest_, now);
    return latest_;
  }

  const MemoryView& view_;
  bool in_events_ = false;
  int64_t latest_ = 0;
  std::vector<size_t> site_series_;
  Timeline state_, class_, site_;
};

}  // namespace

std::vector<Timeline> timelines_of(const MemoryView& view, History& history,
                                   const std::vector<std::string>& largest_sites) {
  if (view.events.empty()) return {};
  Thinning thinning(view.events.size() + 1);
  if (!history.play([&](int64_t index, const Parts& parts) { thinning.see(index, parts); }).ok()) return {};
  const std::vector<int64_t> kept = thinning.take();
  Painter painter(view, largest_sites);
  size_t next = 0;
  const Status again = history.play([&](int64_t index, const Parts& parts) {
    if (next == kept.size() || kept[next] != index) return;
    ++next;
    painter.paint(index, parts, history);
  });
  if (!again.ok()) return {};
  return painter.take();
}

Timeline timeline_of_dumps(const std::vector<const MemoryView*>& dumps) {
  Timeline out{"by tier",
               false,
               {"live", "rounding", "pending", "inactive split", "cached", "host, placed", "host", "disk"},
               {}};
  for (const MemoryView* dump : dumps) {
    const Parts& parts = dump->now;
    out.points.push_back({dump->time_us - dumps.front()->time_us,
                          {parts.live, parts.rounding, parts.pending, parts.inactive_split, parts.cached,
                           dump->tiers.host_placed, dump->tiers.host, dump->tiers.disk}});
  }
  return out;
}

}  // namespace spillway
