// Lossless packing of tensors' bytes. The bytes of numbers are shuffled first, all first bytes, then all
// second ones and so on: signs and exponents repeat where they lie together. Why: docs/decisions/codecs.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway {

enum class Codec : uint8_t { kNone, kLz4, kZstd };

struct Packing {
  Codec codec = Codec::kNone;
  uint8_t width = 1;  // of a number, in bytes: 1, 2 or 4
};

// Packs `in` into `out`; how many bytes that took, 0 where they do not fit. Allocates as much as `in`.
size_t pack(Packing packing, std::span<const std::byte> in, std::span<std::byte> out);
// The way back: whether `in` is what pack() made of as many bytes as `out` has. Never writes beyond `out`,
// whatever `in` is.
bool unpack(Packing packing, std::span<const std::byte> in, std::span<std::byte> out);

}  // namespace spillway
