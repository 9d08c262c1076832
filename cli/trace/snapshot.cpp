#include "cli/trace/snapshot.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

#include "cli/trace/file.h"
#include "cli/trace/pickle.h"
#include "cli/trace/recording.h"

namespace spillway {

namespace {

using Kind = PickleValue::Kind;

constexpr int64_t kMaxBlockBytes = int64_t{1} << 48;
constexpr size_t kMaxStreams = 1024;

// TraceRecord::device can name so many.
constexpr size_t kMaxDevices = 128;

enum class Action : uint8_t { kAllocate, kFreeRequested, kFreeCompleted, kOther };

struct RawEvent {
  Action action = Action::kOther;
  uint64_t address = 0;
  int64_t size = 0;
  uint64_t stream = 0;
  int64_t time_us = 0;
  std::string_view tag;
  PickleValue frames;
};

struct LiveBlock {
  uint64_t address = 0;
  int64_t size = 0;
  uint64_t stream = 0;
  bool pending = false;
};

// Takes a document apart. Every object looked at costs from a budget in proportion to the file, so a file
// that refers to the same objects over and over cannot cost more than one that spells them out.
class SnapshotReader {
 public:
  SnapshotReader(const PickleDocument& document, const SnapshotOptions& options)
      : document_(document), options_(options), budget_(1024 + 8 * document.size()) {}

  // With `recording`, that is filled as well.
  Result<Trace> read(Recording* recording = nullptr) {
    recording_ = recording;
    const PickleValue& root = document_.root();
    if (root.is(Kind::kList)) {
      return Status::invalid_argument(
          "a list, perhaps of segments; a trace needs the dictionary that torch.cuda.memory._dump_snapshot "
          "writes");
    }
    if (!root.is(Kind::kDict))
      return Status::invalid_argument("not a memory snapshot: the pickle is not a dictionary");
    PickleValue traces;
    PickleValue segments;
    each_pair(root, [&](std::string_view key, const PickleValue& value) {
      if (key == "device_traces") traces = value;
      if (key == "segments") segments = value;
    });
    if (!traces.is_sequence()) {
      return Status::invalid_argument("not a memory snapshot with a trace: no list 'device_traces'");
    }
    if (!segments.is(Kind::kNone) && !segments.is_sequence()) fail("'segments' is not a list");
    choose_device(traces);
    if (error_.ok())
      read_events(document_.items(document_.items(traces)[static_cast<size_t>(trace_.device)]));
    if (error_.ok() && segments.is_sequence()) read_segments(segments);
    if (error_.ok()) build();
    if (!error_.ok()) return std::move(error_);
    trace_.peak_live_bytes = peak_live_bytes(trace_);
    if (trace_.peak_live_bytes > static_cast<uint64_t>(kMaxBlockBytes)) {
      return Status::invalid_argument(fmt::format("{} bytes are live at once; allowed: up to {}",
                                                  trace_.peak_live_bytes, kMaxBlockBytes));
    }
    return std::move(trace_);
  }

 private:
  void fail(std::string text) {
    if (error_.ok()) error_ = Status::invalid_argument(std::move(text));
  }

  bool spend(uint64_t cost) {
    if (cost > budget_) {
      fail("not a memory snapshot: it refers to the same objects too often");
      return false;
    }
    budget_ -= cost;
    return true;
  }

  template <typename Visit>
  void each_pair(const PickleValue& dict, Visit visit) {
    const auto& pairs = document_.pairs(dict);
    if (!spend(1 + pairs.size())) return;
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (pairs[i].is(Kind::kText)) visit(document_.text(pairs[i]), pairs[i + 1]);
    }
  }

