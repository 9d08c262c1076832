#include "cli/calibrate/evidence.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/trace/file.h"
#include "cli/trace/snapshot.h"

namespace spillway {
namespace {

using estimator::Counter;
using estimator::Measurement;

struct Live {
  std::vector<bool> blocks;
  uint64_t bytes = 0;
};

void set(const Trace& trace, uint32_t block, bool live, Live& out) {
  if (out.blocks[block] == live) return;
  out.blocks[block] = live;
  live ? out.bytes += trace.blocks[block].bytes : out.bytes -= trace.blocks[block].bytes;
}

Live live_at_start(const Trace& trace) {
  Live out{std::vector<bool>(trace.blocks.size()), 0};
  for (uint32_t i = 0; i < trace.blocks.size(); ++i) {
    if (trace.blocks[i].initially_live) set(trace, i, true, out);
  }
  return out;
}

bool ends(TraceEvent::Kind kind) {
  return kind == TraceEvent::Kind::kFree || kind == TraceEvent::Kind::kFreeCompleted;
}

// Plays events until `stop` says that what is live is what is wanted.
template <typename Stop>
Live play(const Trace& trace, Stop stop) {
  Live live = live_at_start(trace);
  for (const TraceEvent& event : trace.events) {
    if (stop(live)) return live;
    if (event.kind == TraceEvent::Kind::kAllocate) set(trace, event.block, true, live);
    if (ends(event.kind)) set(trace, event.block, false, live);
  }
  return live;
}

// A trace holds requests alone: every counter is theirs.
Measurement measurement_of(const Trace& trace) {
  Measurement out;
  const auto peak = trace.peak_live_bytes;
  const Live end = play(trace, [](const Live&) { return false; });
  const Live at_peak = play(trace, [&](const Live& live) { return live.bytes >= peak; });
  const Counter requested{static_cast<double>(end.bytes), static_cast<double>(peak)};
  out.requested = out.allocated = out.active = out.reserved = requested;
  out.device = trace.device;
  out.blocks_at_peak = true;
  for (size_t i = 0; i < trace.blocks.size(); ++i) {
    if (at_peak.blocks[i]) out.blocks.push_back(static_cast<double>(trace.blocks[i].bytes));
  }
  return out;
}

Result<std::vector<Measurement>> measurements_of(const std::string& data) {
  const size_t first = data.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return Status::invalid_argument("empty");
  if (data[first] == '{' || data[first] == '[') return estimator::read_counters(data);
  Result<Trace> trace = parse_snapshot(data);
  if (!trace.ok()) {
    return Status::invalid_argument(
        fmt::format("neither JSON counters nor a PyTorch snapshot: {}", trace.status().text()));
  }
  if (trace->peak_live_bytes == 0) return Status::invalid_argument("nothing was allocated");
  return std::vector<Measurement>{measurement_of(trace.value())};
}

}  // namespace

Result<std::vector<Measurement>> read_evidence(const std::string& path, const std::string& hardware) {
  Result<std::string> data = read_file(path);
  if (!data.ok()) return data.take_status();
  Result<std::vector<Measurement>> out = measurements_of(data.value());
  if (!out.ok()) return Status(out.status().code(), fmt::format("{}: {}", path, out.status().text()));
  for (Measurement& each : out.value()) {
    each.source = path;
    if (!hardware.empty()) each.hardware = hardware;
    if (each.hardware.empty()) each.hardware = "unknown";
  }
  return out;
}

Result<std::vector<Measurement>> read_evidence(const std::vector<std::string>& paths,
                                               const std::string& hardware) {
  std::vector<Measurement> out;
  for (const std::string& path : paths) {
    Result<std::vector<Measurement>> one = read_evidence(path, hardware);
    if (!one.ok()) return one;
    std::move(one->begin(), one->end(), std::back_inserter(out));
  }
  return out;
}

}  // namespace spillway
