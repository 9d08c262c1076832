// A block of device memory that may be somewhere else: where its bytes are, and which changes of that are
// legal. One rule above all: a copy is dropped only after the next one is complete and verified.
//
//   kResident  -> kEvicting  -> kHost or kDisk  failure: kResident, the device's copy was never given up
//   kHost      -> kWriting   -> kDisk           failure: kHost
//   kDisk      -> kReading   -> kHost           failure: kDisk; kPoisoned where the bytes cannot be read
//   kHost      -> kRestoring -> kResident       failure: kHost
//   kDisk      -> kRestoring -> kResident       failure: kDisk, or kPoisoned
//   kResident  -> kDiscarded                    what the program said it does not need
//   kPoisoned  -> kDiscarded                    what is lost and nobody has any more
//   kDiscarded -> kRestoring -> kResident       failure: kDiscarded
//
// A block that is in a state ending in -ing has exactly one operation in flight. Plain data; whoever owns a
// block guards it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "driver/status.h"
#include "offload/spill/codec.h"

namespace spillway {

enum class SpillState : uint8_t {
  kResident,
  kEvicting,
  kHost,
  kWriting,
  kDisk,
  kReading,
  kRestoring,
  kDiscarded,
  kPoisoned,
};
const char* name_of(SpillState state);

// The unit of the disk tier: what is written, verified and replaced as one.
inline constexpr size_t kPieceBytes = size_t{2} << 20;
inline constexpr size_t kChecksumBytes = size_t{1} << 20;

// Says where the bytes of a piece are in the file, and the XXH3 of each MiB that was written.
struct DiskPiece {
  static constexpr uint64_t kNowhere = ~uint64_t{0};

  uint64_t offset = kNowhere;
  uint32_t planned_bytes = 0;  // reserved to be written, and neither written nor given up yet
  bool is_zero = false;        // nothing was written: every byte is 0
  bool is_lost = false;        // its bytes cannot be read any more
  Packing packing;             // of what was written
  uint32_t packed_bytes = 0;   // that were written; 0: all of them, as they are
  std::array<uint64_t, kPieceBytes / kChecksumBytes> checksums{};
};

// The bytes of a block outside of the device: in pinned host memory, in the file, or in both.
struct SpilledBytes {
  std::byte* host = nullptr;
  std::vector<DiskPiece> pieces;
};

inline size_t piece_count(uint64_t bytes) {
  return static_cast<size_t>((bytes + kPieceBytes - 1) / kPieceBytes);
}

class SpillBlock {
 public:
  explicit SpillBlock(uint64_t size, SpillState first = SpillState::kResident) : bytes(size), state_(first) {}

  SpillState state() const { return state_; }
  // Errors: internal, for a change that the table above does not have; the block is as it was then.
  Status go(SpillState to);
  // Keeps the first `kept` bytes, whole pieces; the rest is the answer's. Nothing is in flight.
  SpillBlock split(uint64_t kept);

  uint64_t bytes;
  SpilledBytes spilled;

 private:
  SpillState state_;
};

}  // namespace spillway
