#include "cli/report/growth.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "cli/report/tables.h"
#include "cli/size.h"

namespace spillway {
namespace {

constexpr size_t kLeastSteps = 3;
constexpr size_t kMostCandidates = 64;   // periods that are tried
constexpr size_t kMostBoundaries = 256;  // moments that are compared

// ---- Steps

// "Optimizer.step#AdamW.step" of it, "ProfilerStep" of "ProfilerStep#12".
std::string mark_kind(const std::string& name) {
  const size_t hash = name.find('#');
  const bool numbered =
      hash != std::string::npos && name.find_first_not_of("0123456789", hash + 1) == std::string::npos;
  return numbered ? name.substr(0, hash) : name;
}

bool is_step(const std::string& kind) {
  for (const std::string_view known : {"ProfilerStep", "Optimizer.step", "step", "iteration"}) {
    if (kind.compare(0, known.size(), known) == 0) return true;
  }
  return false;
}

Steps marked_steps(const MemoryView& view) {
  std::map<std::string, std::vector<int64_t>> times;
  for (const Mark& mark : view.marks) {
    if (mark.begins && is_step(mark_kind(mark.name))) times[mark_kind(mark.name)].push_back(mark.time_us);
  }
  Steps out;
  for (const auto& [kind, when] : times) {
    if (when.size() < kLeastSteps || when.size() <= out.starts.size()) continue;
    out.how = fmt::format("marked by {}", kind);
    out.starts.clear();
    for (const int64_t time : when) {
      const auto first = std::partition_point(view.events.begin(), view.events.end(),
                                              [&](const MemoryEvent& event) { return event.time_us < time; });
      out.starts.push_back(static_cast<size_t>(first - view.events.begin()));
    }
    std::sort(out.starts.begin(), out.starts.end());
  }
  return out;
}

struct Allocation {
  uint64_t bytes = 0;
  uint32_t site = 0;
  size_t event = 0;
  bool same(const Allocation& other) const { return bytes == other.bytes && site == other.site; }
};

// Distances between the last two of what comes seldom: once in a step.
std::vector<size_t> candidate_periods(const std::vector<Allocation>& allocations) {
  struct Seen {
    size_t times = 0;
    size_t last = 0;
    size_t before = 0;
  };
  std::map<std::pair<uint64_t, uint32_t>, Seen> seen;
  for (size_t i = 0; i < allocations.size(); ++i) {
    Seen& one = seen[{allocations[i].bytes, allocations[i].site}];
    one = {one.times + 1, i, one.last};
  }
  std::vector<Seen> seldom;
  for (const auto& [key, one] : seen) {
    if (one.times >= kLeastSteps) seldom.push_back(one);
  }
  std::stable_sort(seldom.begin(), seldom.end(),
                   [](const Seen& a, const Seen& b) { return a.times < b.times; });
  std::vector<size_t> out;
  for (size_t i = 0; i < std::min(seldom.size(), kMostCandidates); ++i)
    out.push_back(seldom[i].last - seldom[i].before);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// The first step may differ: it makes what the others use.
bool repeats(const std::vector<Allocation>& allocations, size_t period) {
  if (period == 0 || allocations.size() < kLeastSteps * period) return false;
  size_t same = 0;
  for (size_t i = 2 * period; i < allocations.size(); ++i)
    same += allocations[i].same(allocations[i - period]);
  const size_t compared = allocations.size() - 2 * period;
  return 10 * same >= 9 * compared && compared >= period;
}

Steps periodic_steps(const MemoryView& view) {
  std::vector<Allocation> allocations;
  for (size_t i = 0; i < view.events.size(); ++i) {
    const MemoryEvent& event = view.events[i];
    if (event.kind == MemoryEvent::Kind::kAllocate) allocations.push_back({event.bytes, event.site, i});
  }
  Steps out;
  for (const size_t period : candidate_periods(allocations)) {
    if (!repeats(allocations, period)) continue;
    out.how = fmt::format("every {} allocations", period);
    for (size_t at = allocations.size(); at > period; at -= period)
      out.starts.push_back(allocations[at - period].event);
    std::reverse(out.starts.begin(), out.starts.end());
    out.starts.push_back(view.events.size());
    break;
  }
  return out;
}

// ---- Growth

// Bytes by name at the start of each step.
using Counts = std::vector<std::map<uint64_t, uint64_t>>;

void count(const History& history, Counts& sites, Counts& classes) {
  sites.emplace_back();
  classes.emplace_back();
  for (const auto& [address, block] : history.blocks()) {
    sites.back()[block.site] += block.requested_bytes;
    classes.back()[size_class_bytes(block.requested_bytes)] += block.requested_bytes;
  }
}

template <typename Name>
void add_growing(const Counts& counts, bool is_site, Name name, std::vector<GrowingRow>& out) {
  if (counts.size() < kLeastSteps + 1) return;
  for (const auto& [key, last] : counts.back()) {
    std::vector<uint64_t> bytes;
    for (size_t i = 1; i < counts.size(); ++i) {
      const auto found = counts[i].find(key);
      bytes.push_back(found == counts[i].end() ? 0 : found->second);
    }
    if (std::adjacent_find(bytes.begin(), bytes.end(), [](uint64_t a, uint64_t b) { return b <= a; }) !=
        bytes.end())
      continue;
    out.push_back(
        {name(key), is_site, bytes.front(), bytes.back(),
         static_cast<double>(bytes.back() - bytes.front()) / static_cast<double>(bytes.size() - 1)});
  }
}

std::string class_name(uint64_t up_to) {
  return up_to <= 512 ? std::string("up to 512 B")
                      : fmt::format("{} to {}", format_bound(up_to / 2), format_bound(up_to));
}

}  // namespace

Steps find_steps(const MemoryView& view) {
  Steps marked = marked_steps(view);
  return marked.starts.empty() ? periodic_steps(view) : marked;
}

Growth find_growth(const MemoryView& view, History& history) {
  Growth out;
  out.steps = find_steps(view);
  std::vector<size_t> starts = out.steps.starts;
  if (starts.size() > kMostBoundaries) {
    const size_t stride = (starts.size() + kMostBoundaries - 1) / kMostBoundaries;
    std::vector<size_t> thinned;
    for (size_t i = 0; i < starts.size(); i += stride) thinned.push_back(starts[i]);
    starts = std::move(thinned);
  }
  Counts sites;
  Counts classes;
  size_t next = 0;
  const Status played = history.play([&](int64_t index, const Parts&) {
    for (; next < starts.size() && index + 1 >= static_cast<int64_t>(starts[next]); ++next)
      count(history, sites, classes);
  });
  if (!played.ok()) return out;
  add_growing(
      sites, true, [&](uint64_t site) { return view.sites[site]; }, out.rows);
  add_growing(classes, false, class_name, out.rows);
  std::stable_sort(out.rows.begin(), out.rows.end(), [](const GrowingRow& a, const GrowingRow& b) {
    return a.bytes_per_step > b.bytes_per_step;
  });
  return out;
}

}  // namespace spillway
