// The JSON Schema of dumps, made from the lists of counters that dumps are made from.
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "stats/dump.h"
#include "stats/dump_members.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

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

Json or_null(Json schema) {
  return {{"anyOf", {std::move(schema), {{"type", "null"}}}}};
}

template <typename Stats, typename Value, size_t kCount>
Json members_schema(const Member<Stats, Value> (&members)[kCount]) {
  Json out = Json::object();
  for (const auto& member : members) {
    out[member.name] = std::is_same_v<Value, spw_stat> ? reference("stat") : count();
  }
  return object_of(std::move(out));
}

Json tiers_schema() {
  Json region = members_schema(kRegionMembers);
  region["properties"]["tag"] = text();
  region["properties"]["priority"] = integer();
  region["required"].insert(region["required"].end(), {"tag", "priority"});
  Json out = members_schema(kTierMembers);
  for (const char* bound : {"disk_limit_bytes", "disk_daily_limit_bytes"})
    out["properties"][bound] = or_null(count());
  out["properties"]["regions"] = list_of(std::move(region));
  out["required"].push_back("regions");
  return out;
}

Json climb_schema() {
  Json names = Json::array();
  for (const char* name : kRungNames) names.push_back(name);
  Json rungs = {{"type", "object"}, {"propertyNames", {{"enum", names}}}, {"additionalProperties", count()}};
  return object_of({{"time_us", count()},
                    {"requested_bytes", count()},
                    {"stream", count()},
                    {"rung_ns", std::move(rungs)},
                    {"outcome", or_null({{"enum", std::move(names)}})}});
}

}  // namespace

std::string dump_schema() {
  Json block = object_of({{"address", count()},
                          {"size", count()},
                          {"requested_size", count()},
                          {"state", {{"enum", {"active_allocated", "active_pending_free", "inactive"}}}}});
  block["properties"]["stack"] = count();  // an index into "stacks", where it is known
  const Json segment = object_of({{"address", count()},
                                  {"total_size", count()},
                                  {"allocated_size", count()},
                                  {"active_size", count()},
                                  {"requested_size", count()},
                                  {"stream", count()},
                                  {"pool", list_of(count())},
                                  {"blocks", list_of(block)}});
  const Json fragmentation =
      object_of({{"unused_bytes", count()},
                 {"largest_free_bytes", count()},
                 {"external_index", {{"type", "number"}, {"minimum", 0}, {"maximum", 1}}}});
  const Json pool = object_of({{"pool", list_of(count())}, {"reserved_bytes", reference("stat")}});
  const Json device = object_of({{"device", count()},
                                 {"name", text()},
                                 {"uuid", text()},
                                 {"total_bytes", count()},
                                 {"free_bytes", or_null(count())},
                                 {"other_bytes", or_null(count())},
                                 {"stats", stats_schema()},
                                 {"fragmentation", fragmentation},
                                 {"tiers", or_null(tiers_schema())},
                                 {"pools", list_of(pool)},
                                 {"climbs", list_of(climb_schema())},
                                 {"annotations", {{"type", "object"}, {"additionalProperties", count()}}},
                                 {"segments", list_of(segment)}});
  const Json frame = object_of({{"name", text()}, {"filename", text()}, {"line", count()}});
  Json out;
  out["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  out["title"] = "Spillway dump";
  out.update(object_of({{"schema_version", {{"const", Dump::kSchemaVersion}}},
                        {"library_version", text()},
                        {"process_id", count()},
                        {"rank", count()},
                        {"time_seconds", count()},
                        {"reason", text()},
                        {"config", {{"type", "object"}, {"additionalProperties", text()}}},
                        {"pinned", or_null(members_schema(kPinnedMembers))},
                        {"devices", list_of(device)},
                        {"stacks", list_of(list_of(frame))}}));
  out["$defs"] = definitions();
  return out.dump(1) + "\n";
}

}  // namespace spillway
