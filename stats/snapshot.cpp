// Names and nesting are those of torch.cuda.memory._snapshot(): torch/csrc/cuda/memory_snapshot.cpp of
// PyTorch, the keys in the order of its rows.
#include "stats/snapshot.h"

#include <algorithm>

#include "stats/pickle_writer.h"

namespace spillway {
namespace {

void write_no_frames(PickleWriter& out) {
  out.key("frames");
  out.begin_list();
  out.end_list();
}

void write_boolean(PickleWriter& out, const char* name, bool value) {
  out.key(name);
  out.boolean(value);
}

// Writes those of a stack, which its number in the dump names.
void write_frames(PickleWriter& out, const Dump& dump, uint32_t stack) {
  if (stack == 0) return write_no_frames(out);
  out.key("frames");
  out.begin_list();
  for (const StackFrame& frame : dump.stacks[stack - 1]) {
    out.begin_dict();
    out.item("name", frame.function);
    out.item("filename", frame.file);
    out.item("line", frame.line);
    out.end_dict();
  }
  out.end_list();
}

void write_block(PickleWriter& out, const Dump& dump, const BlockRow& block) {
  out.begin_dict();
  out.item("address", block.address);
  out.item("size", block.bytes);
  out.item("requested_size", block.requested_bytes);
  out.item("state", block_state_name(block.kind));
  write_frames(out, dump, block.stack);
  out.end_dict();
}

void write_segment(PickleWriter& out, const Dump& dump, int device, const SegmentRow& segment) {
  out.begin_dict();
  out.item("device", int64_t{device});
  out.item("address", segment.address);
  out.item("total_size", segment.total_bytes);
  out.item("allocated_size", segment.allocated_bytes);
  out.item("active_size", segment.active_bytes);
  out.item("requested_size", segment.requested_bytes);
  out.item("stream", segment.stream);
  // Pages hold small and large blocks side by side.
  out.item("segment_type", "large");
  out.key("segment_pool_id");
  out.begin_tuple();
  out.unsigned_integer(segment.pool_first);
  out.unsigned_integer(segment.pool_second);
  out.end_tuple();
  write_boolean(out, "is_expandable", false);
  write_no_frames(out);
  out.key("blocks");
  out.begin_list();
  for (const BlockRow& block : segment.blocks) write_block(out, dump, block);
  out.end_list();
  out.end_dict();
}

void write_segments(PickleWriter& out, const Dump& dump) {
  struct Row {
    int device;
    const SegmentRow* segment;
  };
  std::vector<Row> rows;
  for (const DumpDevice& device : dump.devices) {
    for (const SegmentRow& segment : device.segments) rows.push_back({device.ordinal, &segment});
  }
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return a.segment->address < b.segment->address; });
  out.key("segments");
  out.begin_list();
  for (const Row& row : rows) write_segment(out, dump, row.device, *row.segment);
  out.end_list();
}

// One list of events for each device, by its number.
void write_empty_traces(PickleWriter& out, const Dump& dump) {
  int devices = 0;
  for (const DumpDevice& device : dump.devices) devices = std::max(devices, device.ordinal + 1);
  out.key("device_traces");
  out.begin_list();
  for (int i = 0; i < devices; ++i) {
    out.begin_list();
    out.end_list();
  }
  out.end_list();
}

void write_settings(PickleWriter& out, const Dump& dump) {
  std::string options;
  for (const auto& [name, value] : dump.config) {
    if (!options.empty()) options += ",";
    options.append(name).append(":").append(value);
  }
  out.key("allocator_settings");
  out.begin_dict();
  out.item("PYTORCH_CUDA_ALLOC_CONF", "");
  out.item("SPILLWAY_CONF", options);
  out.item("max_split_size", int64_t{-1});
  out.key("garbage_collection_threshold");
  out.real(0);
  for (const char* name : {"expandable_segments", "release_lock_on_cudamalloc",
                           "pinned_use_cuda_host_register", "graph_capture_record_stream_reuse"}) {
    write_boolean(out, name, false);
  }
  out.item("pinned_num_register_threads", int64_t{1});
  out.key("roundup_power2_divisions");
  out.begin_dict();
  out.end_dict();
  out.end_dict();
}

}  // namespace

std::string snapshot_pickle(const Dump& dump) {
  std::string text;
  PickleWriter out(text);
  out.begin_dict();
  write_segments(out, dump);
  write_empty_traces(out, dump);
  write_settings(out, dump);
  out.key("external_annotations");
  out.begin_list();
  out.end_list();
  out.end_dict();
  out.finish();
  return text;
}

}  // namespace spillway
