#include "offload/spill/block_mover.h"

#include <algorithm>
#include <utility>

namespace spillway {
namespace {

static_assert(Staging::kBufferBytes == CopyStreams::kPartBytes);

IoPriority priority_of(const Urgency& urgency) {
  return urgency.is_waited_for() ? IoPriority::kDemand : IoPriority::kPrefetch;
}

}  // namespace

// Holds what passes through one buffer: pieces of one block that lie side by side.
struct BlockMover::Chunk {
  CUdeviceptr va;
  SpillBlock* block;
  size_t first_piece;
  size_t bytes;

  size_t pieces() const { return piece_count(bytes); }
  DiskPiece& piece(size_t i) const { return block->spilled.pieces[first_piece + i]; }
  std::span<std::byte> part(std::byte* memory, size_t i) const {
    const size_t begin = i * kPieceBytes;
    return {memory + begin, std::min(kPieceBytes, bytes - begin)};
  }
};

std::vector<BlockMover::Chunk> BlockMover::divide(std::span<const DeviceBytes> blocks) {
  std::vector<Chunk> chunks;
  for (const DeviceBytes& each : blocks) {
    for (uint64_t at = 0; at < each.block->bytes; at += Staging::kBufferBytes) {
      chunks.push_back(
          {each.va + at, each.block, static_cast<size_t>(at / kPieceBytes),
           static_cast<size_t>(std::min<uint64_t>(Staging::kBufferBytes, each.block->bytes - at))});
    }
  }
  return chunks;
}

// ---- Host

void BlockMover::drop_host(SpillBlock& block) {
  if (block.spilled.host == nullptr) return;
  pinned_.give_back(std::exchange(block.spilled.host, nullptr), slot_bytes(block));
}

void BlockMover::drop(SpillBlock& block) {
  drop_host(block);
  disk_.release(block.spilled.pieces);
}

Status BlockMover::copy_to_host(std::span<const DeviceBytes> blocks, const MakeRoom& make_room,
                                size_t* copied) {
  *copied = 0;
  Status status = caught([&]() -> Status {
    for (const DeviceBytes& each : blocks) {
      const uint64_t bytes = slot_bytes(*each.block);
      Result<void*> slot = pinned_.allocate(bytes, DiskTier::kAlignment);
      // No room that others leave is enough for what is larger than all.
      while (!slot.ok() && bytes <= pinned_.most_bytes() && make_room != nullptr && make_room())
        slot = pinned_.allocate(bytes, DiskTier::kAlignment);
      if (!slot.ok()) break;
      each.block->spilled.host = static_cast<std::byte*>(slot.value());
      ++*copied;
      const CopyStreams::Copy copy{each.block->spilled.host, each.va, each.block->bytes};
      if (Status moved = copies_.move_out({&copy, 1}); !moved.ok()) return moved;
    }
    return {};
  });
  Status drained = *copied > 0 ? copies_.drain_out() : Status();
  if (status.ok() && drained.ok()) return {};
  for (const DeviceBytes& each : blocks.first(std::exchange(*copied, 0))) {
    // A slot that the device may still write to is never used again.
    if (!drained.ok()) each.block->spilled.host = nullptr;
    drop_host(*each.block);
  }
  return status.ok() ? std::move(drained) : std::move(status);
}

// ---- Disk

// One that spills once will again: a whole ring is kept, and registered with the disk's engine. A second one,
// of a move at the same time, is not.
Result<std::unique_ptr<Staging>> BlockMover::take_staging(uint64_t bytes) {
  {
    const Lock lock(mutex_);
    if (spare_ != nullptr && spare_->settle()) return std::move(spare_);
  }
  const DiskTierOptions& options = disk_.options();
  Result<std::unique_ptr<Staging>> made =
      Staging::create(copies_, pinned_, bytes, options.buffers, options.pins_buffers);
  if (!made.ok() || made.value()->size() < options.buffers) return made;
  Staging& staging = *made.value();
  {
    const Lock lock(mutex_);
    if (registered_ != nullptr) return made;
    registered_ = &staging;
  }
  // Some of them may be registered where the host's memory ran out, so that it is kept then too.
  (void)caught([&]() -> Status {
    for (size_t i = 0; i < staging.size(); ++i)
      disk_.use_memory({staging.at(i).memory, Staging::kBufferBytes});
    return {};
  });
  return made;
}

void BlockMover::give_back(std::unique_ptr<Staging> staging) {
  const Lock lock(mutex_);
  if (staging.get() == registered_) spare_ = std::move(staging);
}

void BlockMover::give_up_staging() {
  const Lock lock(mutex_);
  if (spare_ == nullptr || !spare_->settle()) return;
  for (size_t i = 0; i < spare_->size(); ++i)
    if (!disk_.forget_memory({spare_->at(i).memory, Staging::kBufferBytes})) return;
  registered_ = nullptr;
  spare_.reset();
}

Status BlockMover::reserve_all(std::span<const DeviceBytes> blocks) {
  for (const DeviceBytes& each : blocks) {
    if (Status status = disk_.reserve(each.block->bytes, &each.block->spilled.pieces); !status.ok())
      return status;
  }
  return {};
}

Status BlockMover::copy_to_disk(std::span<const DeviceBytes> blocks, Packer* packer) {
  Status status = caught([&] {
    Status reserved = reserve_all(blocks);
    return reserved.ok() ? stream_to_disk(divide(blocks), packer) : std::move(reserved);
  });
  if (!status.ok()) {
    for (const DeviceBytes& each : blocks) disk_.release(each.block->spilled.pieces);
  }
  return status;
}

Status BlockMover::stream_to_disk(std::span<const Chunk> chunks, Packer* packer) {
  if (chunks.empty()) return {};
  Result<std::unique_ptr<Staging>> made = take_staging(chunks.size() * Staging::kBufferBytes);
  if (!made.ok()) return made.take_status();
  Staging& staging = *made.value();
  const uint64_t sync_failures = disk_.sync_failures();
  const auto pass_on = [&](size_t i) -> Status {
    Staging::Buffer& buffer = staging.at(i);
    if (Status status = staging.wait_for_copy(buffer); !status.ok()) return status;
    const Chunk& chunk = chunks[i];
    buffer.disk.begin(chunk.pieces());
    for (size_t piece = 0; piece < chunk.pieces(); ++piece) {
      disk_.write(chunk.part(buffer.memory, piece), chunk.piece(piece), IoPriority::kEvict, packer,
                  [&buffer](Status status) { buffer.disk.end(std::move(status)); });
    }
    return {};
  };
  // So many buffers are being filled; the others are being written.
  const size_t ahead = (staging.size() + 1) / 2;
  const auto fill = [&](size_t i) -> Status {
    Staging::Buffer& buffer = staging.at(i);
    if (Status status = buffer.disk.wait(); !status.ok()) return status;
    const CopyStreams::Copy copy{buffer.memory, chunks[i].va, chunks[i].bytes};
    Status status = caught([&] { return copies_.move_out({&copy, 1}); });
    Status marked = staging.mark_copy(buffer, copies_.out());
    return status.ok() ? std::move(marked) : std::move(status);
  };
  Status status;
  for (size_t i = 0; i < chunks.size() + ahead && status.ok(); ++i) {
    status = caught([&]() -> Status {
      Status filled = i < chunks.size() ? fill(i) : Status();
      if (!filled.ok() || i + 1 < ahead || i + 1 - ahead >= chunks.size()) return filled;
      return pass_on(i + 1 - ahead);
    });
  }
  for (size_t i = 0; i < staging.size(); ++i) {
    Status written = staging.at(i).disk.wait();
    if (status.ok()) status = std::move(written);
  }
  // The blocks stay where they are, for the program to use: no copy may still read them.
  if (!status.ok()) (void)copies_.drain_out();
  give_back(std::move(made.value()));
  return status.ok() ? disk_.sync(sync_failures) : std::move(status);
}

Status BlockMover::write_down(SpillBlock& block, Packer* packer) {
  Status reserved = caught([&] { return disk_.reserve(block.bytes, &block.spilled.pieces); });
  if (!reserved.ok()) return reserved;
  const uint64_t sync_failures = disk_.sync_failures();
  DiskWork work;
  work.begin(block.spilled.pieces.size());
  for (size_t i = 0; i < block.spilled.pieces.size(); ++i) {
    const size_t begin = i * kPieceBytes;
    disk_.write({block.spilled.host + begin, std::min<size_t>(kPieceBytes, block.bytes - begin)},
                block.spilled.pieces[i], IoPriority::kWriteBehind, packer,
                [&work](Status status) { work.end(std::move(status)); });
  }
  Status status = work.wait();
  if (status.ok()) status = caught([&] { return disk_.sync(sync_failures); });
  if (!status.ok()) disk_.release(block.spilled.pieces);
  return status;
}

Status BlockMover::read_up(SpillBlock& block, std::byte* host, const Urgency& urgency) {
  const auto part = [&](size_t i) {
    const size_t begin = i * kPieceBytes;
    return std::span<std::byte>(host + begin, std::min<size_t>(kPieceBytes, block.bytes - begin));
  };
  DiskWork work;
  work.begin(block.spilled.pieces.size());
  for (size_t i = 0; i < block.spilled.pieces.size(); ++i) {
    disk_.read(part(i), block.spilled.pieces[i], priority_of(urgency),
               [&work](Status status) { work.end(std::move(status)); });
  }
  return work.wait();
}

// ---- Back

Status BlockMover::stream_from_disk(std::span<const Chunk> chunks, const Urgency& urgency) {
  if (chunks.empty()) return {};
  Result<std::unique_ptr<Staging>> made = take_staging(chunks.size() * Staging::kBufferBytes);
  if (!made.ok()) return made.take_status();
  Staging& staging = *made.value();
  const auto begin_reading = [&](size_t i) -> Status {
    Staging::Buffer& buffer = staging.at(i);
    if (Status status = staging.wait_for_copy(buffer); !status.ok()) return status;
    const Chunk& chunk = chunks[i];
    buffer.disk.begin(chunk.pieces());
    for (size_t i_piece = 0; i_piece < chunk.pieces(); ++i_piece) {
      DiskPiece& piece = chunk.piece(i_piece);
      // Two references: a larger closure would need host memory, which may have run out.
      disk_.read(chunk.part(buffer.memory, i_piece), piece, priority_of(urgency),
                 [&buffer, &piece](Status status) {
                   if (status.code() == SPW_ERROR_DATA_LOST) piece.is_lost = true;
                   buffer.disk.end(std::move(status));
                 });
    }
    return {};
  };
  const auto pass_on = [&](size_t i) -> Status {
    Staging::Buffer& buffer = staging.at(i);
    const Chunk& chunk = chunks[i];
    Status status = buffer.disk.wait();
    if (!status.ok()) return status;
    const CopyStreams::Copy copy{buffer.memory, chunk.va, chunk.bytes};
    status = caught([&] { return copies_.move_in({&copy, 1}, urgency); });
    Status marked = staging.mark_copy(buffer, copies_.in());
    return status.ok() ? std::move(marked) : std::move(status);
  };
  const size_t ahead = staging.size();
  Status status;
  for (size_t i = 0; i < chunks.size() + ahead && status.ok(); ++i) {
    status = caught([&]() -> Status {
      // The buffer that is about to be filled is the one whose chunk is passed on first.
      Status passed = i >= ahead ? pass_on(i - ahead) : Status();
      return passed.ok() && i < chunks.size() ? begin_reading(i) : std::move(passed);
    });
  }
  // After a failure others are still being read, by the pieces of blocks that may be given up next.
  for (size_t i = 0; i < staging.size(); ++i) (void)staging.at(i).disk.wait();
  Status drained = copies_.drain_in();
  give_back(std::move(made.value()));
  return status.ok() ? std::move(drained) : std::move(status);
}

Status BlockMover::copy_back(std::span<const DeviceBytes> blocks, const Urgency& urgency) {
  const CopyStreams::Inbound inbound(copies_, urgency);
  std::vector<DeviceBytes> on_disk;
  std::vector<CopyStreams::Copy> in_host;
  for (const DeviceBytes& each : blocks) {
    if (each.block->spilled.host == nullptr) {
      on_disk.push_back(each);
    } else {
      in_host.push_back({each.block->spilled.host, each.va, each.block->bytes});
    }
  }
  Status status = caught([&] {
    Status moved = copies_.move_in(in_host, urgency);
    return moved.ok() ? stream_from_disk(divide(on_disk), urgency) : std::move(moved);
  });
  if (in_host.empty()) return status;
  Status drained = copies_.drain_in();
  return status.ok() ? std::move(drained) : std::move(status);
}

}  // namespace spillway
