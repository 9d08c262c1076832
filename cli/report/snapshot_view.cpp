// Reads PyTorch memory snapshots (torch.cuda.memory._dump_snapshot, torch.cuda.memory_snapshot) with their
// stacks: torch/csrc/cuda/memory_snapshot.cpp writes them.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "cli/report/read.h"
#include "cli/trace/pickle.h"
#include "stats/call_site.h"

namespace spillway {
namespace {

using Kind = PickleValue::Kind;

constexpr size_t kMostDevices = 1024;

// A dictionary's members by name; what is not of the kind that is asked for counts as missing.
class Row {
 public:
  Row(const PickleDocument& document, const PickleValue& dict)
      : document_(document), pairs_(document.pairs(dict)) {}

  PickleValue find(std::string_view name) const {
    // The last of equal keys counts.
    for (size_t i = pairs_.size() / 2; i-- > 0;) {
      if (pairs_[2 * i].is(Kind::kText) && document_.text(pairs_[2 * i]) == name) return pairs_[2 * i + 1];
    }
    return {};
  }
  std::string_view text(std::string_view name) const {
    const PickleValue value = find(name);
    return value.is(Kind::kText) ? document_.text(value) : std::string_view();
  }
  int64_t integer(std::string_view name, int64_t otherwise) const {
    const PickleValue value = find(name);
    return value.is(Kind::kInteger) ? value.integer() : otherwise;
  }
  bool is_true(std::string_view name) const {
    const PickleValue value = find(name);
    return value.is(Kind::kBool) && value.integer() != 0;
  }
  size_t size() const { return pairs_.size(); }

 private:
  const PickleDocument& document_;
  const std::vector<PickleValue>& pairs_;
};

// Every object looked at costs from a budget in proportion to the file, so a file that refers to the same
// objects over and over cannot cost more than one that spells them out.
class MemorySnapshotReader {
 public:
  explicit MemorySnapshotReader(const PickleDocument& document)
      : document_(document), budget_(1024 + 8 * document.size()) {}

  Result<std::vector<MemoryView>> read() {
    const PickleValue root = document_.root();
    PickleValue segments;
    PickleValue traces;
    PickleValue annotations;
    if (root.is(Kind::kList)) {
      segments = root;
    } else if (root.is(Kind::kDict)) {
      const Row row(document_, root);
      spend(row.size());
      segments = row.find("segments");
      traces = row.find("device_traces");
      annotations = row.find("external_annotations");
    }
    if (!segments.is_sequence() && !traces.is_sequence()) {
      return Status::invalid_argument(
          "not a memory snapshot: no list 'segments' and no list 'device_traces'");
    }
    if (segments.is_sequence()) read_segments(segments);
    if (traces.is_sequence()) read_traces(traces);
    if (annotations.is_sequence()) read_annotations(annotations);
    std::vector<MemoryView> out;
    for (auto& [device, view] : views_) {
      if (!error_.ok()) break;
      if (Status status = settle(view.segments); !status.ok()) {
        fail(fmt::format("device {}: {}", device, status.text()));
      }
      if (view.segments.empty() && view.events.empty()) continue;
      finish(view);
      if (stacks_->size() > 1) view.stacks = stacks_;
      out.push_back(std::move(view));
    }
    if (!error_.ok()) return std::move(error_);
    if (out.empty()) return Status::invalid_argument("the snapshot holds no segment and no event");
    return out;
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
    return error_.ok();
  }

  MemoryView& view_of(int64_t device) {
    MemoryView& view = views_[device];
    view.device = device;
    view.is_snapshot = true;
    return view;
  }

  bool is_size(int64_t size, const char* what, size_t index) {
    if (size >= 0 && static_cast<uint64_t>(size) <= kMostViewBytes) return true;
    fail(fmt::format("{} {}: 'size' is {}; allowed: 0 to 2^48", what, index, size));
    return false;
  }

  // A time in microseconds since 1970; 0, none, for what cannot be one.
  static int64_t time_of(const Row& row) {
    const int64_t time = row.integer("time_us", 0);
    return time >= 0 && time < int64_t{1} << 60 ? time : 0;
  }

