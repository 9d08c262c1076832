#include "cli/trace/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "cli/trace/file.h"

namespace spillway {
namespace {

constexpr uint64_t kMostBlockBytes = uint64_t{1} << 48;

// Puts the blocks of one device together from their events.
class TraceBuilder {
 public:
  TraceBuilder(const Recording& recording, int device) : recording_(recording), device_(device) {}

  Result<Trace> build() {
    for (size_t i = 0; i < recording_.events.size() && error_.ok(); ++i) take(recording_.events[i], i);
    if (error_.ok() && trace_.events.empty()) fail("the trace holds no allocation and no free");
    if (!error_.ok()) return std::move(error_);
    trace_.path = recording_.path;
    trace_.device = device_;
    trace_.peak_live_bytes = peak_live_bytes(trace_);
    if (trace_.peak_live_bytes > kMostBlockBytes)
      return Status::invalid_argument("more than 256 TiB are live at once");
    return std::move(trace_);
  }

 private:
  struct Open {
    uint32_t block = 0;
    bool requested = false;
  };

  void fail(std::string text) { error_ = Status::invalid_argument(std::move(text)); }

  void take(const TraceRecord& event, size_t index) {
    if (event.device != device_) return;
    switch (event.kind) {
      case TraceKind::kLive:
      case TraceKind::kAllocate:
      case TraceKind::kPlace:
        return allocate(event, index);
      case TraceKind::kFree:
      case TraceKind::kFreeRequested:
      case TraceKind::kFreeCompleted:
      case TraceKind::kUnplace:
        return free(event, index);
      default:
        return;
    }
  }

  void allocate(const TraceRecord& event, size_t index) {
    if (event.requested_bytes > kMostBlockBytes)
      return fail(fmt::format("event {}: a block of {} bytes; allowed: up to {}", index,
                              event.requested_bytes, kMostBlockBytes));
    if (const auto found = open_.find(event.address); found != open_.end()) {
      if (recording_.dropped == 0)
        return fail(fmt::format("event {} allocates address 0x{:x}, which is live", index, event.address));
      end(found->second);
    }
    TraceBlock block;
    block.bytes = std::max<uint64_t>(event.requested_bytes, 1);
    block.stream = stream_index(event.stream);
    block.initially_live = event.kind == TraceKind::kLive;
    const auto number = static_cast<uint32_t>(trace_.blocks.size());
    trace_.blocks.push_back(block);
    open_[event.address] = {number, false};
    if (!block.initially_live) trace_.events.push_back({number, TraceEvent::Kind::kAllocate});
  }

  void free(const TraceRecord& event, size_t index) {
    const auto found = open_.find(event.address);
    const bool again =
        found != open_.end() && found->second.requested && event.kind != TraceKind::kFreeCompleted;
    if (found == open_.end() || again) {
      if (recording_.dropped > 0) return;
      return fail(fmt::format("event {} frees address 0x{:x}, which is not live", index, event.address));
    }
    if (event.kind == TraceKind::kFreeRequested) {
      found->second.requested = true;
      trace_.events.push_back({found->second.block, TraceEvent::Kind::kFreeRequested});
      return;
    }
    end(found->second);
    open_.erase(found);
  }

  void end(const Open& open) {
    trace_.events.push_back(
        {open.block, open.requested ? TraceEvent::Kind::kFreeCompleted : TraceEvent::Kind::kFree});
  }

  uint32_t stream_index(uint64_t stream) {
    const auto [found, added] = streams_.try_emplace(stream, static_cast<uint32_t>(trace_.streams.size()));
    if (added) trace_.streams.push_back(stream);
    return found->second;
  }

  const Recording& recording_;
  const int device_;
  Status error_;
  Trace trace_;
  std::unordered_map<uint64_t, Open> open_;
  std::unordered_map<uint64_t, uint32_t> streams_;
};

std::array<uint64_t, 128> events_by_device(const Recording& recording) {
  std::array<uint64_t, 128> counts{};
  // A reader takes no record of a device below 0.
  for (const TraceRecord& event : recording.events) ++counts[static_cast<uint8_t>(event.device)];
  return counts;
}

}  // namespace

int busiest_device(const Recording& recording) {
  const auto counts = events_by_device(recording);
  return static_cast<int>(std::max_element(counts.begin(), counts.end()) - counts.begin());
}

Result<Trace> to_trace(const Recording& recording, int device) {
  const auto counts = events_by_device(recording);
  Result<Trace> trace = TraceBuilder(recording, device < 0 ? busiest_device(recording) : device).build();
  if (trace.ok()) {
    trace->devices_with_events = static_cast<int>(
        std::count_if(counts.begin(), counts.end(), [](uint64_t count) { return count > 0; }));
  }
  return trace;
}

Result<Trace> read_trace(const std::string& path, const SnapshotOptions& options) {
  auto data = read_file(path);
  if (!data.ok()) return data.take_status();
  if (!is_trace_file(data.value())) {
    auto trace = parse_snapshot(data.value(), options);
    if (!trace.ok()) return Status::invalid_argument(fmt::format("{}: {}", path, trace.status().text()));
    trace->path = path;
    return trace;
  }
  data.value().clear();
  Result<Recording> recording = read_recording(path, options);
  if (!recording.ok()) return recording.take_status();
  Result<Trace> trace = to_trace(recording.value(), options.device);
  if (!trace.ok()) return Status::invalid_argument(fmt::format("{}: {}", path, trace.status().text()));
  return trace;
}

}  // namespace spillway
