// Recordings as files: PyTorch's snapshots, by their own schema, and Spillway's traces.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "cli/trace/recording.h"
#include "stats/pickle_writer.h"
#include "stats/trace_file.h"

namespace spillway {
namespace {

// The schema is torch.cuda.memory._snapshot's.
class SnapshotWriter {
 public:
  explicit SnapshotWriter(const Recording& recording) : recording_(recording), pickle_(out_) {}

  std::string write() && {
    pickle_.begin_dict();
    pickle_.key("device_traces");
    pickle_.begin_list();
    for (int device = 0; device <= last_device(); ++device) write_trace(device);
    pickle_.end_list();
    pickle_.key("segments");
    pickle_.begin_list();
    for (const TraceRecord& block : live_at_end()) write_segment(block);
    pickle_.end_list();
    pickle_.key("allocator_settings");
    pickle_.begin_dict();
    pickle_.end_dict();
    write_marks();
    pickle_.end_dict();
    pickle_.finish();
    return std::move(out_);
  }

 private:
  int last_device() const {
    int last = 0;
    for (const TraceRecord& event : recording_.events) last = std::max(last, static_cast<int>(event.device));
    return last;
  }

  void write_trace(int device) {
    pickle_.begin_list();
    for (const TraceRecord& event : recording_.events) {
      if (event.device == device) write_event(event);
    }
    pickle_.end_list();
  }

  void write_event(const TraceRecord& event) {
    switch (event.kind) {
      case TraceKind::kAllocate:
      case TraceKind::kPlace:
        return write_entry(event, "alloc");
      case TraceKind::kFree:
      case TraceKind::kUnplace:
        write_entry(event, "free_requested");
        return write_entry(event, "free_completed");
      case TraceKind::kFreeRequested:
        return write_entry(event, "free_requested");
      case TraceKind::kFreeCompleted:
        return write_entry(event, "free_completed");
      case TraceKind::kOutOfMemory:
        return write_entry(event, "oom");
      default:
        return;  // of memory that has no counterpart there
    }
  }

  void write_entry(const TraceRecord& event, const char* action) {
    const bool is_oom = event.kind == TraceKind::kOutOfMemory;
    pickle_.begin_dict();
    pickle_.item("action", action);
    pickle_.item(is_oom ? "device_free" : "addr", is_oom ? uint64_t{0} : event.address);
    pickle_.item("size", event.requested_bytes);
    pickle_.item("stream", event.stream);
    pickle_.item("time_us", event.ticks / 1000);
    pickle_.item("compile_context", "N/A");
    const auto tag = recording_.tags.find(event.tag);
    pickle_.item("user_metadata",
                 tag == recording_.tags.end() ? std::string_view() : std::string_view(tag->second));
    pickle_.key("frames");
    write_frames(event.stack);
    pickle_.end_dict();
  }

  void write_frames(uint32_t stack) {
    if (const auto written = stacks_.find(stack); written != stacks_.end())
      return pickle_.reuse(written->second);
    pickle_.begin_list();
    if (const auto found = recording_.stacks.find(stack); found != recording_.stacks.end()) {
      for (const uint32_t number : found->second) write_frame(recording_.frames[number]);
    }
    pickle_.end_list();
    stacks_[stack] = pickle_.share();
  }

  void write_frame(const RecordedFrame& frame) {
    pickle_.begin_dict();
    pickle_.item("name", frame.function);
    pickle_.item("filename", frame.file);
    pickle_.item("line", frame.line);
    pickle_.end_dict();
  }

  std::vector<TraceRecord> live_at_end() {
    std::unordered_map<uint64_t, TraceRecord> live;
    for (const TraceRecord& event : recording_.events) {
      if (event.kind == TraceKind::kAllocate || event.kind == TraceKind::kLive ||
          event.kind == TraceKind::kPlace) {
        live[event.address] = event;
      } else if (event.kind == TraceKind::kFreeRequested) {
        if (const auto found = live.find(event.address); found != live.end()) found->second.kind = event.kind;
      } else if (event.kind == TraceKind::kFree || event.kind == TraceKind::kFreeCompleted ||
                 event.kind == TraceKind::kUnplace) {
        live.erase(event.address);
      }
    }
    std::vector<TraceRecord> blocks;
    for (const auto& [address, block] : live) blocks.push_back(block);
    std::sort(blocks.begin(), blocks.end(), [](const TraceRecord& a, const TraceRecord& b) {
      return std::pair(a.device, a.address) < std::pair(b.device, b.address);
    });
    return blocks;
  }

