#include "offload/spill/region_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace spillway {

RegionUsage& RegionUsage::operator+=(const RegionUsage& other) {
  device_bytes += other.device_bytes;
  host_bytes += other.host_bytes;
  disk_bytes += other.disk_bytes;
  discarded_bytes += other.discarded_bytes;
  lost_bytes += other.lost_bytes;
  stuck_bytes += other.stuck_bytes;
  return *this;
}

RegionMemory::~RegionMemory() {
  for (const auto& [va, segment] : segments_) mover_.drop(segment->block);
}

// ---- Segments

std::vector<DeviceBytes> RegionMemory::device_bytes(const std::vector<Segment*>& segments) {
  std::vector<DeviceBytes> blocks;
  for (Segment* segment : segments) blocks.push_back({segment->va, &segment->block});
  return blocks;
}

void RegionMemory::cut(uint64_t va) {
  auto after = segments_.lower_bound(va);
  if (after == segments_.begin()) return;
  Segment& before = *std::prev(after)->second;
  if (before.end_va() <= va) return;
  // Its place is made first: where host memory runs out, the segment stays whole.
  std::unique_ptr<Segment>& rest = segments_[va];
  try {
    rest = std::make_unique<Segment>(va, before.block.split(va - before.va));
  } catch (const std::bad_alloc&) {
    segments_.erase(va);
    throw;
  }
}

std::vector<RegionMemory::Segment*> RegionMemory::cut_out(const PageRange& range) {
  cut(range.va);
  cut(range.end_va());
  std::vector<Segment*> inside;
  for (auto at = segments_.lower_bound(range.va); at != segments_.end() && at->first < range.end_va(); ++at)
    inside.push_back(at->second.get());
  return inside;
}

template <typename Visit>
void RegionMemory::for_each_in(const Ranges& ranges, Visit visit) const {
  const Lock lock(mutex_);
  for (const PageRange& range : ranges) {
    // A range begins where a segment does, or where what was there is gone.
    for (auto at = segments_.lower_bound(range.va); at != segments_.end() && at->first < range.end_va(); ++at)
      visit(*at->second);
  }
}

std::vector<std::unique_ptr<RegionMemory::Segment>> RegionMemory::take_out(const PageRange& range) {
  std::vector<std::unique_ptr<Segment>> gone;
  const Lock lock(mutex_);
  const std::vector<Segment*> inside = cut_out(range);
  gone.reserve(inside.size());
  for (const Segment* segment : inside) {
    const auto found = segments_.find(segment->va);
    gone.push_back(std::move(found->second));
    segments_.erase(found);
  }
  return gone;
}

void RegionMemory::remove(const PageRange& range) {
  const Lock writing(writing_down_);
  for (const std::unique_ptr<Segment>& segment : take_out(range)) mover_.drop(segment->block);
}

void RegionMemory::give_up(const PageRange& range) {
  (void)caught([&]() -> Status {
    remove(range);
    return {};
  });
}

// ---- Out