  void choose_device(const PickleValue& traces) {
    const auto& devices = document_.items(traces);
    if (!spend(devices.size())) return;
    if (devices.empty()) return fail("'device_traces' is empty: history was not recorded");
    if (devices.size() > kMaxDevices) {
      return fail(
          fmt::format("'device_traces' has {} devices; allowed: up to {}", devices.size(), kMaxDevices));
    }
    size_t most = 0;
    trace_.devices_with_events = 0;
    for (size_t i = 0; i < devices.size(); ++i) {
      if (!devices[i].is_sequence()) return fail(fmt::format("device_traces[{}] is not a list", i));
      const size_t count = document_.items(devices[i]).size();
      if (count > 0) ++trace_.devices_with_events;
      if (count > most) {
        most = count;
        trace_.device = static_cast<int>(i);
      }
    }
    if (options_.device >= 0) {
      if (static_cast<size_t>(options_.device) >= devices.size()) {
        return fail(fmt::format("device {} is not in the snapshot; allowed: 0 to {}", options_.device,
                                devices.size() - 1));
      }
      trace_.device = options_.device;
      most = document_.items(devices[static_cast<size_t>(options_.device)]).size();
    }
    if (most == 0) fail(fmt::format("device_traces[{}] is empty: history was not recorded", trace_.device));
  }

  // An integer that fits 64 bits; addresses and stream handles may use the top bit.
  bool integer(const PickleValue& value, const char* what, size_t index, int64_t* out) {
    if (!value.is(Kind::kInteger)) {
      fail(fmt::format("event {}: '{}' is not an integer", index, what));
      return false;
    }
    *out = value.integer();
    return true;
  }

  void read_events(const std::vector<PickleValue>& events) {
    raw_.reserve(events.size());
    for (size_t i = 0; i < events.size() && error_.ok(); ++i) {
      if (!events[i].is(Kind::kDict)) return fail(fmt::format("event {} is not a dictionary", i));
      read_event(events[i], i);
    }
  }

  void read_event(const PickleValue& event, size_t index) {
    PickleValue action;
    PickleValue address;
    PickleValue size;
    PickleValue stream(Kind::kInteger, 0);
    RawEvent raw;
    each_pair(event, [&](std::string_view key, const PickleValue& value) {
      if (key == "time_us" && value.is(Kind::kInteger)) raw.time_us = value.integer();
      if (key == "user_metadata" && value.is(Kind::kText)) raw.tag = document_.text(value);
      if (key == "frames") raw.frames = value;
      if (key == "action") action = value;
      if (key == "addr") address = value;
      if (key == "size") size = value;
      if (key == "stream") stream = value;
    });
    if (!action.is(Kind::kText)) return fail(fmt::format("event {}: 'action' is not a text", index));
    const std::string_view name = document_.text(action);
    if (name == "alloc") raw.action = Action::kAllocate;
    if (name == "free_requested") raw.action = Action::kFreeRequested;
    if (name == "free_completed") raw.action = Action::kFreeCompleted;
    if (raw.action == Action::kOther) {
      // Segments are the recording allocator's business, not the program's.
      if (stream.is(Kind::kInteger)) raw.stream = static_cast<uint64_t>(stream.integer());
      if (recording_ != nullptr && size.is(Kind::kInteger)) note_other(name, size.integer(), raw);
      return;
    }
    int64_t number = 0;
    if (!integer(address, "addr", index, &number)) return;
    raw.address = static_cast<uint64_t>(number);
    if (!integer(size, "size", index, &raw.size)) return;
    if (!integer(stream, "stream", index, &number)) return;
    raw.stream = static_cast<uint64_t>(number);
    if (raw.size < 0 || raw.size > kMaxBlockBytes) {
      return fail(fmt::format("event {}: 'size' is {}; allowed: 0 to {}", index, raw.size, kMaxBlockBytes));
    }
    raw_.push_back(raw);
  }