  void write_segment(const TraceRecord& block) {
    const bool pending = block.kind == TraceKind::kFreeRequested;
    const uint64_t bytes = std::max(block.block_bytes, block.requested_bytes);
    pickle_.begin_dict();
    pickle_.item("device", int64_t{block.device});
    pickle_.item("address", block.address);
    pickle_.item("total_size", bytes);
    pickle_.item("allocated_size", pending ? uint64_t{0} : bytes);
    pickle_.item("active_size", bytes);
    pickle_.item("requested_size", block.requested_bytes);
    pickle_.item("stream", block.stream);
    pickle_.item("segment_type", "large");
    pickle_.key("segment_pool_id");
    pickle_.begin_tuple();
    pickle_.integer(0);
    pickle_.integer(0);
    pickle_.end_tuple();
    pickle_.key("is_expandable");
    pickle_.boolean(false);
    pickle_.key("frames");
    write_frames(0);
    pickle_.key("blocks");
    pickle_.begin_list();
    pickle_.begin_dict();
    pickle_.item("address", block.address);
    pickle_.item("size", bytes);
    pickle_.item("requested_size", block.requested_bytes);
    pickle_.item("state", pending ? "active_pending_free" : "active_allocated");
    pickle_.key("frames");
    write_frames(block.stack);
    pickle_.end_dict();
    pickle_.end_list();
    pickle_.end_dict();
  }

  void write_marks() {
    pickle_.key("external_annotations");
    pickle_.begin_list();
    for (const TraceRecord& event : recording_.events) {
      if (event.kind != TraceKind::kMark) continue;
      pickle_.begin_dict();
      pickle_.item("name", recording_.marks[event.address]);
      pickle_.item("stage", "MARK");
      pickle_.item("device", int64_t{event.device});
      pickle_.item("time_us", event.ticks / 1000);
      pickle_.end_dict();
    }
    pickle_.end_list();
  }

  const Recording& recording_;
  std::string out_;
  PickleWriter pickle_;
  std::unordered_map<uint32_t, uint32_t> stacks_;
};

void write_definitions(const Recording& recording, TraceFile& file) {
  auto text = [&, next = uint32_t{0}](const std::string& value) mutable {
    TraceRecord record;
    record.kind = TraceKind::kText;
    record.stack = ++next;
    file.add(record, value);
    return next;
  };
  TraceRecord record;
  for (const auto& [number, name] : recording.tags) {
    record = {};
    record.kind = TraceKind::kTag;
    record.tag = static_cast<uint16_t>(number);
    file.add(record, name);
  }
  for (size_t i = 0; i < recording.frames.size(); ++i) {
    record = {};
    record.kind = TraceKind::kFrame;
    record.stack = static_cast<uint32_t>(i + 1);
    record.address = text(recording.frames[i].function);
    record.stream = text(recording.frames[i].file);
    record.block_bytes = recording.frames[i].line;
    file.add(record);
  }
  for (const auto& [number, frames] : recording.stacks) {
    record = {};
    record.kind = TraceKind::kStack;
    record.stack = number;
    std::string numbers;
    for (const uint32_t frame : frames) {
      const uint32_t place = frame + 1;
      numbers.append(reinterpret_cast<const char*>(&place), sizeof(place));
    }
    file.add(record, numbers);
  }
}

}  // namespace

std::string to_snapshot(const Recording& recording) {
  return SnapshotWriter(recording).write();
}

Status write_trace_file(const Recording& recording, const std::string& path, const std::string& version) {
  TraceFileOptions options;
  options.path = path + ".tmp";  // what is there appears whole or not at all
  options.library_version = version;
  options.process_id = recording.process_id;
  options.rank = recording.rank;
  Result<std::unique_ptr<TraceFile>> created = TraceFile::create(options);
  if (!created.ok()) return created.take_status();
  TraceFile& file = *created.value();
  write_definitions(recording, file);
  // Ticks are ns already: one reading of both clocks says so.
  TraceRecord clock;
  clock.kind = TraceKind::kClock;
  file.add(clock);
  constexpr size_t kRecordsInFrame = 1 << 16;
  for (size_t i = 0; i < recording.events.size(); ++i) {
    const TraceRecord& event = recording.events[i];
    if (event.kind == TraceKind::kMark) {
      TraceRecord mark = event;
      mark.address = 0;
      file.add(mark, recording.marks[event.address]);
    } else {
      file.add(event);
    }
    if (i % kRecordsInFrame == kRecordsInFrame - 1) {
      if (Status status = file.flush(); !status.ok()) return status;
    }
  }
  TraceRecord end;
  end.kind = TraceKind::kEnd;
  file.add(end);
  if (Status status = file.flush(); !status.ok()) return status;
  if (std::rename(options.path.c_str(), path.c_str()) != 0)
    return Status::io(path + ": cannot put it in its place: " + std::strerror(errno));
  return {};
}

}  // namespace spillway
