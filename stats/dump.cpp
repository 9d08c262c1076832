#include "stats/dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

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

// PyTorch's names for the same states.
const char* state_name(BlockKind kind) {
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

Json to_json(const SegmentRow& segment) {
  Json blocks = Json::array();
  for (const BlockRow& block : segment.blocks) {
    blocks.push_back({{"address", block.address},
                      {"size", block.bytes},
                      {"requested_size", block.requested_bytes},
                      {"state", state_name(block.kind)}});
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

// ---- Schema

Json integer() {
  return {{"type", "integer"}};
}
Json count() {
  return {{"type", "integer"}, {"minimum", 0}};
}
Json text() {
  return {{"type", "string"}};
}
Json list_of(Json item) {
  return {{"type", "array"}, {"items", std::move(item)}};
}
// Every member is there; a newer library may add others.
Json object_of(Json properties) {
  Json required = Json::array();
  for (const auto& member : properties.items()) required.push_back(member.key());
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
}

Json reference(const char* name) {
  return {{"$ref", std::string("#/$defs/") + name}};
}

Json definitions() {
  Json out;
  out["stat"] = object_of(
      {{"current", integer()}, {"peak", integer()}, {"allocated", integer()}, {"freed", integer()}});
  out["pool_stat"] = object_of(
      {{"all", reference("stat")}, {"small_pool", reference("stat")}, {"large_pool", reference("stat")}});
  out["rung"] = object_of({{"hits", count()}, {"time_ns", count()}});
  return out;
}

Json stats_schema() {
  Json out = Json::object();
#define SPW_STATS_MEMBER(name) out[#name] = reference("pool_stat");
  SPW_STATS_POOLED(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  out["oversize_allocations"] = reference("stat");
  out["oversize_segments"] = reference("stat");
#define SPW_STATS_MEMBER(name) out[#name] = integer();
  SPW_STATS_VALUES(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  Json rungs = Json::object();
#define SPW_STATS_MEMBER(name, Name) rungs[#name] = reference("rung");
  SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  Json calls = Json::object();
#define SPW_STATS_MEMBER(name, Name) calls[#name] = count();
  SPW_STATS_DRIVER_CALLS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  out["rungs"] = object_of(std::move(rungs));
  out["driver_calls"] = object_of(std::move(calls));
  return object_of(std::move(out));
}

}  // namespace

std::string dump_to_json(const Dump& dump) {
  Json out;
  out["schema_version"] = Dump::kSchemaVersion;
  out["library_version"] = dump.library_version;
  out["process_id"] = dump.process_id;
  out["rank"] = dump.rank;
  out["time_seconds"] = dump.time_seconds;
  out["config"] = Json::object();
  for (const auto& [name, value] : dump.config) out["config"][name] = value;
  out["devices"] = Json::array();
  for (const DumpDevice& device : dump.devices) {
    Json annotations = Json::object();
    for (const auto& [name, bytes] : device.annotations) annotations[name] = bytes;
    Json segments = Json::array();
    for (const SegmentRow& segment : device.segments) segments.push_back(to_json(segment));
    out["devices"].push_back({{"device", device.ordinal},
                              {"name", device.name},
                              {"uuid", device.uuid},
                              {"total_bytes", device.total_bytes},
                              {"stats", to_json(device.stats)},
                              {"annotations", std::move(annotations)},
                              {"segments", std::move(segments)}});
  }
  // Names come from the outside and need not be UTF-8.
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string dump_schema() {
  const Json block =
      object_of({{"address", count()},
                 {"size", count()},
                 {"requested_size", count()},
                 {"state", {{"enum", {"active_allocated", "active_pending_free", "inactive"}}}}});
  const Json segment = object_of({{"address", count()},
                                  {"total_size", count()},
                                  {"allocated_size", count()},
                                  {"active_size", count()},
                                  {"requested_size", count()},
                                  {"stream", count()},
                                  {"pool", list_of(count())},
                                  {"blocks", list_of(block)}});
  const Json device = object_of({{"device", count()},
                                 {"name", text()},
                                 {"uuid", text()},
                                 {"total_bytes", count()},
                                 {"stats", stats_schema()},
                                 {"annotations", {{"type", "object"}, {"additionalProperties", count()}}},
                                 {"segments", list_of(segment)}});
  Json out;
  out["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  out["title"] = "Spillway dump";
  out.update(object_of({{"schema_version", {{"const", Dump::kSchemaVersion}}},
                        {"library_version", text()},
                        {"process_id", count()},
                        {"rank", count()},
                        {"time_seconds", count()},
                        {"config", {{"type", "object"}, {"additionalProperties", text()}}},
                        {"devices", list_of(device)}}));
  out["$defs"] = definitions();
  return out.dump(1) + "\n";
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

Status write_whole_file(const std::string& path, const std::string& text) {
  static std::atomic<uint32_t> number{0};
  const std::string temporary = fmt::format("{}.{}.{}.tmp", path, getpid(), number.fetch_add(1));
  const auto failed = [&](const char* what) {
    Status status = Status::io(fmt::format("{}: cannot {}: {}", path, what, std::strerror(errno)));
    unlink(temporary.c_str());
    return status;
  };
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return failed("create a file beside it");
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(file, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      Status status = failed("write it");
      close(file);
      return status;
    }
    written += static_cast<size_t>(count);
  }
  if (close(file) != 0) return failed("write it");
  if (rename(temporary.c_str(), path.c_str()) != 0) return failed("put it in its place");
  return {};
}

}  // namespace spillway
