#include "cli/report/history.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/report/read.h"

namespace spillway {
namespace {

using Kind = MemoryEvent::Kind;

// c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize, kSmallSize, kSmallBuffer.
constexpr uint64_t kGranule = 512;
constexpr uint64_t kLargestKeptRemainder = 1 << 20;
constexpr uint64_t kSmallSegment = 2 << 20;

void move(uint64_t& value, uint64_t bytes, bool add) {
  value = add ? value + bytes : value - bytes;
}

bool touches_segments(const MemoryEvent& event) {
  return event.kind == Kind::kSegmentAdd || event.kind == Kind::kSegmentRemove;
}

}  // namespace

Result<History> History::build(const MemoryView& view) {
  History out(view);
  out.find_start();
  if (!out.fits_) return Status::invalid_argument("the events do not fit the segments at the end");
  // A first run says whether the events fit.
  if (Status status = out.play([](int64_t, const Parts&) {}); !status.ok()) return status;
  return out;
}

// ---- Backwards

void History::find_start() {
  for (const SegmentView& segment : view_->segments) {
    segments_[segment.address] = {
        segment.bytes,     0, segment.stream, segment.pool_first, segment.pool_second, segment.small,
        segment.expandable};
    for (const BlockView& block : segment.blocks) {
      if (block.state == BlockState::kInactive) continue;
      blocks_[block.address] = {
          block.bytes, block.requested_bytes, segment.stream, block.site, block.state == BlockState::kPending,
          block.stack};
    }
  }
  const auto& events = view_->events;
  records_segments_ = std::any_of(events.begin(), events.end(), touches_segments) ||
                      std::all_of(events.begin(), events.end(), [&](const MemoryEvent& event) {
                        return event.kind != Kind::kAllocate || segment_of(event.address, nullptr) != nullptr;
                      });
  if (!records_segments_) segments_.clear();
  for (size_t i = events.size(); i-- > 0;) undo(i);
  size_first_blocks();
  first_segments_ = segments_;
  first_blocks_ = blocks_;
}

void History::undo(size_t index) {
  const MemoryEvent& event = view_->events[index];
  switch (event.kind) {
    case Kind::kAllocate: {
      const auto block = blocks_.find(event.address);
      if (block == blocks_.end()) break;
      if (block->second.bytes > 0) known_bytes_[index] = block->second.bytes;
      blocks_.erase(block);
      break;
    }
    case Kind::kFreeCompleted:
      blocks_[event.address] = {0, event.bytes, event.stream, event.site, true};
      break;
    case Kind::kFreeRequested:
      blocks_.try_emplace(event.address, Block{0, event.bytes, event.stream, event.site, true})
          .first->second.pending = false;
      break;
    case Kind::kSegmentAdd:
      carve(event.address, event.bytes);
      break;
    case Kind::kSegmentRemove:
      fits_ = fits_ && add_segment(event);
      break;
    case Kind::kOutOfMemory:
      break;
  }
}

// The end of a block bounds the one before it, so from the last to the first.
void History::size_first_blocks() {
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    Block& first = block->second;
    if (first.bytes == 0) first.bytes = block_bytes(block->first, first.requested_bytes);
    const bool placed = !records_segments_ || segment_of(block->first, nullptr) != nullptr;
    fits_ = fits_ && placed && first.bytes <= room(block->first) && first.requested_bytes <= first.bytes;
  }
}

// ---- Forwards

void History::begin() {
  segments_ = first_segments_;
  blocks_.clear();
  parts_ = {};
  for (const auto& [address, segment] : segments_) count(segment, true);
  for (const auto& [address, block] : first_blocks_) use(address, block, true);
  blocks_ = first_blocks_;
}

Status History::play(const Visit& visit) {
  begin();
  visit(-1, parts_);
  for (size_t i = 0; i < view_->events.size(); ++i) {
    if (!step(i)) {
      return Status::invalid_argument(fmt::format(
          "event {} (address 0x{:x}) does not fit the events before it or the segments at the end", i,
          view_->events[i].address));
    }
    visit(static_cast<int64_t>(i), parts_);
  }
  return {};
}

