#include "offload/spill/region_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace spillway {

// ---- Segments

Status RegionMemory::map(Segment& segment) {
  if (segment.range.is_full()) return {};
  Result<PhysicalHandle> handle = PhysicalHandle::create(lanes_.driver(), device_, segment.range.bytes());
  if (!handle.ok()) return handle.take_status();
  Status status = segment.range.append(handle.value());
  const std::vector<int> devices = devices_();
  if (status.ok()) {
    status = set_access(lanes_.driver(), segment.range.base(), segment.range.bytes(), devices.data(),
                        devices.size());
  }
  if (!status.ok()) (void)segment.range.unmap_all();
  return status;
}

void* RegionMemory::allocate(uint64_t bytes) {
  Result<MappedRange> range = MappedRange::reserve(lanes_.driver(), bytes);
  if (!range.ok()) return nullptr;
  const CUdeviceptr base = range->base();
  auto segment = std::make_unique<Segment>(std::move(range.value()), bytes);
  if (!map(*segment).ok()) return nullptr;
  const std::lock_guard lock(mutex_);
  segments_[base] = std::move(segment);
  return reinterpret_cast<void*>(base);
}

void RegionMemory::free(const SegmentMemory& memory) {
  std::unique_ptr<Segment> gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = segments_.find(memory.va());
    if (found == segments_.end()) return;
    gone = std::move(found->second);
    segments_.erase(found);
  }
  mover_.drop(gone->block);
}

RegionMemory::Segments RegionMemory::find(const std::vector<SegmentMemory>& memory) {
  const std::lock_guard lock(mutex_);
  Segments found;
  for (const SegmentMemory& each : memory) {
    if (const auto at = segments_.find(each.va()); at != segments_.end()) found.push_back(at->second.get());
  }
  return found;
}

std::vector<DeviceBytes> RegionMemory::device_bytes(const Segments& segments) {
  std::vector<DeviceBytes> blocks;
  for (Segment* segment : segments) blocks.push_back({segment->range.base(), &segment->block});
  return blocks;
}

Status RegionMemory::go(const Segments& segments, BlockPlace to) {
  for (Segment* segment : segments) {
    if (Status status = segment->block.go(to); !status.ok()) return status;
  }
  return {};
}

// ---- Out

Status RegionMemory::copy_out(const Segments& segments, SpillTo to, Packer* packer,
                              const BlockMover::MakeRoom& make_room) {
  const std::vector<DeviceBytes> blocks = device_bytes(segments);
  if (to == SpillTo::kDisk) return mover_.copy_to_disk(blocks, packer);
  size_t kept = 0;
  Status status = mover_.copy_to_host(blocks, make_room, &kept);
  if (!status.ok() || kept == blocks.size()) return status;
  // What host memory has no room for goes to the disk, and one more, for the memory that they pass through.
  if (kept > 0) mover_.drop_host(*blocks[--kept].block);
  status = mover_.copy_to_disk(std::span(blocks).subspan(kept), packer);
  if (status.ok()) return status;
  for (const DeviceBytes& each : blocks) mover_.drop_host(*each.block);
  if (status.code() != SPW_ERROR_UNSUPPORTED) return status;
  return Status::out_of_memory("host memory has no room for all of it (see pinned_limit), and " +
                               status.text());
}

Status RegionMemory::move_out(const std::vector<SegmentMemory>& memory, SpillTo to, Packer* packer,
                              const BlockMover::MakeRoom& make_room) {
  const Segments segments = find(memory);
  if (to != SpillTo::kNowhere) {
    if (Status status = go(segments, BlockPlace::kEvicting); !status.ok()) return status;
    Status status = caught([&] { return copy_out(segments, to, packer, make_room); });
    if (!status.ok()) {
      (void)go(segments, BlockPlace::kResident);
      return status;
    }
  }
  // Complete elsewhere: the device's memory may go.
  for (Segment* segment : segments) {
    const BlockPlace place = to == SpillTo::kNowhere                  ? BlockPlace::kDiscarded
                             : segment->block.spilled.host != nullptr ? BlockPlace::kHost
                                                                      : BlockPlace::kDisk;
    if (Status status = segment->block.go(place); !status.ok()) return status;
    (void)segment->range.unmap_all();
  }
  return {};
}

// ---- Back

