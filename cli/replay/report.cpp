#include "cli/replay/report.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/size.h"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

double ratio(uint64_t bytes, uint64_t peak_live) {
  return peak_live == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(peak_live);
}

std::string ratio_text(std::optional<uint64_t> bytes, uint64_t peak_live) {
  return bytes ? fmt::format("{:.4f}", ratio(*bytes, peak_live)) : "none";
}

Json capacity(std::optional<uint64_t> bytes) {
  return bytes ? Json(*bytes) : Json();
}

Json capacity_ratio(std::optional<uint64_t> bytes, uint64_t peak_live) {
  return bytes ? Json(ratio(*bytes, peak_live)) : Json();
}

Json row_json(const ReplayRow& row) {
  Json json;
  json["trace"] = row.trace;
  json["device"] = row.device;
  json["allocator"] = name_of(row.allocator);
  json["completion"] = row.completion == Completion::kRunAhead ? "run-ahead" : "instant";
  json["repeats"] = row.repeats;
  json["events"] = row.events;
  json["peak_live_bytes"] = row.peak_live_bytes;
  json["capacity_bytes"] = capacity(row.capacity_bytes);
  json["peak_reserved_bytes"] = row.run.peak_reserved_bytes;
  if (row.searched) {
    json["min_capacity_bytes"] = capacity(row.min_capacity_bytes);
    json["min_capacity_ratio"] = capacity_ratio(row.min_capacity_bytes, row.peak_live_bytes);
    json["stall_free_capacity_bytes"] = capacity(row.stall_free_capacity_bytes);
    json["stall_free_capacity_ratio"] = capacity_ratio(row.stall_free_capacity_bytes, row.peak_live_bytes);
    json["unlimited_peak_reserved_bytes"] = row.unlimited_peak_reserved_bytes;
    json["unlimited_driver_calls"] = row.unlimited_driver_calls;
    json["unlimited_steady_driver_calls_per_repeat"] = row.unlimited_steady_driver_calls;
  }
  json["driver_calls"] = row.run.driver_calls;
  for (size_t i = 0; i < row.run.calls_by_kind.size(); ++i) {
    const auto kind = static_cast<CallKind>(i);
    Json& kinds = json[kind <= CallKind::kSynchronize ? "driver_calls_by_kind" : "ordering_calls_by_kind"];
    kinds[name_of(kind)] = row.run.calls_by_kind[i];
  }
  json["steady_driver_calls_per_repeat"] = row.run.last_pass_driver_calls;
  json["host_waits"] = row.run.host_waits;
  json["steady_host_waits_per_repeat"] = row.run.last_pass_host_waits;
  json["stream_waits"] = row.run.stream_waits;
  json["steady_stream_waits_per_repeat"] = row.run.last_pass_stream_waits;
  json["virtual_driver_ns"] = row.run.virtual_driver_ns;
  json["peak_mappings"] = row.run.peak_mappings;
  json["metadata_bytes"] = row.run.metadata_bytes;
  json["ns_per_event"] = row.ns_per_event;
  json["ooms"] = row.run.ooms;
  return json;
}

// Columns as wide as their widest cell; the first is left-aligned, the others right.
std::string aligned(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths;
  for (const auto& line : lines) {
    widths.resize(std::max(widths.size(), line.size()), 0);
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      text +=
          i == 0 ? fmt::format("{:<{}}", line[i], widths[i]) : fmt::format("  {:>{}}", line[i], widths[i]);
    }
    out += text + '\n';
  }
  return out;
}

std::string short_name(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  for (const std::string suffix : {".gz", ".pickle"}) {
    if (name.size() > suffix.size() && name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  return name;
}

// Returns what a row says beyond its columns.
std::string notes_of(const ReplayRow& row) {
  std::string notes;
  if (row.devices_with_events > 1) {
    notes += fmt::format("{}: {} devices have events, replayed device {}\n", short_name(row.trace),
                         row.devices_with_events, row.device);
  }
  if (row.run.ooms > 0) {
    notes +=
        fmt::format("{}: out of memory on {} in pass {}, for {} with {} reserved\n", short_name(row.trace),
                    format_size(row.capacity_bytes.value_or(0)), row.run.oom_pass + 1,
                    format_size(row.run.oom_bytes), format_size(row.run.peak_reserved_bytes));
  }
  return notes;
}

}  // namespace

std::string to_json(const std::vector<ReplayRow>& rows) {
  Json json = Json::array();
  for (const ReplayRow& row : rows) json.push_back(row_json(row));
  // A path need not be UTF-8: what is not is replaced.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_text(const std::vector<ReplayRow>& rows) {
  const bool searched =
      std::any_of(rows.begin(), rows.end(), [](const ReplayRow& row) { return row.searched; });
  std::vector<std::string> head = {"", "reserved"};
  if (searched) head.insert(head.end(), {"minimum", "no stall"});
  head.insert(head.end(), {"calls", "steady", "waits", "orders", "ns"});
  std::vector<std::vector<std::string>> lines = {head};
  std::string notes;
  for (const ReplayRow& row : rows) {
    std::vector<std::string> line = {
        std::string("  ") + name_of(row.allocator),
        ratio_text(row.searched ? row.unlimited_peak_reserved_bytes : row.run.peak_reserved_bytes,
                   row.peak_live_bytes)};
    if (searched) {
      line.push_back(ratio_text(row.min_capacity_bytes, row.peak_live_bytes));
      line.push_back(ratio_text(row.stall_free_capacity_bytes, row.peak_live_bytes));
    }
    line.push_back(fmt::format("{}", row.searched ? row.unlimited_driver_calls : row.run.driver_calls));
    line.push_back(
        fmt::format("{}", row.searched ? row.unlimited_steady_driver_calls : row.run.last_pass_driver_calls));
    line.push_back(fmt::format("{}", row.run.host_waits));
    line.push_back(fmt::format("{}", row.run.stream_waits));
    line.push_back(fmt::format("{:.0f}", row.ns_per_event));
    lines.push_back(std::move(line));
    notes += notes_of(row);
  }
  std::istringstream table(aligned(lines));
  std::string out;
  std::string line;
  std::getline(table, line);
  out += line + '\n';
  for (size_t i = 0; std::getline(table, line); ++i) {
    if (i == 0 || rows[i].trace != rows[i - 1].trace || rows[i].device != rows[i - 1].device) {
      out += fmt::format("{}: {} events, peak live {}\n", short_name(rows[i].trace), rows[i].events,
                         format_size(rows[i].peak_live_bytes));
    }
    out += line + '\n';
  }
  out += searched ? "reserved, minimum, no stall: times peak live bytes; all columns: docs/trace.md\n"
                  : "reserved: times peak live bytes; all columns: docs/trace.md\n";
  return out + notes;
}

}  // namespace spillway
