#include "cli/trace_model/answer.h"

#include <fmt/format.h>

#include "cli/size.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

uint64_t bytes_of(const Json& row, const char* key) {
  return row.at(key).get<uint64_t>();
}

std::string text_of(const Json& row, const char* key) {
  return row.at(key).get<std::string>();
}

std::string phase_name(const Json& row) {
  const uint64_t step = bytes_of(row, "step");
  return step == 0 ? "making the model" : fmt::format("step {}, {}", step, text_of(row, "phase"));
}

std::string phases_text(const Json& summary) {
  std::string out = "\n  peak live in each phase\n";
  for (const Json& row : summary.at("phases")) {
    out += fmt::format("  {:<24}{:>14}\n", phase_name(row), format_size(bytes_of(row, "peak_live_bytes")));
  }
  return out;
}

std::string peak_text(const Json& summary) {
  const Json& peak = summary.at("peak");
  std::string out = fmt::format("\n  live at the peak ({})\n", phase_name(peak));
  for (const Json& row : peak.at("roles")) {
    out += fmt::format("  {:<24}{:>14}\n", text_of(row, "role"), format_size(bytes_of(row, "bytes")));
  }
  out += "\n  by place\n";
  for (const Json& row : peak.at("sites")) {
    out += fmt::format("  {:>12}  {:>5} of {:<22} {}\n", format_size(bytes_of(row, "bytes")),
                       bytes_of(row, "blocks"), text_of(row, "role"), text_of(row, "site"));
  }
  if (bytes_of(peak, "other_sites") > 0) {
    out += fmt::format("  {:>12}  at {} more places\n", format_size(bytes_of(peak, "other_bytes")),
                       bytes_of(peak, "other_sites"));
  }
  return out;
}

std::string findings_text(const Json& summary) {
  std::string out;
  for (const Json& finding : summary.at("findings")) {
    out += fmt::format("  not exact: {}\n", text_of(finding, "text"));
    for (const Json& place : finding.at("places")) {
      out += fmt::format("    {} ({} times)\n", text_of(place, "place"), bytes_of(place, "count"));
    }
  }
  return out.empty() ? out : "\n" + out;
}

std::string verdict_text(const TracedModel& model) {
  const uint64_t capacity = *model.capacity_bytes;
  if (model.fits()) {
    return fmt::format("FITS: the steps end with {} for the allocator\n", format_size(capacity));
  }
  return fmt::format("NO: out of memory with {} for the allocator, for {} with {} reserved\n",
                     format_size(capacity), format_size(model.at_capacity.oom_bytes),
                     format_size(model.at_capacity.peak_reserved_bytes));
}

}  // namespace

Json to_json(const TracedModel& model) {
  Json json = {{"schema_version", 1}};
  for (const auto& [key, value] : model.summary.items()) json[key] = value;
  json["peak_reserved_bytes"] = model.unlimited.peak_reserved_bytes;
  json["capacity_bytes"] = model.capacity_bytes ? Json(*model.capacity_bytes) : Json();
  json["verdict"] = model.capacity_bytes ? Json(model.fits() ? "FITS" : "NO") : Json();
  json["trace"] = model.trace_path.empty() ? Json() : Json(model.trace_path);
  return json;
}

std::string to_text(const TracedModel& model) {
  const Json& summary = model.summary;
  const uint64_t live = bytes_of(summary, "peak_live_bytes");
  const uint64_t reserved = model.unlimited.peak_reserved_bytes;
  const bool is_on_device = text_of(summary, "tensors") == "device";
  std::string out = fmt::format(
      "{}, {} steps {}, {} allocations\n", text_of(summary, "function"), bytes_of(summary, "steps"),
      is_on_device ? "on the simulated device" : "on fake tensors", bytes_of(summary, "allocations"));
  if (const Json& because = summary.at("because"); because.is_string())
    out += fmt::format("  not on fake tensors: {}\n", because.get<std::string>());
  if (bytes_of(summary, "devices") > 1) {
    out += fmt::format("  device {}, the fullest of {}\n", bytes_of(summary, "device"),
                       bytes_of(summary, "devices"));
  }
  out += fmt::format(
      "  peak live      {:>14}\n  peak reserved  {:>14}  by replay under Spillway, {:.4f} of peak live\n",
      format_size(live), format_size(reserved), static_cast<double>(reserved) / static_cast<double>(live));
  out += phases_text(summary) + peak_text(summary) + findings_text(summary);
  out += "\n  Beyond this: CUDA's own context, libraries' buffers outside of PyTorch's allocator\n";
  return model.capacity_bytes ? out + verdict_text(model) : out;
}

}  // namespace spillway
