#include "stats/dump.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>

#include "stats/dump_members.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const spw_stat& stat) {
  return {
      {"current", stat.current}, {"peak", stat.peak}, {"allocated", stat.allocated}, {"freed", stat.freed}};
}

Json to_json(const spw_pool_stat& stat) {
  return {{"all", to_json(stat.all)},
          {"small_pool", to_json(stat.small_pool)},
          {"large_pool", to_json(stat.large_pool)}};
}

Json to_json(const DeviceStats& stats) {
  Json out = Json::object();
#define SPW_STATS_MEMBER(name) out[#name] = to_json(stats.name);
  SPW_STATS_POOLED(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  out["oversize_allocations"] = to_json(stats.oversize_allocations);
  out["oversize_segments"] = to_json(stats.oversize_segments);
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

Json to_json(const std::vector<StackFrame>& stack) {
  Json out = Json::array();
  for (const StackFrame& frame : stack)
    out.push_back({{"name", frame.function}, {"filename", frame.file}, {"line", frame.line}});
  return out;
}

Json to_json(const SegmentRow& segment) {
  Json blocks = Json::array();
  for (const BlockRow& block : segment.blocks) {
    blocks.push_back({{"address", block.address},
                      {"size", block.bytes},
                      {"requested_size", block.requested_bytes},
                      {"state", block_state_name(block.kind)}});
    if (block.stack != 0) blocks.back()["stack"] = block.stack - 1;
  }
  return {{"address", segment.address},
          {"total_size", segment.total_bytes},
          {"allocated_size", segment.allocated_bytes},
          {"active_size", segment.active_bytes},
          {"requested_size", segment.requested_bytes},
          {"stream", segment.stream},
          {"pool", {segment.pool_first, segment.pool_second}},
          {"blocks", std::move(blocks)}};
}

template <typename Stats, typename Value, size_t kCount>
Json to_json(const Stats& stats, const Member<Stats, Value> (&members)[kCount]) {
  Json out = Json::object();
  for (const auto& member : members) {
    if constexpr (std::is_same_v<Value, spw_stat>) {
      out[member.name] = to_json(stats.*member.value);
    } else {
      out[member.name] = stats.*member.value;
    }
  }
  return out;
}

Json to_json(const DumpTiers& tiers) {
  Json out = to_json(tiers.stats, kTierMembers);
  // In JSON, null is what has no bound.
  for (const char* bound : {"disk_limit_bytes", "disk_daily_limit_bytes"}) {
    if (out[bound] == UINT64_MAX) out[bound] = nullptr;
  }
  out["regions"] = Json::array();
  for (const DumpRegion& region : tiers.regions) {
    Json row = {{"tag", region.tag}, {"priority", region.stats.priority}};
    row.update(to_json(region.stats, kRegionMembers));
    out["regions"].push_back(std::move(row));
  }
  return out;
}

Json to_json(const SlowPath& climb) {
  Json rungs = Json::object();
  for (size_t rung = 0; rung < SlowPath::kRungs; ++rung) {
    if (climb.rung_ns[rung] != 0) rungs[kRungNames[rung]] = climb.rung_ns[rung];
  }
  const auto outcome = static_cast<size_t>(climb.outcome);
  return {{"time_us", climb.time_us},
          {"requested_bytes", climb.requested_bytes},
          {"stream", climb.stream},
          {"rung_ns", std::move(rungs)},
          {"outcome", outcome < SlowPath::kRungs ? Json(kRungNames[outcome]) : Json(nullptr)}};
}

Json to_json(const PoolRow& pool) {
  return {{"pool", {pool.first, pool.second}}, {"reserved_bytes", to_json(pool.reserved_bytes)}};
}

template <typename Row>
Json list_to_json(const std::vector<Row>& rows) {
  Json out = Json::array();
  for (const Row& row : rows) out.push_back(to_json(row));
  return out;
}

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json to_json(const DumpDevice& device) {
  Json annotations = Json::object();
  for (const auto& [name, bytes] : device.annotations) annotations[name] = bytes;
  return {{"device", device.ordinal},
          {"name", device.name},
          {"uuid", device.uuid},
          {"total_bytes", device.total_bytes},
          {"free_bytes", or_null(device.free_bytes)},
          {"other_bytes", or_null(device.other_bytes())},
          {"stats", to_json(device.stats)},
          {"fragmentation",
           {{"unused_bytes", device.unused_bytes()},
            {"largest_free_bytes", device.stats.largest_free_bytes},
            {"external_index", device.fragmentation()}}},
          {"tiers", device.tiers ? to_json(*device.tiers) : Json(nullptr)},
          {"pools", list_to_json(device.pools)},
          {"climbs", list_to_json(device.climbs)},
          {"annotations", std::move(annotations)},
          {"segments", list_to_json(device.segments)}};
}

}  // namespace

const char* block_state_name(BlockKind kind) {
  switch (kind) {
    case BlockKind::kActiveAllocated:
      return "active_allocated";
    case BlockKind::kActivePendingFree:
      return "active_pending_free";
    case BlockKind::kInactive:
      break;
  }
  return "inactive";
}

std::optional<uint64_t> DumpDevice::other_bytes() const {
  if (!free_bytes) return std::nullopt;
  // Taken one after the other, the figures may be of moments that differ.
  const uint64_t known = *free_bytes + static_cast<uint64_t>(stats.reserved_bytes.all.current);
  return total_bytes - std::min(total_bytes, known);
}

uint64_t DumpDevice::unused_bytes() const {
  return static_cast<uint64_t>(stats.inactive_split_bytes.all.current + stats.cached_free_bytes);
}

double DumpDevice::fragmentation() const {
  const auto unused = static_cast<double>(unused_bytes());
  if (unused <= 0) return 0;
  return std::clamp(1 - static_cast<double>(stats.largest_free_bytes) / unused, 0.0, 1.0);
}

std::string dump_to_json(const Dump& dump) {
  Json out;
  out["schema_version"] = Dump::kSchemaVersion;
  out["library_version"] = dump.library_version;
  out["process_id"] = dump.process_id;
  out["rank"] = dump.rank;
  out["time_seconds"] = dump.time_seconds;
  out["reason"] = dump.reason;
  out["config"] = Json::object();
  for (const auto& [name, value] : dump.config) out["config"][name] = value;
  out["pinned"] = dump.pinned ? to_json(*dump.pinned, kPinnedMembers) : Json(nullptr);
  out["devices"] = Json::array();
  for (const DumpDevice& device : dump.devices) out["devices"].push_back(to_json(device));
  out["stacks"] = list_to_json(dump.stacks);
  // Names come from the outside and need not be UTF-8.
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int64_t process_rank() {
  for (const char* name : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    const std::string_view digits(value);
    int64_t rank = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error == std::errc() && end == digits.data() + digits.size() && rank >= 0) return rank;
  }
  return 0;
}

}  // namespace spillway