bool History::step(size_t index) {
  const MemoryEvent& event = view_->events[index];
  switch (event.kind) {
    case Kind::kAllocate:
      return allocate(index);
    case Kind::kFreeRequested:
      return request_free(event.address);
    case Kind::kFreeCompleted:
      return complete_free(event.address);
    case Kind::kSegmentAdd:
      return add_segment(event);
    case Kind::kSegmentRemove:
      return remove_segment(event);
    case Kind::kOutOfMemory:
      break;
  }
  return true;
}

bool History::allocate(size_t index) {
  const MemoryEvent& event = view_->events[index];
  const auto next = blocks_.lower_bound(event.address);
  if (next != blocks_.end() && next->first == event.address) return false;
  if (next != blocks_.begin()) {
    const auto before = std::prev(next);
    const uint64_t distance = event.address - before->first;
    if (before->second.bytes > distance) {
      // Allocators with finer granules than supposed: the neighbour shows where a block really ends.
      if (before->second.requested_bytes > distance) return false;
      use(before->first, before->second, false);
      before->second.bytes = distance;
      use(before->first, before->second, true);
    }
  }
  if (records_segments_ && segment_of(event.address, nullptr) == nullptr) return false;
  const auto known = known_bytes_.find(index);
  const uint64_t bytes =
      known != known_bytes_.end() ? known->second : block_bytes(event.address, event.bytes);
  if (bytes > room(event.address) || event.bytes > bytes) return false;
  if (parts_.active() + bytes > kMostViewBytes) return false;
  const Block block{bytes, event.bytes, event.stream, event.site, false, event.stack};
  use(event.address, block, true);
  blocks_.emplace(event.address, block);
  return true;
}

bool History::request_free(uint64_t address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || found->second.pending) return false;
  use(address, found->second, false);
  found->second.pending = true;
  use(address, found->second, true);
  return true;
}

// Some recorders write completed frees only.
bool History::complete_free(uint64_t address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return false;
  use(address, found->second, false);
  blocks_.erase(found);
  return true;
}

bool History::add_segment(const MemoryEvent& event) {
  const auto next = segments_.lower_bound(event.address);
  if (next != segments_.end() && next->first - event.address < event.bytes) return false;
  if (next != segments_.begin()) {
    const auto before = std::prev(next);
    if (event.address - before->first < before->second.bytes) return false;
  }
  insert_segment(event);
  return true;
}

bool History::remove_segment(const MemoryEvent& event) {
  uint64_t begin = 0;
  const Segment* segment = segment_of(event.address, &begin);
  if (segment == nullptr || event.bytes > segment->bytes - (event.address - begin)) return false;
  if (used_in(event.address, event.bytes) > 0) return false;
  carve(event.address, event.bytes);
  return true;
}

// ---- Segments

History::Segment History::described(const MemoryEvent& event) const {
  Segment out{event.bytes,     0, event.stream, 0, 0, !event.expandable && event.bytes == kSmallSegment,
              event.expandable};
  const auto last = std::lower_bound(
      view_->segments.begin(), view_->segments.end(), event.address,
      [](const SegmentView& segment, uint64_t address) { return segment.address < address; });
  if (last != view_->segments.end() && last->address == event.address && last->bytes == event.bytes) {
    out.pool_first = last->pool_first;
    out.pool_second = last->pool_second;
    out.small = last->small;
  }
  return out;
}

void History::insert_segment(const MemoryEvent& event) {
  uint64_t address = event.address;
  Segment segment = described(event);
  const auto joins = [&](const Segment& other) { return other.expandable && other.stream == segment.stream; };
  if (event.expandable) {
    auto next = segments_.lower_bound(address);
    if (next != segments_.end() && address + segment.bytes == next->first && joins(next->second)) {
      segment.bytes += next->second.bytes;
      count(next->second, false);
      next = segments_.erase(next);
    }
    if (next != segments_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.bytes == address && joins(before->second)) {
        address = before->first;
        segment.bytes += before->second.bytes;
        count(before->second, false);
        segments_.erase(before);
      }
    }
  }
  segment.used_bytes = used_in(address, segment.bytes);
  count(segment, true);
  segments_[address] = segment;
}