Status RegionMemory::lost(const Segment& segment, const std::string& why) {
  const uint64_t begin = segment.range.base();
  return Status::data_lost(
      fmt::format("{} bytes from {:#x} to {:#x} were moved out and cannot be read any more: free what lies "
                  "there and bring the rest back, or release the region where it is{}{}",
                  segment.block.bytes, begin, begin + segment.block.bytes, why.empty() ? "" : "; ", why));
}

bool RegionMemory::discard_lost(const std::vector<SegmentMemory>& memory) {
  bool any = false;
  for (Segment* segment : find(memory)) {
    if (segment->block.place() != BlockPlace::kPoisoned) continue;
    mover_.drop(segment->block);
    any = segment->block.go(BlockPlace::kDiscarded).ok() || any;
  }
  return any;
}

Status RegionMemory::bring_back(const std::vector<SegmentMemory>& memory, const Urgency& urgency) {
  const Segments segments = find(memory);
  for (const Segment* segment : segments) {
    if (segment->block.place() == BlockPlace::kPoisoned) return lost(*segment, "");
  }
  Segments spilled;
  std::vector<BlockPlace> places;
  for (Segment* segment : segments) {
    places.push_back(segment->block.place());
    if (segment->block.place() != BlockPlace::kDiscarded) spilled.push_back(segment);
  }
  if (Status status = go(segments, BlockPlace::kRestoring); !status.ok()) return status;
  SpillBlock* lost_block = nullptr;
  Status status;
  for (size_t i = 0; i < segments.size() && status.ok(); ++i)
    status = caught([&] { return map(*segments[i]); });
  if (status.ok())
    status = caught([&] { return mover_.copy_back(device_bytes(spilled), urgency, &lost_block); });
  if (!status.ok()) {
    // Copies that are under way must not meet memory that is gone.
    const bool drained = lanes_.drain_in().ok();
    const Segment* lost_segment = nullptr;
    for (size_t i = 0; i < segments.size(); ++i) {
      if (drained) (void)segments[i]->range.unmap_all();
      const bool is_lost = &segments[i]->block == lost_block;
      (void)segments[i]->block.go(is_lost ? BlockPlace::kPoisoned : places[i]);
      if (is_lost) lost_segment = segments[i];
    }
    return lost_segment == nullptr ? std::move(status) : lost(*lost_segment, status.text());
  }
  for (Segment* segment : segments) {
    (void)segment->block.go(BlockPlace::kResident);
    mover_.drop(segment->block);
  }
  return {};
}

Status RegionMemory::write_down(const std::vector<SegmentMemory>& memory, Packer* packer) {
  for (Segment* segment : find(memory)) {
    if (segment->block.place() != BlockPlace::kHost) continue;
    if (Status status = segment->block.go(BlockPlace::kWriting); !status.ok()) return status;
    Status status = mover_.write_down(segment->block, packer);
    if (Status back = segment->block.go(status.ok() ? BlockPlace::kDisk : BlockPlace::kHost); !back.ok())
      return back;
    if (!status.ok()) return status;
    mover_.drop_host(segment->block);
  }
  return {};
}

// ---- The rest

Status RegionMemory::grant(int peer) {
  const std::lock_guard lock(mutex_);
  for (const auto& [base, segment] : segments_) {
    if (!segment->range.is_full()) continue;
    Status status = set_access(lanes_.driver(), base, segment->range.bytes(), peer);
    if (!status.ok()) return status;
  }
  return {};
}

RegionUsage RegionMemory::usage(const std::vector<SegmentMemory>& memory) const {
  const std::lock_guard lock(mutex_);
  RegionUsage usage;
  for (const SegmentMemory& each : memory) {
    const auto found = segments_.find(each.va());
    if (found == segments_.end()) continue;
    const Segment& segment = *found->second;
    const uint64_t bytes = segment.block.bytes;
    switch (segment.block.place()) {
      case BlockPlace::kHost:
      case BlockPlace::kWriting:
        usage.host_bytes += bytes;
        break;
      case BlockPlace::kDisk:
      case BlockPlace::kReading:
        usage.disk_bytes += bytes;
        break;
      case BlockPlace::kDiscarded:
        usage.discarded_bytes += bytes;
        break;
      case BlockPlace::kPoisoned:
        usage.lost_bytes += bytes;
        break;
      case BlockPlace::kResident:
      case BlockPlace::kEvicting:
      case BlockPlace::kRestoring:
        usage.device_bytes += bytes;
        continue;
    }
    if (segment.range.is_full()) usage.stuck_bytes += bytes;
  }
  return usage;
}

}  // namespace spillway
