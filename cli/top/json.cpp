#include "cli/top/json.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "cli/seconds.h"
#include "cli/top/view.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

Json stat_json(const spw_stat& stat) {
  return {
      {"current", stat.current}, {"peak", stat.peak}, {"allocated", stat.allocated}, {"freed", stat.freed}};
}

// As in dumps.
Json stats_json(const spw_stats& stats) {
  Json out = Json::object();
#define SPW_STATS_MEMBER(name)                                    \
  out[#name] = {{"all", stat_json(stats.name.all)},               \
                {"small_pool", stat_json(stats.name.small_pool)}, \
                {"large_pool", stat_json(stats.name.large_pool)}};
  SPW_STATS_POOLED(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
#define SPW_STATS_MEMBER(name) out[#name] = stats.name;
  SPW_STATS_VALUES(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
#define SPW_STATS_MEMBER(name, Name) \
  out["rungs"][#name] = {{"hits", stats.rungs.name.hits}, {"time_ns", stats.rungs.name.time_ns}};
  SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
#define SPW_STATS_MEMBER(name, Name) out["driver_calls"][#name] = stats.driver_calls.name;
  SPW_STATS_DRIVER_CALLS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  return out;
}

Json tiers_json(const LiveDevice& device) {
  if (device.has_tiers == 0) return nullptr;
  const spw_tier_stats& tiers = device.tiers;
  return {{"region_host_bytes", tiers.region_host_bytes},
          {"region_disk_bytes", tiers.region_disk_bytes},
          {"stash_host_bytes", tiers.stash_host_bytes},
          {"stash_disk_bytes", tiers.stash_disk_bytes},
          {"out_bytes", tiers.out_bytes},
          {"in_bytes", tiers.in_bytes},
          {"disk_written_bytes", tiers.disk_written_bytes},
          {"disk_read_bytes", tiers.disk_read_bytes}};
}

Json device_json(const LiveReading& page, const LiveRow& row) {
  const TopRates rates = rates_of(page, row);
  return {{"device", row.now.ordinal},
          {"name", row.now.name},
          {"uuid", row.now.uuid},
          {"total_bytes", row.now.total_bytes},
          {"external_fragmentation", external_fragmentation(row.now.stats)},
          {"rates",
           {{"allocations_per_second", rates.allocations_per_s},
            {"frees_per_second", rates.frees_per_s},
            {"driver_calls_per_second", rates.driver_calls_per_s},
            {"host_waits_per_second", rates.host_waits_per_s},
            {"rung_hits_per_second", rates.rung_hits_per_s}}},
          {"tiers", tiers_json(row.now)},
          {"stats", stats_json(row.now.stats)}};
}

Json process_json(const LiveReading& page) {
  Json devices = Json::array();
  for (const LiveRow& row : page.devices) devices.push_back(device_json(page, row));
  Json pinned = nullptr;
  if (page.pinned.has_value()) {
    pinned = {{"reserved_bytes", stat_json(page.pinned->reserved_bytes)},
              {"active_bytes", stat_json(page.pinned->active_bytes)}};
  }
  return {{"process_id", page.process.pid},
          {"program", page.program},
          {"user_id", page.user},
          {"rank", page.rank},
          {"state", life_name(page.life)},
          {"library_version", page.library_version},
          {"began_seconds", seconds(page.began_ns)},
          {"written_seconds", seconds(page.written_ns)},
          {"rates_over_seconds", seconds(page.apart_ns)},
          {"pinned", std::move(pinned)},
          {"devices", std::move(devices)}};
}

}  // namespace

std::string top_json(const LiveListing& listing, int64_t now_ns) {
  Json processes = Json::array();
  for (const LiveReading& page : listing.pages) processes.push_back(process_json(page));
  const Json document{{"schema_version", 1},
                      {"time_seconds", seconds(now_ns)},
                      {"processes", std::move(processes)},
                      {"problems", listing.problems}};
  // Names of files need not be UTF-8.
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace spillway
