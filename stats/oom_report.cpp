#include "stats/oom_report.h"

#include <fmt/format.h>

#include <iterator>

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
  text += fmt::format(
      "\n  tried: {} host waits, {} trips to other streams' memory, {} driver allocations; out of memory {} "
      "times",
      stats.host_waits, stats.rungs.device_wait.hits + stats.rungs.steal.hits, stats.num_device_alloc,
      stats.num_ooms);
  return text;
}

}  // namespace spillway