  // Visits the dictionaries of a list.
  template <typename Visit>
  void each(const PickleValue& list, const char* what, Visit visit) {
    const auto& items = document_.items(list);
    if (!spend(items.size())) return;
    for (size_t i = 0; i < items.size() && error_.ok(); ++i) {
      if (!items[i].is(Kind::kDict)) return fail(fmt::format("{} {} is not a dictionary", what, i));
      const Row row(document_, items[i]);
      if (spend(row.size())) visit(row, i);
    }
  }

  // ---- Stacks

  struct Place {
    std::string site;
    uint32_t stack = 0;
  };

  Place place_of(const PickleValue& frames) {
    CallSite site;
    std::vector<uint32_t> numbers;
    const auto& stack = document_.items(frames);
    if (!spend(stack.size())) return {};
    for (const PickleValue& value : stack) {
      if (!value.is(Kind::kDict)) continue;
      const Row frame(document_, value);
      if (!spend(frame.size())) return {};
      const std::string_view function = frame.text("name");
      const std::string_view file = frame.text("filename");
      const int64_t line = frame.integer("line", 0);
      site.add(function, file, line);
      if (is_shown(function, file)) numbers.push_back(stacks_->frame(function, file, line));
    }
    return {site.text(), stacks_->stack(numbers)};
  }

  // Sets the site and the stack of a block or an event.
  template <typename Allocated>
  void set_place(const PickleValue& frames, MemoryView& view, Allocated& out) {
    if (!frames.is_sequence() || document_.items(frames).empty()) return;
    const auto [known, added] = places_.try_emplace(frames.payload());
    if (added) known->second = place_of(frames);
    out.stack = known->second.stack;
    if (known->second.site.empty()) return;
    const auto [number, is_new] = numbers_[view.device].try_emplace(known->second.site, view.sites.size());
    if (is_new) view.sites.push_back(known->second.site);
    out.site = number->second;
  }

  // ---- Segments

  void read_segments(const PickleValue& segments) {
    each(segments, "segment", [&](const Row& row, size_t index) {
      const int64_t device = row.integer("device", 0);
      if (device < 0 || static_cast<size_t>(device) >= kMostDevices)
        return fail(
            fmt::format("segment {}: 'device' is {}; allowed: 0 to {}", index, device, kMostDevices - 1));
      MemoryView& view = view_of(device);
      SegmentView out;
      const PickleValue total = row.find("total_size");
      const int64_t size = row.integer("total_size", total.is(Kind::kNone) ? 0 : -1);
      if (!is_size(size, "segment", index)) return;
      out.bytes = static_cast<uint64_t>(size);
      out.address = static_cast<uint64_t>(row.integer("address", 0));
      out.stream = static_cast<uint64_t>(row.integer("stream", 0));
      out.expandable = row.is_true("is_expandable");
      out.small = row.text("segment_type") == "small";
      read_pool(row.find("segment_pool_id"), out);
      const PickleValue blocks = row.find("blocks");
      if (!blocks.is_sequence()) return fail(fmt::format("segment {}: no list 'blocks'", index));
      read_blocks(blocks, view, out);
      // Some writers give the blocks alone.
      if (total.is(Kind::kNone)) {
        for (const BlockView& block : out.blocks) out.bytes += std::min(block.bytes, kMostViewBytes);
      }
      view.segments.push_back(std::move(out));
    });
  }

  void read_pool(const PickleValue& pool, SegmentView& out) {
    if (!pool.is_sequence()) return;
    const auto& ids = document_.items(pool);
    if (ids.size() != 2 || !ids[0].is(Kind::kInteger) || !ids[1].is(Kind::kInteger)) return;
    out.pool_first = static_cast<uint64_t>(ids[0].integer());
    out.pool_second = static_cast<uint64_t>(ids[1].integer());
  }

  // Blocks of one segment lie one after the other; older snapshots give only their sizes.
  void read_blocks(const PickleValue& blocks, MemoryView& view, SegmentView& segment) {
    uint64_t address = segment.address;
    each(blocks, "block", [&](const Row& row, size_t index) {
      const int64_t size = row.integer("size", -1);
      if (!is_size(size, "block", index)) return;
      BlockView out;
      out.address = static_cast<uint64_t>(row.integer("address", static_cast<int64_t>(address)));
      out.bytes = static_cast<uint64_t>(size);
      const std::string_view state = row.text("state");
      if (state == "active_allocated") out.state = BlockState::kLive;
      if (state == "active_pending_free" || state == "active_awaiting_free") out.state = BlockState::kPending;
      out.requested_bytes = static_cast<uint64_t>(std::max<int64_t>(0, row.integer("requested_size", size)));
      if (out.state != BlockState::kInactive) set_place(row.find("frames"), view, out);
      address = out.address + out.bytes;
      segment.blocks.push_back(out);
    });
  }