  void read_segments(const PickleValue& segments) {
    const auto& rows = document_.items(segments);
    if (!spend(rows.size())) return;
    for (size_t i = 0; i < rows.size() && error_.ok(); ++i) {
      if (!rows[i].is(Kind::kDict)) return fail(fmt::format("segments[{}] is not a dictionary", i));
      int64_t device = 0;
      int64_t stream = 0;
      int64_t address = -1;
      PickleValue blocks;
      each_pair(rows[i], [&](std::string_view key, const PickleValue& value) {
        if (key == "device" && value.is(Kind::kInteger)) device = value.integer();
        if (key == "stream" && value.is(Kind::kInteger)) stream = value.integer();
        if (key == "address" && value.is(Kind::kInteger)) address = value.integer();
        if (key == "blocks") blocks = value;
      });
      if (device != trace_.device) continue;
      if (!blocks.is_sequence()) return fail(fmt::format("segments[{}]: no list 'blocks'", i));
      read_blocks(document_.items(blocks), i, static_cast<uint64_t>(address), static_cast<uint64_t>(stream));
    }
  }

  // Blocks of one segment lie one after the other; older snapshots give only their sizes.
  void read_blocks(const std::vector<PickleValue>& blocks, size_t segment, uint64_t address,
                   uint64_t stream) {
    for (size_t i = 0; i < blocks.size() && error_.ok(); ++i) {
      if (!blocks[i].is(Kind::kDict))
        return fail(fmt::format("segments[{}].blocks[{}] is not a dictionary", segment, i));
      int64_t size = -1;
      int64_t requested = -1;
      std::string_view state;
      each_pair(blocks[i], [&](std::string_view key, const PickleValue& value) {
        if (key == "size" && value.is(Kind::kInteger)) size = value.integer();
        if (key == "requested_size" && value.is(Kind::kInteger)) requested = value.integer();
        if (key == "address" && value.is(Kind::kInteger)) address = static_cast<uint64_t>(value.integer());
        if (key == "state" && value.is(Kind::kText)) state = document_.text(value);
      });
      if (requested < 0) requested = size;
      if (size < 0 || size > kMaxBlockBytes || requested > kMaxBlockBytes) {
        return fail(fmt::format("segments[{}].blocks[{}]: 'size' is {}; allowed: 0 to {}", segment, i, size,
                                kMaxBlockBytes));
      }
      const bool pending = state == "active_pending_free" || state == "active_awaiting_free";
      if (pending || state == "active_allocated") at_end_.push_back({address, requested, stream, pending});
      address += static_cast<uint64_t>(size);
    }
  }

  // Returns what is live before the first event: the end, taken back event by event.
  std::vector<LiveBlock> live_at_start() {
    std::unordered_map<uint64_t, LiveBlock> live;
    std::vector<uint64_t> order;
    for (const LiveBlock& block : at_end_) {
      if (live.emplace(block.address, block).second) order.push_back(block.address);
    }
    for (size_t i = raw_.size(); i-- > 0;) {
      const RawEvent& event = raw_[i];
      switch (event.action) {
        case Action::kAllocate:
          live.erase(event.address);
          break;
        case Action::kFreeCompleted:
          live[event.address] = {event.address, event.size, event.stream, true};
          order.push_back(event.address);
          break;
        case Action::kFreeRequested: {
          LiveBlock& block =
              live.try_emplace(event.address, LiveBlock{event.address, event.size, event.stream, true})
                  .first->second;
          block.pending = false;
          order.push_back(event.address);
          break;
        }
        case Action::kOther:
          break;
      }
    }
    std::vector<LiveBlock> out;
    for (const uint64_t address : order) {
      const auto it = live.find(address);
      if (it == live.end()) continue;
      out.push_back(it->second);
      live.erase(it);
    }
    std::sort(out.begin(), out.end(),
              [](const LiveBlock& a, const LiveBlock& b) { return a.address < b.address; });
    return out;
  }

  // ---- What a Recording has beyond a Trace

  TraceRecord record_of(TraceKind kind, const RawEvent& event) {
    TraceRecord record;
    record.kind = kind;
    record.ticks = static_cast<uint64_t>(std::clamp<int64_t>(event.time_us, 0, INT64_MAX / 1000)) * 1000;
    record.address = event.address;
    record.requested_bytes = record.block_bytes = static_cast<uint64_t>(event.size);
    record.stream = event.stream;
    record.device = static_cast<int8_t>(trace_.device);
    if (event.frames.is(Kind::kList)) record.stack = stack_number(event.frames);
    if (!event.tag.empty()) record.tag = tag_number(event.tag);
    return record;
  }

