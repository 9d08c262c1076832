// Units of the memory model and the pieces of arithmetic on them.
//
// A *line* is 512 B, the granularity of large blocks (PyTorch rounds to the same, c10 kMinBlockSize). A
// *page* is 2 MiB, the allocation granularity of cuMemCreate on every device that CUDA supports today; an
// extent of one page is the unit of physical memory. A *unit* is 16 KiB: no two live blocks of the address
// map start inside one.
#pragma once

#include <cstdint>

namespace spillway {

constexpr uint64_t kLineBytes = 512;
constexpr uint64_t kPageBytes = uint64_t{2} << 20;
constexpr uint32_t kPageLines = kPageBytes / kLineBytes;
constexpr uint64_t kUnitBytes = uint64_t{16} << 10;
constexpr uint64_t kSlabBytes = uint64_t{64} << 10;
constexpr uint32_t kSlabLines = kSlabBytes / kLineBytes;
// 1 TiB: no device has more; larger requests are refused before any arithmetic on them. Lines of a request
// fit 32 bits.
constexpr uint64_t kLargestRequestBytes = uint64_t{1} << 40;

using PageId = uint32_t;
constexpr PageId kNoPage = ~PageId{0};

constexpr uint64_t bytes_to_lines(uint64_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes;
}
constexpr uint64_t bytes_to_pages(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes;
}

}  // namespace spillway
