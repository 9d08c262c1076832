#include "cli/report/read.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/trace/file.h"
#include "cli/trace/recording.h"

namespace spillway {
namespace {

// The number behind "rank" in a file's name.
std::optional<int64_t> rank_of_name(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  size_t at = name.find("rank");
  if (at == std::string_view::npos) return std::nullopt;
  at += 4;
  if (at < name.size() && (name[at] == '_' || name[at] == '-' || name[at] == '.')) ++at;
  int64_t rank = 0;
  const auto [end, code] = std::from_chars(name.data() + at, name.data() + name.size(), rank);
  return code == std::errc() && rank >= 0 ? std::optional(rank) : std::nullopt;
}

Status settle_one(SegmentView& segment) {
  const auto refused = [&](const BlockView& block, const char* why) {
    return Status::invalid_argument(
        fmt::format("the block at 0x{:x} of the segment at 0x{:x} {}", block.address, segment.address, why));
  };
  if (segment.address + segment.bytes < segment.address)
    return Status::invalid_argument(fmt::format("the segment at 0x{:x} has no end", segment.address));
  const auto by_address = [](const BlockView& a, const BlockView& b) { return a.address < b.address; };
  if (!std::is_sorted(segment.blocks.begin(), segment.blocks.end(), by_address))
    std::stable_sort(segment.blocks.begin(), segment.blocks.end(), by_address);
  std::vector<BlockView> blocks;
  blocks.reserve(segment.blocks.size());
  uint64_t at = segment.address;
  const uint64_t end = segment.address + segment.bytes;
  for (BlockView& block : segment.blocks) {
    if (block.address < at) return refused(block, "overlaps another, or begins before the segment");
    if (block.address > end || block.bytes > end - block.address)
      return refused(block, "ends after the segment");
    if (block.state == BlockState::kInactive) {
      block.requested_bytes = 0;
    } else if (block.requested_bytes > block.bytes) {
      return refused(block, "requested more than it has");
    }
    if (block.address > at) blocks.push_back({at, block.address - at, 0, BlockState::kInactive, 0});
    at = block.address + block.bytes;
    blocks.push_back(block);
  }
  if (at < end) blocks.push_back({at, end - at, 0, BlockState::kInactive, 0});
  segment.blocks = std::move(blocks);
  return {};
}

}  // namespace

Status settle(std::vector<SegmentView>& segments) {
  std::sort(segments.begin(), segments.end(),
            [](const SegmentView& a, const SegmentView& b) { return a.address < b.address; });
  uint64_t total = 0;
  uint64_t end = 0;
  for (SegmentView& segment : segments) {
    if (segment.address < end)
      return Status::invalid_argument(fmt::format("the segment at 0x{:x} overlaps another", segment.address));
    total += segment.bytes;
    if (segment.bytes > kMostViewBytes || total > kMostViewBytes)
      return Status::invalid_argument("the segments hold more than 2^48 bytes");
    if (Status status = settle_one(segment); !status.ok()) return status;
    end = segment.address + segment.bytes;
  }
  return {};
}

namespace {

// A trace file of Spillway's, as the snapshot that it converts to.
Result<std::vector<MemoryView>> read_trace_views(const std::string& path) {
  Result<Recording> recording = read_recording(path);
  if (!recording.ok()) return recording.take_status();
  Result<std::vector<MemoryView>> out = parse_memory_snapshot(to_snapshot(recording.value()));
  if (!out.ok()) return Status(out.status().code(), fmt::format("{}: {}", path, out.status().text()));
  for (MemoryView& view : out.value()) {
    view.is_snapshot = false;
    view.is_trace = true;
    view.process_id = recording->process_id;
    view.rank = recording->rank;
    if (!recording->missing.empty()) view.notes.push_back(recording->missing + "; what is before is shown");
    if (recording->dropped > 0)
      view.notes.push_back(fmt::format("{} records were lost while the program ran", recording->dropped));
  }
  return out;
}

}  // namespace

Result<std::vector<MemoryView>> parse_views(const std::string& data) {
  const size_t first = data.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return Status::invalid_argument("empty");
  if (data[first] == '{' || data[first] == '[') return parse_dump(data);
  return parse_memory_snapshot(data);
}

Result<std::vector<MemoryView>> read_views(const std::string& path) {
  Result<std::string> data = read_file(path);
  if (!data.ok()) return data.take_status();
  if (is_trace_file(data.value())) {
    data.value().clear();
    Result<std::vector<MemoryView>> traced = read_trace_views(path);
    if (!traced.ok()) return traced;
    for (MemoryView& view : traced.value()) view.source = path;
    return traced;
  }
  Result<std::vector<MemoryView>> out = parse_views(data.value());
  if (!out.ok()) return Status(out.status().code(), fmt::format("{}: {}", path, out.status().text()));
  for (MemoryView& view : out.value()) {
    view.source = path;
    if (!view.rank) view.rank = rank_of_name(path);
  }
  return out;
}

}  // namespace spillway
