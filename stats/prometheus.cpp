#include "stats/prometheus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace spillway {
namespace {

using Type = PrometheusText::Type;
using Labels = PrometheusText::Labels;
using Devices = std::vector<PrometheusDevice>;

// "spillway_<stem>_<unit>", and with a word between the two for the peak and the running totals.
struct PooledFamily {
  std::string_view counter;
  std::string_view stem;
  std::string_view unit;
  std::string_view help;
};
constexpr std::array kPooled{
    PooledFamily{"allocation", "allocated", "blocks", "Blocks in the program's hands"},
    PooledFamily{"allocated_bytes", "allocated", "bytes", "Device memory of blocks in the program's hands"},
    PooledFamily{"active", "active", "blocks", "Blocks in use, until their free has completed"},
    PooledFamily{"active_bytes", "active", "bytes", "Device memory in use, until its free has completed"},
    PooledFamily{"requested_bytes", "requested", "bytes", "What the program asked for, of the active blocks"},
    PooledFamily{"segment", "reserved", "segments", "Runs of memory taken from the driver"},
    PooledFamily{"reserved_bytes", "reserved", "bytes", "Device memory taken from the driver"},
    PooledFamily{"inactive_split", "inactive_split", "blocks", "Free pieces of pages that are partly in use"},
    PooledFamily{"inactive_split_bytes", "inactive_split", "bytes",
                 "Free device memory in pages that are partly in use"},
};

struct ValueFamily {
  std::string_view counter;
  std::string_view name;  // empty: not told
  Type type;
  std::string_view help;
};
constexpr std::array kValues{
    ValueFamily{"num_alloc_retries", "alloc_retries_total", Type::kCounter,
                "Allocations served only after a wait of the host"},
    ValueFamily{"num_ooms", "ooms_total", Type::kCounter, "Allocations that failed for want of memory"},
    ValueFamily{"num_sync_all_streams", "device_synchronizations_total", Type::kCounter,
                "Waits for everything a device had to do"},
    ValueFamily{"num_device_alloc", "device_allocs_total", Type::kCounter,
                "Driver calls that brought memory"},
    ValueFamily{"num_device_free", "device_frees_total", Type::kCounter,
                "Driver calls that gave memory back"},
    ValueFamily{"max_split_size", "", Type::kGauge, ""},  // a constant
    ValueFamily{"cached_free_bytes", "cached_free_bytes", Type::kGauge,
                "Device memory in pages with no byte in use"},
    ValueFamily{"pending_blocks", "pending_blocks", Type::kGauge, "Freed blocks that a stream still uses"},
    ValueFamily{"pending_bytes", "pending_bytes", Type::kGauge,
                "Device memory of freed blocks that a stream still uses"},
    ValueFamily{"largest_free_bytes", "largest_free_bytes", Type::kGauge,
                "Largest request that is served without new memory from the driver"},
    ValueFamily{"limit_bytes", "limit_bytes", Type::kGauge, "What the reserved memory may reach"},
    ValueFamily{"heaps", "heaps", Type::kGauge, "Heaps, one for each stream and pool"},
    ValueFamily{"stream_waits", "stream_waits_total", Type::kCounter, "Device-side waits enqueued"},
    ValueFamily{"host_waits", "host_waits_total", Type::kCounter, "Waits that blocked a host thread"},
    ValueFamily{"live_mappings", "live_mappings", Type::kGauge, "Pages mapped, once for each view"},
    ValueFamily{"metadata_bytes", "metadata_bytes", Type::kGauge, "Host memory of the allocator's tables"},
    ValueFamily{"mean_active_bytes", "active_mean_bytes", Type::kGauge,
                "Mean over time of the device memory in use, since the last reset"},
    ValueFamily{"mean_requested_bytes", "requested_mean_bytes", Type::kGauge,
                "Mean over time of what the program asked for, since the last reset"},
    ValueFamily{"mean_reserved_bytes", "reserved_mean_bytes", Type::kGauge,
                "Mean over time of the device memory taken from the driver, since the last reset"},
    ValueFamily{"host_placed_blocks", "host_placed_blocks", Type::kGauge,
                "Blocks in host memory that the device uses"},
    ValueFamily{"host_placed_bytes", "host_placed_bytes", Type::kGauge,
                "Host memory of blocks that the device uses"},
};

struct TierFamily {
  std::string_view name;
  Type type;
  std::string_view help;
  uint64_t spw_tier_stats::*member;
};
constexpr std::array kTiers{
    TierFamily{"stashes", Type::kGauge, "Stashes that are kept outside", &spw_tier_stats::stashes},
    TierFamily{"disk_file_bytes", Type::kGauge, "Size of the spill file", &spw_tier_stats::disk_file_bytes},
    TierFamily{"disk_limit_bytes", Type::kGauge, "What the spill file may hold",
               &spw_tier_stats::disk_limit_bytes},
    TierFamily{"disk_today_bytes", Type::kGauge, "Bytes written to disk on this day (UTC), or about to be",
               &spw_tier_stats::disk_today_bytes},
    TierFamily{"disk_daily_limit_bytes", Type::kGauge, "What may be written to disk in a day",
               &spw_tier_stats::disk_daily_limit_bytes},
    TierFamily{"stuck_bytes", Type::kGauge,
               "Device memory of evicted regions that the driver did not take back",
               &spw_tier_stats::stuck_bytes},
    TierFamily{"tier_lasting_error", Type::kGauge,
               "The error of the driver since which nothing is moved any more; 0 for none",
               &spw_tier_stats::lasting_error},
    TierFamily{"disk_saved_bytes_total", Type::kCounter, "Bytes that packing kept from the disk",
               &spw_tier_stats::disk_saved_bytes},
    TierFamily{"stash_puts_total", Type::kCounter, "Stashes that were put out", &spw_tier_stats::stash_puts},
    TierFamily{"stash_gets_total", Type::kCounter, "Stashes that were brought back",
               &spw_tier_stats::stash_gets},
    TierFamily{"late_stashes_total", Type::kCounter, "Stashes that were asked for before they were back",
               &spw_tier_stats::late_gets},
    TierFamily{"refused_stashes_total", Type::kCounter, "Stashes there was no room for",
               &spw_tier_stats::refused_puts},
    TierFamily{"tier_out_bytes_total", Type::kCounter, "Bytes copied off the device",
               &spw_tier_stats::out_bytes},
    TierFamily{"tier_in_bytes_total", Type::kCounter, "Bytes copied back", &spw_tier_stats::in_bytes},
    TierFamily{"disk_written_bytes_total", Type::kCounter, "Bytes written to disk",
               &spw_tier_stats::disk_written_bytes},
    TierFamily{"disk_read_bytes_total", Type::kCounter, "Bytes read from disk",
               &spw_tier_stats::disk_read_bytes},
    TierFamily{"disk_zero_bytes_total", Type::kCounter, "Bytes that were all zero and not written",
               &spw_tier_stats::disk_zero_bytes},
    TierFamily{"disk_verified_bytes_total", Type::kCounter, "Bytes read whose checksum was right",
               &spw_tier_stats::disk_verified_bytes},
    TierFamily{"disk_mismatches_total", Type::kCounter, "Blocks that came back from the disk changed",
               &spw_tier_stats::disk_mismatches},
    TierFamily{"disk_repeated_writes_total", Type::kCounter, "Writes that were tried again",
               &spw_tier_stats::disk_repeated_writes},
    TierFamily{"disk_failed_writes_total", Type::kCounter, "Writes that the disk refused",
               &spw_tier_stats::disk_failed_writes},
};

template <typename Row, size_t count>
consteval const Row& row_of(const std::array<Row, count>& rows, std::string_view counter) {
  for (const Row& row : rows) {
    if (row.counter == counter) return row;
  }
  throw "a counter has no name for Prometheus";
}

Labels with(const Labels& labels, std::string_view name, std::string_view value) {
  Labels out = labels;
  out.emplace_back(name, value);
  return out;
}

void add_pooled(PrometheusText& text, const Devices& devices, const PooledFamily& row,
                spw_pool_stat DeviceStats::*member) {
  const auto name = [&](std::string_view word) {
    return fmt::format("spillway_{}{}_{}", row.stem, word, row.unit);
  };
  text.family(name(""), Type::kGauge, row.help);
  for (const PrometheusDevice& device : devices) {
    const spw_pool_stat& stat = device.stats.*member;
    text.sample(with(device.labels, "pool", "small"), stat.small_pool.current);
    text.sample(with(device.labels, "pool", "large"), stat.large_pool.current);
  }
  const auto add = [&](const std::string& family, Type type, std::string_view what, int64_t spw_stat::*part) {
    text.family(family, type, fmt::format("{}: {}", row.help, what));
    for (const PrometheusDevice& device : devices)
      text.sample(device.labels, (device.stats.*member).all.*part);
  };
  add(name("_peak"), Type::kGauge, "the most since the last reset", &spw_stat::peak);
  add(name("_added") + "_total", Type::kCounter, "how much came", &spw_stat::allocated);
  add(name("_removed") + "_total", Type::kCounter, "how much went", &spw_stat::freed);
}

void add_value(PrometheusText& text, const Devices& devices, const ValueFamily& row,
               int64_t DeviceStats::*member) {
  if (row.name.empty()) return;
  text.family(fmt::format("spillway_{}", row.name), row.type, row.help);
  for (const PrometheusDevice& device : devices) {
    const int64_t value = device.stats.*member;
    // The limit of a device without one.
    if (value == INT64_MAX) {
      text.sample(device.labels, std::numeric_limits<double>::infinity());
    } else {
      text.sample(device.labels, value);
    }
  }
}

void add_rungs(PrometheusText& text, const Devices& devices) {
  constexpr double kNsPerSecond = 1e9;
  text.family("spillway_rung_hits_total", Type::kCounter,
              "Requests that a rung of the ladder served; for out_of_memory, that failed");
  for (const PrometheusDevice& device : devices) {
#define SPW_STATS_MEMBER(name, Name) \
  text.sample(with(device.labels, "rung", #name), device.stats.rungs.name.hits);
    SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  }
  text.family("spillway_rung_seconds_total", Type::kCounter,
              "Time spent on a rung of the ladder, successful or not");
  for (const PrometheusDevice& device : devices) {
#define SPW_STATS_MEMBER(name, Name)              \
  text.sample(with(device.labels, "rung", #name), \
              static_cast<double>(device.stats.rungs.name.time_ns) / kNsPerSecond);
    SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  }
}

void add_driver_calls(PrometheusText& text, const Devices& devices) {
  text.family("spillway_driver_calls_total", Type::kCounter, "Calls of the CUDA driver");
  for (const PrometheusDevice& device : devices) {
#define SPW_STATS_MEMBER(name, Name) \
  text.sample(with(device.labels, "call", #name), device.stats.driver_calls.name);
    SPW_STATS_DRIVER_CALLS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  }
}

}  // namespace

void PrometheusText::family(std::string_view name, Type type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}.\n# TYPE {} {}\n", name, help, name,
                       type == Type::kCounter ? "counter" : "gauge");
}

void PrometheusText::begin_sample(const Labels& labels) {
  text_ += name_;
  char separator = '{';
  for (const auto& [name, value] : labels) {
    text_ += separator;
    text_ += name + "=\"";
    for (const char letter : value) {
      // Bytes that are no UTF-8 would make Prometheus refuse the whole page.
      const bool is_ascii = static_cast<unsigned char>(letter) < 0x80;
      if (letter == '\\' || letter == '"') text_ += '\\';
      text_ += letter == '\n' ? std::string_view("\\n") : is_ascii ? std::string_view(&letter, 1) : "?";
    }
    text_ += '"';
    separator = ',';
  }
  text_ += labels.empty() ? " " : "} ";
}

void PrometheusText::sample(const Labels& labels, int64_t value) {
  begin_sample(labels);
  text_ += fmt::format("{}\n", value);
}

void PrometheusText::sample(const Labels& labels, double value) {
  begin_sample(labels);
  text_ += std::isinf(value) ? (value > 0 ? "+Inf\n" : "-Inf\n") : fmt::format("{}\n", value);
}

void add_device_stats(PrometheusText& text, const Devices& devices) {
#define SPW_STATS_MEMBER(name)                                         \
  {                                                                    \
    static constexpr const PooledFamily& row = row_of(kPooled, #name); \
    add_pooled(text, devices, row, &DeviceStats::name);                \
  }
  SPW_STATS_POOLED(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
#define SPW_STATS_MEMBER(name)                                        \
  {                                                                   \
    static constexpr const ValueFamily& row = row_of(kValues, #name); \
    add_value(text, devices, row, &DeviceStats::name);                \
  }
  SPW_STATS_VALUES(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  add_rungs(text, devices);
  add_driver_calls(text, devices);
}

void add_tier_stats(PrometheusText& text, const std::vector<PrometheusTiers>& devices) {
  text.family("spillway_tier_bytes", Type::kGauge,
              "Bytes that are out of the device, by what they are and where");
  for (const PrometheusTiers& device : devices) {
    const auto add = [&](const char* kind, const char* tier, uint64_t bytes) {
      text.sample(with(with(device.labels, "kind", kind), "tier", tier), static_cast<int64_t>(bytes));
    };
    add("region", "host", device.stats.region_host_bytes);
    add("region", "disk", device.stats.region_disk_bytes);
    add("stash", "host", device.stats.stash_host_bytes);
    add("stash", "disk", device.stats.stash_disk_bytes);
  }
  for (const TierFamily& row : kTiers) {
    text.family(fmt::format("spillway_{}", row.name), row.type, row.help);
    for (const PrometheusTiers& device : devices) {
      const uint64_t value = device.stats.*row.member;
      // The limit of a disk without one.
      if (value == UINT64_MAX) {
        text.sample(device.labels, std::numeric_limits<double>::infinity());
      } else {
        text.sample(device.labels, static_cast<int64_t>(value));
      }
    }
  }
}

void add_pinned_stats(PrometheusText& text, const std::vector<PrometheusPinned>& processes) {
  struct Row {
    const char* name;
    const char* help;
    spw_stat spw_pinned_stats::*member;
  };
  constexpr std::array kRows{
      Row{"spillway_pinned_reserved_bytes", "Host memory that is pinned", &spw_pinned_stats::reserved_bytes},
      Row{"spillway_pinned_active_bytes", "Pinned host memory in use", &spw_pinned_stats::active_bytes}};
  for (const Row& row : kRows) {
    text.family(row.name, Type::kGauge, row.help);
    for (const PrometheusPinned& process : processes)
      text.sample(process.labels, (process.stats.*row.member).current);
  }
}

}  // namespace spillway