Status RegionMemory::copy_all(const std::vector<DeviceBytes>& blocks, SpillTo to, Packer* packer,
                              const BlockMover::MakeRoom& make_room) {
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

Status RegionMemory::copy_out(const Ranges& ranges, SpillTo to, Packer* packer,
                              const BlockMover::MakeRoom& make_room) {
  Segments made;
  std::vector<Segment*> segments;
  for (const PageRange& range : ranges) {
    remove(range);  // of others that lay there, what could not be given up for want of host memory
    for (uint64_t va = range.va; va < range.end_va(); va += kMostSegmentBytes) {
      const uint64_t bytes = std::min(kMostSegmentBytes, range.end_va() - va);
      segments.push_back((made[va] = std::make_unique<Segment>(va, SpillBlock(bytes))).get());
    }
  }
  if (to != SpillTo::kNowhere) {
    for (Segment* segment : segments) (void)segment->block.go(SpillState::kEvicting);
    Status status = caught([&] { return copy_all(device_bytes(segments), to, packer, make_room); });
    if (!status.ok()) return status;
  }
  for (Segment* segment : segments) {
    const SpillState state = to == SpillTo::kNowhere                  ? SpillState::kDiscarded
                             : segment->block.spilled.host != nullptr ? SpillState::kHost
                                                                      : SpillState::kDisk;
    if (Status status = segment->block.go(state); !status.ok()) return status;
  }
  const Lock lock(mutex_);
  segments_.merge(made);
  return {};
}

// ---- Back

void RegionMemory::poison(const std::vector<Segment*>& segments) {
  Ranges lost;
  for (const Segment* segment : segments) {
    for (size_t i = 0; i < segment->block.spilled.pieces.size(); ++i) {
      if (segment->block.spilled.pieces[i].is_lost)
        lost.push_back({segment->va + i * kPieceBytes, kPieceBytes});
    }
  }
  const Lock lock(mutex_);
  for (const PageRange& range : lost) {
    for (Segment* part : cut_out(range)) {
      (void)part->block.go(SpillState::kRestoring);
      (void)part->block.go(SpillState::kPoisoned);
    }
  }
}

Status RegionMemory::copy_back(const Ranges& ranges, const Urgency& urgency, bool* is_settled) {
  std::vector<Segment*> segments;
  {
    const Lock lock(mutex_);
    for (const PageRange& range : ranges) {
      const std::vector<Segment*> inside = cut_out(range);
      segments.insert(segments.end(), inside.begin(), inside.end());
    }
  }
  std::vector<Segment*> spilled;
  std::vector<SpillState> states;
  for (Segment* segment : segments) {
    const SpillState state = segment->block.state();
    if (state == SpillState::kPoisoned) return Status::data_lost("they were found damaged before");
    states.push_back(state);
    if (state != SpillState::kDiscarded) spilled.push_back(segment);
  }
  for (Segment* segment : segments) (void)segment->block.go(SpillState::kRestoring);
  Status status = caught([&] { return mover_.copy_back(device_bytes(spilled), urgency); });
  if (!status.ok()) {
    *is_settled = copies_.drain_in().ok();
    for (size_t i = 0; i < segments.size(); ++i) (void)segments[i]->block.go(states[i]);
    poison(spilled);
    return status;
  }
  for (Segment* segment : segments) {
    mover_.drop(segment->block);
    const Lock lock(mutex_);
    segments_.erase(segment->va);
  }
  return {};
}

// ---- On to the disk

Status RegionMemory::write_down(Segment& segment, Packer* packer) {
  SpillBlock& block = segment.block;
  if (Status status = block.go(SpillState::kWriting); !status.ok()) return status;
  Status status = mover_.write_down(block, packer);
  if (Status back = block.go(status.ok() ? SpillState::kDisk : SpillState::kHost); !back.ok()) return back;
  if (status.ok()) mover_.drop_host(block);
  return status;
}

Status RegionMemory::write_down(const Ranges& ranges, Packer* packer) {
  for (uint64_t from = 0;;) {
    const Lock writing(writing_down_);
    Segment* next = nullptr;
    for_each_in(ranges, [&](Segment& segment) {
      if (next == nullptr && segment.va >= from && segment.block.state() == SpillState::kHost)
        next = &segment;
    });
    if (next == nullptr) return {};
    from = next->va + 1;
    if (Status status = write_down(*next, packer); !status.ok()) return status;
  }
}

// ---- To look at

Status RegionMemory::read_part(Segment& segment, uint64_t offset, uint64_t bytes, std::byte* out,
                               const Urgency& urgency) {
  switch (segment.block.state()) {
    case SpillState::kHost:
      std::memcpy(out, segment.block.spilled.host + offset, bytes);
      return {};
    case SpillState::kDisk:
      break;
    case SpillState::kDiscarded:
      return Status::invalid_state(fmt::format("the bytes at {:#x} were not kept", segment.va + offset));
    default:
      return Status::data_lost(
          fmt::format("the bytes at {:#x} cannot be read any more", segment.va + offset));
  }
  const auto free_it = [](std::byte* buffer) {
    ::operator delete[](buffer, std::align_val_t(DiskTier::kAlignment));
  };
  const std::unique_ptr<std::byte[], decltype(free_it)> buffer(
      new (std::align_val_t(DiskTier::kAlignment)) std::byte[BlockMover::slot_bytes(segment.block)], free_it);
  if (Status status = mover_.read_up(segment.block, buffer.get(), urgency); !status.ok()) return status;
  std::memcpy(out, buffer.get() + offset, bytes);
  return {};
}

Status RegionMemory::read(uint64_t va, uint64_t bytes, std::byte* out, const Urgency& urgency) {
  const uint64_t end = va + bytes;
  while (va < end) {
    // Nothing that is read is given up meanwhile.
    const Lock writing(writing_down_);
    Segment* segment = nullptr;
    {
      const Lock lock(mutex_);
      const auto after = segments_.upper_bound(va);
      if (after != segments_.begin()) segment = std::prev(after)->second.get();
    }
    if (segment == nullptr || segment->end_va() <= va)
      return Status::invalid_argument(fmt::format("the bytes at {:#x} are none that are elsewhere", va));
    const uint64_t part = std::min(end, segment->end_va()) - va;
    if (Status status = read_part(*segment, va - segment->va, part, out, urgency); !status.ok())
      return status;
    va += part;
    out += part;
  }
  return {};
}

// ---- The rest

RegionUsage RegionMemory::usage(const Ranges& ranges) const {
  RegionUsage usage;
  for_each_in(ranges, [&](const Segment& segment) {
    const uint64_t bytes = segment.block.bytes;
    switch (segment.block.state()) {
      case SpillState::kHost:
      case SpillState::kWriting:
        usage.host_bytes += bytes;
        return;
      case SpillState::kDisk:
      case SpillState::kReading:
        usage.disk_bytes += bytes;
        return;
      case SpillState::kDiscarded:
        usage.discarded_bytes += bytes;
        return;
      case SpillState::kPoisoned:
        usage.lost_bytes += bytes;
        return;
      case SpillState::kResident:
      case SpillState::kEvicting:
      case SpillState::kRestoring:
        usage.device_bytes += bytes;
        return;
    }
  });
  return usage;
}

RegionMemory::Ranges RegionMemory::lost(const Ranges& ranges) const {
  Ranges found;
  for_each_in(ranges, [&](const Segment& segment) {
    if (segment.block.state() == SpillState::kPoisoned) found.push_back({segment.va, segment.block.bytes});
  });
  return found;
}

}  // namespace spillway