  void note(TraceKind kind, const RawEvent& event) {
    if (recording_ != nullptr) recording_->events.push_back(record_of(kind, event));
  }

  void note_other(std::string_view action, int64_t size, RawEvent event) {
    event.frames = {};
    event.size = std::max<int64_t>(size, 0);
    TraceRecord record = record_of(TraceKind::kReserve, event);
    if (action == "oom") {
      record.kind = TraceKind::kOutOfMemory;
    } else if (action == "segment_alloc" || action == "segment_map") {
      record.block_bytes = 0;
    } else if (action == "segment_free" || action == "segment_unmap") {
      record.requested_bytes = 0;
    } else {
      return;
    }
    others_.emplace_back(raw_.size(), record);
  }

  uint16_t tag_number(std::string_view name) {
    const auto [found, is_new] = tags_.try_emplace(
        std::string(name), static_cast<uint16_t>(std::min<size_t>(tags_.size() + 1, UINT16_MAX)));
    if (is_new) recording_->tags[found->second] = name;
    return found->second;
  }

  uint32_t frame_number(const PickleValue& frame) {
    const auto [found, is_new] =
        frame_numbers_.try_emplace(frame.payload(), static_cast<uint32_t>(recording_->frames.size()));
    if (!is_new) return found->second;
    RecordedFrame out;
    each_pair(frame, [&](std::string_view key, const PickleValue& value) {
      if (key == "name" && value.is(Kind::kText)) out.function = document_.text(value);
      if (key == "filename" && value.is(Kind::kText)) out.file = document_.text(value);
      if (key == "line" && value.is(Kind::kInteger)) out.line = static_cast<uint64_t>(value.integer());
    });
    recording_->frames.push_back(std::move(out));
    return found->second;
  }

  uint32_t stack_number(const PickleValue& list) {
    if (const auto known = stack_numbers_.find(list.payload()); known != stack_numbers_.end())
      return known->second;
    const auto& items = document_.items(list);
    if (items.empty() || !spend(items.size())) return 0;
    std::vector<uint32_t> frames;
    for (const PickleValue& frame : items) {
      if (frame.is(Kind::kDict)) frames.push_back(frame_number(frame));
    }
    const auto [found, is_new] =
        stacks_.try_emplace(std::move(frames), static_cast<uint32_t>(stacks_.size() + 1));
    if (is_new) recording_->stacks[found->second] = found->first;
    return stack_numbers_[list.payload()] = found->second;
  }

  uint32_t stream_index(uint64_t stream) {
    const auto [it, added] = streams_.try_emplace(stream, static_cast<uint32_t>(trace_.streams.size()));
    if (added) {
      trace_.streams.push_back(stream);
      if (trace_.streams.size() > kMaxStreams) fail(fmt::format("more than {} streams", kMaxStreams));
    }
    return it->second;
  }

  // A block of no bytes occupies none: the allocator under replay is asked for one.
  uint32_t add_block(int64_t size, uint64_t stream) {
    TraceBlock block;
    block.bytes = static_cast<uint64_t>(std::max<int64_t>(size, 1));
    block.stream = stream_index(stream);
    trace_.blocks.push_back(block);
    return static_cast<uint32_t>(trace_.blocks.size() - 1);
  }

  struct Open {
    uint32_t block = 0;
    bool requested = false;
  };

