// The checksum of what is written to the disk: XXH3, 64 bits, with the widest instructions that the processor
// has. Its value is the same with all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway {

// Thread-safe. 70 GB/s with AVX2 from a cache and 32 GB/s from memory, 21 GB/s without (one core of an AMD
// EPYC).
uint64_t checksum(std::span<const std::byte> memory);

}  // namespace spillway