void History::carve(uint64_t address, uint64_t bytes) {
  auto at = segments_.upper_bound(address);
  if (at != segments_.begin()) --at;
  while (at != segments_.end() && at->first < address + bytes) {
    const uint64_t first = at->first;
    const Segment whole = at->second;
    const uint64_t end = first + whole.bytes;
    if (end <= address) {
      ++at;
      continue;
    }
    count(whole, false);
    at = segments_.erase(at);
    const auto keep = [&](uint64_t from, uint64_t to) {
      if (from >= to) return;
      Segment piece = whole;
      piece.bytes = to - from;
      piece.used_bytes = used_in(from, piece.bytes);
      count(piece, true);
      segments_[from] = piece;
    };
    keep(first, address);
    keep(address + bytes, end);
  }
}

const History::Segment* History::segment_of(uint64_t address, uint64_t* begin) const {
  auto at = segments_.upper_bound(address);
  if (at == segments_.begin()) return nullptr;
  --at;
  if (address - at->first >= at->second.bytes) return nullptr;
  if (begin != nullptr) *begin = at->first;
  return &at->second;
}

uint64_t History::used_in(uint64_t address, uint64_t bytes) const {
  uint64_t used = 0;
  for (auto at = blocks_.lower_bound(address); at != blocks_.end() && at->first - address < bytes; ++at)
    used += at->second.bytes;
  return used;
}

uint64_t History::room(uint64_t address) const {
  uint64_t begin = 0;
  const Segment* segment = segment_of(address, &begin);
  const auto next = blocks_.upper_bound(address);
  const uint64_t to_next = next == blocks_.end() ? UINT64_MAX : next->first - address;
  return segment == nullptr ? to_next : std::min(to_next, segment->bytes - (address - begin));
}

uint64_t History::block_bytes(uint64_t address, uint64_t requested) const {
  const uint64_t rounded = std::max(kGranule, (requested + kGranule - 1) / kGranule * kGranule);
  const uint64_t most = room(address);
  if (rounded >= most) return most;
  const Segment* segment = segment_of(address, nullptr);
  if (segment == nullptr || segment->small || segment->expandable) return rounded;
  return most - rounded > kLargestKeptRemainder ? rounded : most;
}

// ---- Sums

void History::use(uint64_t address, const Block& block, bool add) {
  move(block.pending ? parts_.pending : parts_.live, block.requested_bytes, add);
  move(parts_.rounding, block.bytes - block.requested_bytes, add);
  auto at = segments_.upper_bound(address);
  if (at == segments_.begin()) return;
  Segment& segment = std::prev(at)->second;
  if (address - std::prev(at)->first >= segment.bytes) return;
  count(segment, false);
  move(segment.used_bytes, block.bytes, add);
  count(segment, true);
}

void History::count(const Segment& segment, bool add) {
  move(segment.used_bytes > 0 ? parts_.inactive_split : parts_.cached, segment.bytes - segment.used_bytes,
       add);
}

std::vector<SegmentView> History::segments() const {
  std::vector<SegmentView> out;
  const auto view_of_block = [](uint64_t address, const Block& block) {
    return BlockView{address,
                     block.bytes,
                     block.requested_bytes,
                     block.pending ? BlockState::kPending : BlockState::kLive,
                     block.site,
                     block.stack};
  };
  if (!records_segments_) {
    for (const auto& [address, block] : blocks_)
      out.push_back(
          {address, block.bytes, block.stream, 0, 0, false, false, {view_of_block(address, block)}});
    return out;
  }
  for (const auto& [address, segment] : segments_) {
    SegmentView row{address,
                    segment.bytes,
                    segment.stream,
                    segment.pool_first,
                    segment.pool_second,
                    segment.small,
                    segment.expandable,
                    {}};
    uint64_t at = address;
    const auto fill_to = [&](uint64_t to) {
      if (at < to) row.blocks.push_back({at, to - at, 0, BlockState::kInactive, 0});
    };
    for (auto block = blocks_.lower_bound(address);
         block != blocks_.end() && block->first - address < segment.bytes; ++block) {
      fill_to(block->first);
      row.blocks.push_back(view_of_block(block->first, block->second));
      at = block->first + block->second.bytes;
    }
    fill_to(address + segment.bytes);
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace spillway
