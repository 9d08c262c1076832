#include "stats/prometheus.h"

#include <fmt/format.h>

#include <string_view>

#include "stats/dump_members.h"

namespace spillway {
namespace {

// The text, family by family: one is announced when its first sample comes.
class Families {
 public:
  explicit Families(const std::vector<Dump>& dumps) {
    for (const Dump& dump : dumps) {
      for (const DumpDevice& device : dump.devices) {
        rows_.push_back({&dump, &device,
                         fmt::format("pid=\"{}\",rank=\"{}\",device=\"{}\",uuid=\"{}\"", dump.process_id,
                                     dump.rank, device.ordinal, escaped(device.uuid))});
      }
    }
  }

  // `each` is called for every device, with what adds a sample: more labels, ",a=\"b\"", and the value.
  template <typename Each>
  void add(std::string_view name, std::string_view type, std::string_view help, Each each) {
    bool is_announced = false;
    for (const Row& row : rows_) {
      each(*row.dump, *row.device, [&](std::string_view labels, auto value) {
        if (!is_announced) {
          text_ += fmt::format("# HELP spillway_{0} {2}\n# TYPE spillway_{0} {1}\n", name, type, help);
        }
        is_announced = true;
        text_ += fmt::format("spillway_{}{{{}{}}} {}\n", name, row.labels, labels, value);
      });
    }
  }

  static const char* type_of(std::string_view name) { return name.ends_with("_total") ? "counter" : "gauge"; }

  // The value of a device's counters.
  void value(std::string_view name, std::string_view help, int64_t spw_stats::*member) {
    add(name, type_of(name), help,
        [&](const Dump&, const DumpDevice& device, const auto& sample) { sample("", device.stats.*member); });
  }

  // Both pools, as samples of their own: they add up to what the device has.
  void pooled(std::string_view name, std::string_view type, std::string_view help,
              spw_pool_stat spw_stats::*member, int64_t spw_stat::*part) {
    add(name, type, help, [&](const Dump&, const DumpDevice& device, const auto& sample) {
      const spw_pool_stat& stat = device.stats.*member;
      sample(",pool=\"small\"", stat.small_pool.*part);
      sample(",pool=\"large\"", stat.large_pool.*part);
    });
  }

  std::string take() { return std::move(text_); }

  // For a value between quotes; text that is not ASCII may not be UTF-8 either.
  static std::string escaped(std::string_view text) {
    std::string out;
    for (const char letter : text) {
      const bool is_plain = letter >= ' ' && letter <= '~';
      if (letter == '"' || letter == '\\') out += '\\';
      out += is_plain ? letter : '?';
    }
    return out;
  }

