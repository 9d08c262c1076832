#include "stats/oom_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "stats/dump_members.h"

namespace spillway {
namespace {

constexpr double kMilliseconds = 1e-6;
// Pools and regions that the text names; there may be hundreds.
constexpr size_t kMostPools = 3;
// Lines of the program that the text names.
constexpr size_t kMostSites = 3;

std::string human(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB"};  // as PyTorch writes sizes
  size_t unit = 0;
  while (unit + 1 < std::size(units) && bytes >= 1024) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", static_cast<int64_t>(bytes))
                   : fmt::format("{:.2f} {}", bytes, units[unit]);
}

std::string amount(int64_t bytes) {
  return fmt::format("{} ({})", human(static_cast<double>(bytes)), bytes);
}

int64_t other_bytes(const OomRequest& request, const DeviceStats& stats) {
  return static_cast<int64_t>(request.device_bytes) - static_cast<int64_t>(request.device_free_bytes) -
         stats.reserved_bytes.all.current;
}

struct Verdict {
  std::string reason;  // what stood in the way, as far as the counters tell
  std::string next;    // what to do about it
};

Verdict verdict_on_full_device(const OomRequest& request, const DeviceStats& stats) {
  const int64_t others = other_bytes(request, stats);
  if (request.device_bytes > 0 && others > stats.reserved_bytes.all.current) {
    return {"the device is full", fmt::format("others hold {} of it: nvidia-smi names the processes",
                                              human(static_cast<double>(others)))};
  }
  return {"the device is full",
          "keep less at a time (smaller batches, activation checkpointing), or let memory leave the device "
          "(overflow:host, regions, offload_activations)"};
}

Verdict verdict(const OomRequest& request, const DeviceStats& stats) {
  const auto requested = static_cast<int64_t>(request.requested_bytes);
  const int64_t idle = stats.cached_free_bytes + stats.inactive_split_bytes.all.current;
  if (request.requested_bytes > request.most_reserved_bytes) {
    return {"the request is larger than all the memory Spillway may hold",
            "ask for less at a time, or raise limit: and lower reserve: where the device has more"};
  }
  if (stats.pending_bytes >= requested) {
    return {"enough is freed but still used by streams",
            "a stream under capture cannot wait for it: allocate before the capture, or free on the stream "
            "that allocates"};
  }
  if (idle >= requested) {
    return {"enough is free, but it is in pieces or belongs to other streams and pools",
            "release private pools and graphs that are not needed any more, and trim (empty_cache) before a "
            "capture"};
  }
  if (request.device_free_bytes >= request.requested_bytes)
    return {"the limit, or the reserve, leaves no room", "raise limit: or lower reserve:"};
  return verdict_on_full_device(request, stats);
}

// Names `what`, and each in it that holds something, with how much it holds.
std::string largest_line(std::string_view what, std::vector<std::pair<std::string, int64_t>> held) {
  std::erase_if(held, [](const auto& each) { return each.second == 0; });
  if (held.empty()) return {};
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text = fmt::format("\n  {}: {}", what, held.size());
  for (size_t i = 0; i < std::min(held.size(), kMostPools); ++i)
    text += fmt::format("{} {} {}", i == 0 ? ":" : ",", held[i].first, amount(held[i].second));
  return text;
}

std::string pools_line(const std::vector<PoolRow>& pools) {
  std::vector<std::pair<std::string, int64_t>> held;
  for (const PoolRow& pool : pools)
    held.emplace_back(fmt::format("({}, {})", pool.first, pool.second), pool.reserved_bytes.current);
  return largest_line("private pools", std::move(held));
}

// Lists what this request tried, and what all have tried so far with how often that helped.
std::string rungs_lines(const SlowPath& climb, const DeviceStats& stats) {
  std::string now;
  for (size_t rung = 0; rung < static_cast<size_t>(Rung::kOutOfMemory); ++rung) {
    if (climb.rung_ns[rung] == 0) continue;
    now += fmt::format("{} {} {:.3f} ms", now.empty() ? "" : ",", kRungNames[rung],
                       static_cast<double>(climb.rung_ns[rung]) * kMilliseconds);
  }
  std::string before;
#define SPW_STATS_MEMBER(name, Name)                                                                       \
  if (Rung::k##Name != Rung::kOutOfMemory && (stats.rungs.name.hits | stats.rungs.name.time_ns) != 0) {    \
    before += fmt::format("{} " #name " {} ({:.3f} ms)", before.empty() ? "" : ",", stats.rungs.name.hits, \
                          static_cast<double>(stats.rungs.name.time_ns) * kMilliseconds);                  \
  }
  SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  return fmt::format(
      "\n  tried for this request:{}\n  helped so far:{}; {} host waits, {} driver allocations, "
      "{} times out of memory",
      now.empty() ? " nothing" : now, before.empty() ? " nothing" : before, stats.host_waits,
      stats.num_device_alloc, stats.num_ooms);
}

}  // namespace

std::string oom_report(const OomRequest& request, const DeviceStats& stats) {
  const Verdict said = verdict(request, stats);
  const int64_t reserved = stats.reserved_bytes.all.current;
  const int64_t active = stats.active_bytes.all.current;
  const int64_t requested = stats.requested_bytes.all.current;
  const int64_t inactive_split = stats.inactive_split_bytes.all.current;
  std::string text = fmt::format("CUDA out of memory. Tried to allocate {} ({} bytes) on device {}: {}.",
                                 human(static_cast<double>(request.requested_bytes)), request.requested_bytes,
                                 request.device, said.reason);
  text += fmt::format("\n  next: {}", said.next);
  if (request.device_bytes > 0) {
    text += fmt::format("\n  device {} = Spillway {} + other processes, contexts and libraries {} + free {}",
                        amount(static_cast<int64_t>(request.device_bytes)), amount(reserved),
                        amount(other_bytes(request, stats)),
                        amount(static_cast<int64_t>(request.device_free_bytes)));
  }
  text +=
      fmt::format("\n  reserved {} = active {} + inactive split {} + cached {}; may reach {}",
                  amount(reserved), amount(active), amount(inactive_split), amount(stats.cached_free_bytes),
                  amount(static_cast<int64_t>(request.most_reserved_bytes)));
  text += fmt::format("\n  active {} = requested {} + rounding {}; freed but pending {}; highest so far {}",
                      amount(active), amount(requested), amount(active - requested),
                      amount(stats.pending_bytes), amount(stats.active_bytes.all.peak));
  text += fmt::format(
      "\n  free within reserved {}, the largest range of it {}, in {} heaps (stream and pool)",
      amount(inactive_split + stats.cached_free_bytes), amount(stats.largest_free_bytes), stats.heaps);
  text += pools_line(request.pools);
  if (stats.host_placed_blocks > 0) {
    text += fmt::format("\n  placed in host memory {}", amount(stats.host_placed_bytes));
  }
  return text + rungs_lines(request.climb, stats);
}

std::string oom_sites(std::vector<OomSite> sites) {
  std::sort(sites.begin(), sites.end(), [](const OomSite& a, const OomSite& b) { return a.bytes > b.bytes; });
  std::string text;
  for (size_t i = 0; i < std::min(sites.size(), kMostSites); ++i) {
    text += fmt::format("{} {} {} in {} blocks", i == 0 ? "\n  held by" : ",", sites[i].name,
                        amount(sites[i].bytes), sites[i].blocks);
  }
  return text;
}

std::string oom_tiers(DumpTiers tiers) {
  std::vector<std::pair<std::string, int64_t>> held;
  for (DumpRegion& region : tiers.regions)
    held.emplace_back(std::move(region.tag), static_cast<int64_t>(region.stats.device_bytes));
  const spw_tier_stats& stats = tiers.stats;
  return largest_line("regions on the device", std::move(held)) +
         fmt::format("\n  outside the device: regions {} bytes in host memory, {} on disk; stashes {}, {}",
                     stats.region_host_bytes, stats.region_disk_bytes, stats.stash_host_bytes,
                     stats.stash_disk_bytes);
}

}  // namespace spillway
