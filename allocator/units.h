// Units of the memory model and the pieces of arithmetic on them.
//
// A *quantum* is 512 B, the granularity of large blocks (PyTorch rounds to the same, c10 kMinBlockSize). A
// *page* is 2 MiB, the allocation granularity of cuMemCreate on every device that CUDA supports today; one
// of them is what physical memory comes in. A *granule* is 16 KiB: no two live blocks of the address map
// start inside one.
#pragma once

#include <cstdint>

namespace spillway {

constexpr uint64_t kQuantumBytes = 512;
constexpr uint64_t kPageBytes = uint64_t{2} << 20;
constexpr uint32_t kPageQuanta = kPageBytes / kQuantumBytes;
constexpr uint64_t kGranuleBytes = uint64_t{16} << 10;
constexpr uint64_t kSlabBytes = uint64_t{64} << 10;
constexpr uint32_t kSlabQuanta = kSlabBytes / kQuantumBytes;
// 1 TiB: no device has more; larger requests are refused before any arithmetic on them. Its quanta fit 32
// bits.
constexpr uint64_t kLargestRequestBytes = uint64_t{1} << 40;

using PageId = uint32_t;
constexpr PageId kNoPage = ~PageId{0};

constexpr uint64_t bytes_to_quanta(uint64_t bytes) {
  return (bytes + kQuantumBytes - 1) / kQuantumBytes;
}
constexpr uint64_t bytes_to_pages(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes;
}

}  // namespace spillway
