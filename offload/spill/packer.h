// Packs what is spilled under one tag, where that pays: measured by ratio and speed for each piece. What does
// not pay is tried ever more rarely.
//
// Packing pays where it takes less time than the disk would for the bytes that it saves, or in any case where
// fewer bytes are what is wanted (a bound on what may be written). Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "offload/spill/codec.h"
#include "stats/lock.h"

namespace spillway {

class Packer {
 public:
  // Packing must make at least this of a piece: 10 % less.
  static constexpr double kLeastRatio = 1.1;
  // The most pieces in a row that are not tried.
  static constexpr uint32_t kMostSkips = 64;

  explicit Packer(Codec codec) : codec_(codec) {}

  struct Packed {
    Packing packing;
    size_t bytes = 0;
  };
  // The piece, packed into `out`, which is no larger than the piece; nothing where it does not pay.
  // `disk_bytes_per_ns` is how fast the disk takes what the threads that pack give it, per thread; 0: every
  // byte that is saved counts, whatever it takes.
  std::optional<Packed> pack(std::span<const std::byte> piece, std::span<std::byte> out,
                             double disk_bytes_per_ns);

  // Pieces that were looked at.
  uint64_t trials() const;

 private:
  // The width of numbers in the piece, to judge by a part of it; nothing where no width is worth it.
  std::optional<uint8_t> find_width(std::span<const std::byte> piece, std::span<std::byte> out) const;
  bool may_try();
  void note(bool pays);

  const Codec codec_;
  mutable BlockingMutex mutex_;
  uint32_t skips_ SPW_GUARDED_BY(mutex_) = 0;  // pieces left that are not tried
  uint32_t failures_ SPW_GUARDED_BY(mutex_) = 0;
  uint64_t trials_ SPW_GUARDED_BY(mutex_) = 0;
};

}  // namespace spillway