 private:
  struct Row {
    const Dump* dump;
    const DumpDevice* device;
    std::string labels;
  };
  std::vector<Row> rows_;
  std::string text_;
};

struct Pooled {
  const char* gauge;
  const char* peak;
  const char* help;
  spw_pool_stat spw_stats::*member;
};

constexpr Pooled kPooled[] = {
    {"allocated_blocks", "allocated_blocks_peak", "Blocks in the program's hands", &spw_stats::allocation},
    {"allocated_bytes", "allocated_peak_bytes", "Bytes of the blocks in the program's hands",
     &spw_stats::allocated_bytes},
    {"active_blocks", "active_blocks_peak", "Blocks in use, those included whose free is pending",
     &spw_stats::active},
    {"active_bytes", "active_peak_bytes", "Bytes of the blocks in use, pending frees included",
     &spw_stats::active_bytes},
    {"requested_bytes", "requested_peak_bytes", "Bytes the program asked for, of the blocks in use",
     &spw_stats::requested_bytes},
    {"segments", "segments_peak", "Runs of memory taken from the driver", &spw_stats::segment},
    {"reserved_bytes", "reserved_peak_bytes", "Bytes held from the driver", &spw_stats::reserved_bytes},
    {"inactive_split_blocks", "inactive_split_blocks_peak", "Free pieces of pages that are partly in use",
     &spw_stats::inactive_split},
    {"inactive_split_bytes", "inactive_split_peak_bytes", "Bytes of free pieces of pages partly in use",
     &spw_stats::inactive_split_bytes},
};

struct Value {
  const char* name;
  const char* help;
  int64_t spw_stats::*member;
};

constexpr Value kValues[] = {
    {"cached_free_bytes", "Bytes of pages with no byte in use", &spw_stats::cached_free_bytes},
    {"pending_blocks", "Freed blocks that streams still use", &spw_stats::pending_blocks},
    {"pending_bytes", "Bytes of freed blocks that streams still use", &spw_stats::pending_bytes},
    {"largest_free_bytes", "The largest contiguous free range", &spw_stats::largest_free_bytes},
    {"heaps", "Heaps, one for each stream and pool", &spw_stats::heaps},
    {"live_mappings", "Pages mapped, once for every view", &spw_stats::live_mappings},
    {"metadata_bytes", "Host memory of the allocator's tables", &spw_stats::metadata_bytes},
    {"active_mean_bytes", "Mean over time of the bytes in use", &spw_stats::mean_active_bytes},
    {"requested_mean_bytes", "Mean over time of the bytes asked for", &spw_stats::mean_requested_bytes},
    {"reserved_mean_bytes", "Mean over time of the bytes held", &spw_stats::mean_reserved_bytes},
    {"host_placed_blocks", "Blocks in host memory that the device uses", &spw_stats::host_placed_blocks},
    {"host_placed_bytes", "Bytes of blocks in host memory that the device uses",
     &spw_stats::host_placed_bytes},
    {"alloc_retries_total", "Allocations served only after a wait of the host",
     &spw_stats::num_alloc_retries},
    {"ooms_total", "Allocations that failed for want of memory", &spw_stats::num_ooms},
    {"sync_all_streams_total", "Waits for everything the device had to do", &spw_stats::num_sync_all_streams},
    {"device_allocs_total", "Driver calls that brought memory", &spw_stats::num_device_alloc},
    {"device_frees_total", "Driver calls that gave memory back", &spw_stats::num_device_free},
    {"stream_waits_total", "Waits of one stream for another", &spw_stats::stream_waits},
    {"host_waits_total", "Waits that blocked a host thread", &spw_stats::host_waits},
};

void add_counters(Families& out) {
  for (const Pooled& row : kPooled) {
    out.pooled(row.gauge, "gauge", row.help, row.member, &spw_stat::current);
    // The peaks of two pools are of different moments and do not add up.
    out.add(row.peak, "gauge", fmt::format("{}: the highest so far", row.help),
            [&](const Dump&, const DumpDevice& device, const auto& sample) {
              sample("", (device.stats.*row.member).all.peak);
            });
  }
  out.pooled("allocations_total", "counter", "Allocations served", &spw_stats::allocation,
             &spw_stat::allocated);
  out.pooled("frees_total", "counter", "Blocks freed", &spw_stats::allocation, &spw_stat::freed);
  out.pooled("allocations_bytes_total", "counter", "Bytes of the allocations served",
             &spw_stats::allocated_bytes, &spw_stat::allocated);
  for (const Value& row : kValues) out.value(row.name, row.help, row.member);
  out.add("limit_bytes", "gauge", "What may be held from the driver",
          [](const Dump&, const DumpDevice& device, const auto& sample) {
            if (device.stats.limit_bytes == INT64_MAX) {
              sample("", "+Inf");
            } else {
              sample("", device.stats.limit_bytes);
            }
          });
}

void add_device(Families& out) {
  out.add("info", "gauge", "The library and the device, as labels",
          [](const Dump& dump, const DumpDevice& device, const auto& sample) {
            sample(fmt::format(",version=\"{}\",name=\"{}\"", Families::escaped(dump.library_version),
                               Families::escaped(device.name)),
                   1);
          });
  out.add("device_bytes", "gauge", "Memory of the device",
          [](const Dump&, const DumpDevice& device, const auto& sample) { sample("", device.total_bytes); });
  out.add("device_free_bytes", "gauge", "Memory that the driver calls free",
          [](const Dump&, const DumpDevice& device, const auto& sample) {
            if (device.free_bytes) sample("", *device.free_bytes);
          });
  out.add("other_bytes", "gauge", "Memory of other processes, contexts and libraries",
          [](const Dump&, const DumpDevice& device, const auto& sample) {
            if (const auto other = device.other_bytes()) sample("", *other);
          });
  out.add(
      "external_fragmentation_ratio", "gauge", "Share of the unused bytes outside of the largest free range",
      [](const Dump&, const DumpDevice& device, const auto& sample) { sample("", device.fragmentation()); });
}

constexpr double kSeconds = 1e-9;

void add_work(Families& out) {
  const auto each_rung = [](const DumpDevice& device, const auto& visit) {
#define SPW_STATS_MEMBER(name, Name) visit(",rung=\"" #name "\"", device.stats.rungs.name);
    SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  };
  out.add("rung_hits_total", "counter", "Requests that this rung of the ladder served",
          [&](const Dump&, const DumpDevice& device, const auto& sample) {
            each_rung(device, [&](const char* label, const spw_rung& rung) { sample(label, rung.hits); });
          });
  out.add("rung_seconds_total", "counter", "Time spent on this rung of the ladder",
          [&](const Dump&, const DumpDevice& device, const auto& sample) {
            each_rung(device, [&](const char* label, const spw_rung& rung) {
              sample(label, static_cast<double>(rung.time_ns) * kSeconds);
            });
          });
  out.add("driver_calls_total", "counter", "Calls of the CUDA driver",
          [](const Dump&, const DumpDevice& device, const auto& sample) {
#define SPW_STATS_MEMBER(name, Name) sample(",call=\"" #name "\"", device.stats.driver_calls.name);
            SPW_STATS_DRIVER_CALLS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
          });
}

struct TierCounter {
  const char* name;
  const char* help;
  uint64_t spw_tier_stats::*member;
};

constexpr TierCounter kTierCounters[] = {
    {"stashes", "Stashes that are kept outside", &spw_tier_stats::stashes},
    {"disk_file_bytes", "Size of the spill file", &spw_tier_stats::disk_file_bytes},
    {"stash_puts_total", "Stashes that were put out", &spw_tier_stats::stash_puts},
    {"stash_gets_total", "Stashes that were brought back", &spw_tier_stats::stash_gets},
    {"late_gets_total", "Stashes asked for before they were back", &spw_tier_stats::late_gets},
    {"refused_puts_total", "Stashes there was no room for", &spw_tier_stats::refused_puts},
    {"offload_out_bytes_total", "Bytes copied off the device", &spw_tier_stats::out_bytes},
    {"offload_in_bytes_total", "Bytes copied back to the device", &spw_tier_stats::in_bytes},
    {"disk_written_bytes_total", "Bytes written to the spill file", &spw_tier_stats::disk_written_bytes},
    {"disk_read_bytes_total", "Bytes read from the spill file", &spw_tier_stats::disk_read_bytes},
    {"disk_zero_bytes_total", "Bytes that were all zero and not written", &spw_tier_stats::disk_zero_bytes},
    {"disk_verified_bytes_total", "Bytes read whose checksum was right",
     &spw_tier_stats::disk_verified_bytes},
    {"disk_mismatches_total", "Reads whose checksum was wrong", &spw_tier_stats::disk_mismatches},
    {"disk_repeated_writes_total", "Writes that were tried again", &spw_tier_stats::disk_repeated_writes},
    {"disk_failed_writes_total", "Writes that failed", &spw_tier_stats::disk_failed_writes},
};

void add_tiers(Families& out) {
  out.add("tier_bytes", "gauge", "Bytes kept outside of the device",
          [](const Dump&, const DumpDevice& device, const auto& sample) {
            if (!device.tiers) return;
            const spw_tier_stats& tiers = device.tiers->stats;
            sample(",tier=\"host\",kind=\"region\"", tiers.region_host_bytes);
            sample(",tier=\"disk\",kind=\"region\"", tiers.region_disk_bytes);
            sample(",tier=\"host\",kind=\"stash\"", tiers.stash_host_bytes);
            sample(",tier=\"disk\",kind=\"stash\"", tiers.stash_disk_bytes);
          });
  out.add("disk_limit_bytes", "gauge", "What the spill file may hold",
          [](const Dump&, const DumpDevice& device, const auto& sample) {
            if (!device.tiers) return;
            const uint64_t limit = device.tiers->stats.disk_limit_bytes;
            sample("", limit == UINT64_MAX ? std::string("+Inf") : fmt::format("{}", limit));
          });
  for (const TierCounter& row : kTierCounters) {
    out.add(row.name, Families::type_of(row.name), row.help,
            [&](const Dump&, const DumpDevice& device, const auto& sample) {
              if (device.tiers) sample("", device.tiers->stats.*row.member);
            });
  }
}

}  // namespace

std::string prometheus_text(const std::vector<Dump>& dumps) {
  Families out(dumps);
  add_device(out);
  add_counters(out);
  add_work(out);
  add_tiers(out);
  return out.take();
}

}  // namespace spillway
