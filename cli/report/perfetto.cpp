#include "cli/report/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostSlices = 2000;           // that get a slice: the largest
constexpr int64_t kMostNs = int64_t{1} << 50;  // of one climb: 13 days
constexpr int kMarksThread = 1;
constexpr int kLadderThread = 2;

class TraceBuilder {
 public:
  explicit TraceBuilder(const RankReport& report) : report_(report), view_(report.view) {
    pid_ = view_.rank.value_or(0);
    in_events_ = std::all_of(view_.events.begin(), view_.events.end(),
                             [](const MemoryEvent& event) { return event.time_us == 0; });
  }

  Json build() {
    name_process();
    for (const Timeline& timeline : report_.timelines) add_counters(timeline);
    if (report_.timelines.empty()) add_moment();
    add_marks();
    add_climbs();
    add_blocks();
    return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events_)}};
  }

 private:
  int64_t start() const { return in_events_ || view_.events.empty() ? 0 : view_.events.front().time_us; }
  // What came before the first event begins with it.
  int64_t since_start(int64_t time_us) const { return std::max<int64_t>(0, time_us - start()); }
  int64_t time_of(size_t event) const {
    return in_events_ ? static_cast<int64_t>(event) + 1 : since_start(view_.events[event].time_us);
  }

  void name(const char* what, int thread, const std::string& text) {
    events_.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", pid_}, {"tid", thread}, {"args", {{"name", text}}}});
  }

  void name_process() {
    name("process_name", 0, view_.label());
    if (!view_.marks.empty()) name("thread_name", kMarksThread, "annotations");
    if (!view_.climbs.empty()) name("thread_name", kLadderThread, "ladder");
  }

  void add_counters(const Timeline& timeline) {
    for (const TimelinePoint& point : timeline.points) {
      Json values = Json::object();
      for (size_t i = 0; i < timeline.series.size(); ++i) values[timeline.series[i]] = point.bytes[i];
      events_.push_back({{"ph", "C"},
                         {"name", fmt::format("memory {}", timeline.title)},
                         {"pid", pid_},
                         {"ts", point.at},
                         {"args", std::move(values)}});
    }
  }

  // Of a single dump there is one point.
  void add_moment() {
    const Parts& parts = report_.main().parts;
    add_counters({"by state",
                  false,
                  {"live", "rounding", "pending", "inactive split", "cached"},
                  {{0, {parts.live, parts.rounding, parts.pending, parts.inactive_split, parts.cached}}}});
  }

  // Annotations nest, so that an end belongs to the last begin of its name; those without are left out.
  void add_marks() {
    std::map<std::string, std::vector<int64_t>> open;
    for (const Mark& mark : view_.marks) {
      std::vector<int64_t>& begins = open[mark.name];
      if (mark.begins) {
        begins.push_back(mark.time_us);
      } else if (!begins.empty()) {
        const int64_t at = since_start(begins.back());
        add_slice(kMarksThread, mark.name, at, since_start(mark.time_us) - at);
        begins.pop_back();
      }
    }
  }

  void add_slice(int thread, const std::string& what, int64_t at, int64_t duration) {
    events_.push_back({{"ph", "X"},
                       {"name", what},
                       {"pid", pid_},
                       {"tid", thread},
                       {"ts", at},
                       {"dur", std::max<int64_t>(0, duration)}});
  }

  // A climb's time is that of its end; its rungs follow one another.
  void add_climbs() {
    for (const ClimbView& climb : view_.climbs) {
      int64_t total_ns = 0;
      for (const auto& [rung, ns] : climb.rung_ns)
        total_ns = std::min(total_ns + std::min(ns, kMostNs), kMostNs);
      const int64_t first = view_.climbs.front().time_us;
      int64_t at = climb.time_us - first - total_ns / 1000;
      add_slice(kLadderThread,
                fmt::format("{} bytes: {}", climb.requested_bytes,
                            climb.outcome.empty() ? "not ended" : climb.outcome),
                at, total_ns / 1000);
      for (const auto& [rung, ns] : climb.rung_ns) {
        add_slice(kLadderThread, rung, at, std::min(ns, kMostNs) / 1000);
        at += std::min(ns, kMostNs) / 1000;
      }
    }
  }

  // The size from which on a block is among the largest.
  uint64_t least_bytes() const {
    std::vector<uint64_t> sizes;
    for (const MemoryEvent& event : view_.events) {
      if (event.kind == MemoryEvent::Kind::kAllocate) sizes.push_back(event.bytes);
    }
    if (sizes.size() <= kMostSlices) return 0;
    std::nth_element(sizes.begin(), sizes.begin() + kMostSlices, sizes.end(), std::greater<>());
    return sizes[kMostSlices] + 1;
  }

  void add_blocks() {
    const uint64_t least = least_bytes();
    std::unordered_map<uint64_t, size_t> live;
    for (size_t i = 0; i < view_.events.size(); ++i) {
      const MemoryEvent& event = view_.events[i];
      if (event.kind == MemoryEvent::Kind::kOutOfMemory) add_oom(i);
      if (event.kind == MemoryEvent::Kind::kAllocate && event.bytes >= least) {
        live[event.address] = i;
        add_block(i, "b", time_of(i));
      } else if (event.kind == MemoryEvent::Kind::kFreeCompleted) {
        const auto found = live.find(event.address);
        if (found == live.end()) continue;
        add_block(found->second, "e", time_of(i));
        live.erase(found);
      }
    }
    const std::set<size_t> last = [&] {
      std::set<size_t> out;
      for (const auto& [address, index] : live) out.insert(index);
      return out;
    }();
    for (const size_t index : last) add_block(index, "e", time_of(view_.events.size() - 1));
  }

  void add_block(size_t allocation, const char* phase, int64_t at) {
    const MemoryEvent& event = view_.events[allocation];
    events_.push_back({{"ph", phase},
                       {"cat", "block"},
                       {"name", fmt::format("{} bytes", event.bytes)},
                       {"id", allocation},
                       {"pid", pid_},
                       {"ts", at},
                       {"args", {{"site", view_.sites[event.site]}, {"stream", event.stream}}}});
  }

  void add_oom(size_t index) {
    events_.push_back({{"ph", "i"},
                       {"s", "p"},
                       {"name", fmt::format("out of memory: {} bytes", view_.events[index].bytes)},
                       {"pid", pid_},
                       {"tid", 0},
                       {"ts", time_of(index)}});
  }

  const RankReport& report_;
  const MemoryView& view_;
  int64_t pid_ = 0;
  bool in_events_ = false;
  Json events_ = Json::array();
};

}  // namespace

Json perfetto_json(const RankReport& report) {
  return TraceBuilder(report).build();
}

}  // namespace spillway