  // ---- Events

  void read_traces(const PickleValue& traces) {
    const auto& devices = document_.items(traces);
    if (devices.size() > kMostDevices) return fail(fmt::format("more than {} devices", kMostDevices));
    for (size_t i = 0; i < devices.size() && error_.ok(); ++i) {
      if (!devices[i].is_sequence()) return fail(fmt::format("device_traces[{}] is not a list", i));
      if (document_.items(devices[i]).empty()) continue;
      MemoryView& view = view_of(static_cast<int64_t>(i));
      each(devices[i], "event", [&](const Row& row, size_t index) { read_event(row, index, view); });
    }
  }

  void read_event(const Row& row, size_t index, MemoryView& view) {
    using Event = MemoryEvent::Kind;
    const std::string_view action = row.text("action");
    MemoryEvent out;
    if (action == "alloc") {
      out.kind = Event::kAllocate;
    } else if (action == "free_requested") {
      out.kind = Event::kFreeRequested;
    } else if (action == "free_completed") {
      out.kind = Event::kFreeCompleted;
    } else if (action == "segment_alloc" || action == "segment_map") {
      out.kind = Event::kSegmentAdd;
    } else if (action == "segment_free" || action == "segment_unmap") {
      out.kind = Event::kSegmentRemove;
    } else if (action == "oom") {
      out.kind = Event::kOutOfMemory;
      ++view.ooms;
    } else if (action.empty()) {
      return fail(fmt::format("event {}: 'action' is not a text", index));
    } else {
      return;  // snapshot, annotate, and what is to come
    }
    out.expandable = action == "segment_map" || action == "segment_unmap";
    const bool oom = out.kind == Event::kOutOfMemory;
    const PickleValue address = row.find(oom ? "device_free" : "addr");
    if (!address.is(Kind::kInteger) && !oom)
      return fail(fmt::format("event {}: 'addr' is not an integer", index));
    out.address = address.is(Kind::kInteger) ? static_cast<uint64_t>(address.integer()) : 0;
    const int64_t size = row.integer("size", -1);
    if (!is_size(size, "event", index)) return;
    out.bytes = static_cast<uint64_t>(size);
    out.stream = static_cast<uint64_t>(row.integer("stream", 0));
    out.time_us = time_of(row);
    if (out.kind == Event::kAllocate) set_place(row.find("frames"), view, out);
    view.events.push_back(out);
  }

  void read_annotations(const PickleValue& annotations) {
    each(annotations, "annotation", [&](const Row& row, size_t) {
      const std::string_view stage = row.text("stage");
      const auto view = views_.find(row.integer("device", 0));
      if ((stage != "START" && stage != "END") || view == views_.end()) return;
      view->second.marks.push_back({std::string(row.text("name")), stage == "START", time_of(row)});
    });
  }

  static void finish(MemoryView& view) {
    view.now = parts_of(view.segments);
    view.reserved_peak_bytes = view.now.reserved();
    view.live_peak_bytes = view.now.live + view.now.pending;
    view.largest_free_bytes = largest_free_range(view.segments);
    if (!view.events.empty()) view.time_us = view.events.back().time_us;
  }

  const PickleDocument& document_;
  uint64_t budget_;
  Status error_;
  std::map<int64_t, MemoryView> views_;
  std::unordered_map<uint64_t, Place> places_;  // by the list of frames
  std::shared_ptr<Stacks> stacks_ = std::make_shared<Stacks>();
  std::map<int64_t, std::unordered_map<std::string, uint32_t>> numbers_;
};

}  // namespace

Result<std::vector<MemoryView>> parse_memory_snapshot(const std::string& pickle) {
  const Result<PickleDocument> document = PickleDocument::parse(pickle, PickleFrames::kKeep);
  if (!document.ok()) {
    return Status::invalid_argument(
        fmt::format("neither a Spillway dump nor a PyTorch snapshot: {}", document.status().text()));
  }
  return MemorySnapshotReader(document.value()).read();
}

}  // namespace spillway
