#include "stats/oom_report.h"

#include <fmt/format.h>

#include <iterator>

#include "stats/counters.h"

namespace spillway {
namespace {

std::string human(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (unit + 1 < std::size(units) && bytes >= 1024) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", static_cast<int64_t>(bytes))
                   : fmt::format("{:.2f} {}", bytes, units[unit]);
}

std::string line(const char* what, int64_t bytes) {
  return fmt::format("\n  {:<34} {:>16} {:>12}", what, bytes, human(static_cast<double>(bytes)));
}

// What stood in the way, as far as the counters tell.
std::string reason(const OomRequest& request, const DeviceStats& stats) {
  const auto requested = static_cast<int64_t>(request.requested_bytes);
  const int64_t idle = stats.cached_free_bytes + stats.inactive_split_bytes.all.current;
  if (request.requested_bytes > request.most_reserved_bytes) {
    return "the request is larger than all the memory Spillway may hold";
  }
  if (stats.pending_bytes >= requested) return "enough is freed but still used by streams";
  if (idle >= requested) return "enough is free, but it is in pieces or belongs to other streams and pools";
  if (request.device_free_bytes >= request.requested_bytes)
    return "the limit, or the reserve, leaves no room";
  return "the device is full";
}

}  // namespace

std::string oom_report(const OomRequest& request, const DeviceStats& stats) {
  std::string text = fmt::format("CUDA out of memory. Tried to allocate {} ({} bytes) on device {}: {}.",
                                 human(static_cast<double>(request.requested_bytes)), request.requested_bytes,
                                 request.device, reason(request, stats));
  const int64_t reserved = stats.reserved_bytes.all.current;
  const int64_t active = stats.active_bytes.all.current;
  text += line("may hold at most", static_cast<int64_t>(request.most_reserved_bytes));
  text += line("holds (reserved)", reserved);
  text += line("  = in use (active)", active);
  text += line("  + unused parts of pages in use", stats.inactive_split_bytes.all.current);
  text += line("  + pages wholly unused (cached)", stats.cached_free_bytes);
  text += line("in use = asked for by the program", stats.requested_bytes.all.current);
  text += line("  + rounding", active - stats.requested_bytes.all.current);
  text += line("of it freed, waiting for streams", stats.pending_bytes);
  text += line("largest free range", stats.largest_free_bytes);
  text += line("highest in use so far", stats.active_bytes.all.peak);
  if (request.device_bytes > 0) {
    const auto device = static_cast<int64_t>(request.device_bytes);
    const auto free = static_cast<int64_t>(request.device_free_bytes);
    text += line("the device has", device);
    text += line("  = held by Spillway", reserved);
    text += line("  + held by others and by the driver", device - free - reserved);
    text += line("  + free", free);
  }
  if (stats.host_placed_blocks > 0) text += line("placed in host memory", stats.host_placed_bytes);
  text += fmt::format("\n  {} host waits, {} driver allocations; out of memory {} times", stats.host_waits,
                      stats.num_device_alloc, stats.num_ooms);
  text += "\n  rungs that were tried, how often they helped, and the time they took:";
  const char* separator = " ";
#define SPW_STATS_MEMBER(name, Name)                                                                    \
  if (Rung::k##Name != Rung::kOutOfMemory && (stats.rungs.name.hits | stats.rungs.name.time_ns) != 0) { \
    text += fmt::format("{}" #name " {} ({:.3f} ms)", separator, stats.rungs.name.hits,                 \
                        static_cast<double>(stats.rungs.name.time_ns) / 1e6);                           \
    separator = ", ";                                                                                   \
  }
  SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  return text;
}

}  // namespace spillway