  void build() {
    std::unordered_map<uint64_t, Open> open;
    for (const LiveBlock& block : live_at_start()) {
      note(TraceKind::kLive, {Action::kAllocate, block.address, block.size, block.stream, 0, {}, {}});
      const uint32_t index = add_block(block.size, block.stream);
      trace_.blocks[index].initially_live = true;
      trace_.blocks[index].initially_pending = block.pending;
      open[block.address] = {index, block.pending};
    }
    uint64_t total = 0;
    size_t other = 0;
    for (size_t i = 0; i < raw_.size() && error_.ok(); ++i) {
      const RawEvent& event = raw_[i];
      for (; other < others_.size() && others_[other].first <= i; ++other) {
        recording_->events.push_back(others_[other].second);
      }
      const auto it = open.find(event.address);
      if (event.action == Action::kAllocate) {
        if (it != open.end()) {
          return fail(fmt::format("allocation {} returns address 0x{:x}, which is live", i, event.address));
        }
        const uint32_t index = add_block(event.size, event.stream);
        open[event.address] = {index, false};
        trace_.events.push_back({index, TraceEvent::Kind::kAllocate});
        note(TraceKind::kAllocate, event);
      } else if (it == open.end() || (event.action == Action::kFreeRequested && it->second.requested)) {
        return fail(fmt::format("free {} is of address 0x{:x}, which is not live", i, event.address));
      } else if (event.action == Action::kFreeRequested) {
        it->second.requested = true;
        const bool done = i + 1 < raw_.size() && raw_[i + 1].action == Action::kFreeCompleted &&
                          raw_[i + 1].address == event.address;
        trace_.events.push_back(
            {it->second.block, done ? TraceEvent::Kind::kFree : TraceEvent::Kind::kFreeRequested});
        note(done ? TraceKind::kFree : TraceKind::kFreeRequested, event);
        if (done) {
          open.erase(it);
          ++i;
        }
      } else {
        // Some recorders write completed frees only.
        trace_.events.push_back({it->second.block, it->second.requested ? TraceEvent::Kind::kFreeCompleted
                                                                        : TraceEvent::Kind::kFree});
        note(it->second.requested ? TraceKind::kFreeCompleted : TraceKind::kFree, event);
        open.erase(it);
      }
    }
    for (; other < others_.size(); ++other) recording_->events.push_back(others_[other].second);
    for (const TraceBlock& block : trace_.blocks) total += block.bytes;
    if (total > uint64_t{1} << 62) fail("the blocks add up to more than 4 EiB");
    if (trace_.events.empty()) fail("the trace holds no allocation and no free");
  }

  const PickleDocument& document_;
  const SnapshotOptions options_;
  uint64_t budget_;
  Status error_;
  Trace trace_;
  std::vector<RawEvent> raw_;
  std::vector<LiveBlock> at_end_;
  std::unordered_map<uint64_t, uint32_t> streams_;

  Recording* recording_ = nullptr;
  std::vector<std::pair<size_t, TraceRecord>> others_;  // by how many of raw_ come before
  std::map<std::string, uint16_t> tags_;
  std::unordered_map<uint64_t, uint32_t> frame_numbers_;  // by their place in the document
  std::unordered_map<uint64_t, uint32_t> stack_numbers_;
  std::map<std::vector<uint32_t>, uint32_t> stacks_;
};

}  // namespace

Result<Trace> parse_snapshot(const std::string& data, const SnapshotOptions& options) {
  auto document = PickleDocument::parse(data);
  if (!document.ok()) return document.take_status();
  return SnapshotReader(document.value(), options).read();
}

Result<Recording> parse_snapshot_recording(const std::string& data, const SnapshotOptions& options) {
  auto document = PickleDocument::parse(data, PickleFrames::kKeep);
  if (!document.ok()) return document.take_status();
  Recording recording;
  const Result<Trace> trace = SnapshotReader(document.value(), options).read(&recording);
  if (!trace.ok()) return trace.status();
  // Times of neighbours may be out of order by a little, the events are not.
  uint64_t last = 0;
  for (TraceRecord& event : recording.events) event.ticks = last = std::max(last, event.ticks);
  return recording;
}

Result<Trace> read_snapshot(const std::string& path, const SnapshotOptions& options) {
  auto data = read_file(path);
  if (!data.ok()) return data.take_status();
  auto trace = parse_snapshot(data.value(), options);
  if (!trace.ok()) return Status::invalid_argument(fmt::format("{}: {}", path, trace.status().text()));
  trace->path = path;
  return trace;
}

}  // namespace spillway
