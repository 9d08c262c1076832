// PyTorch's caching allocator reduced to sizes: which block serves a request, and how much larger than the
// request it is. Its counters count whole blocks, so what a block is larger by is part of every measured
// peak. Rules: c10/cuda/CUDACachingAllocator.cpp (kMinBlockSize, kSmallSize, kLargeBuffer, kRoundLarge,
// should_split).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace spillway::estimator {

class TorchAllocator {
 public:
  using Block = size_t;

  Block allocate(double bytes);
  void free(Block block);

  // Bytes of live blocks above what was asked for.
  double excess_bytes() const { return excess_; }

 private:
  struct Node {
    int64_t size = 0;
    double requested = 0;
    bool small = false;
    size_t before = kNone;  // neighbours in the segment
    size_t after = kNone;
    bool live = false;
  };
  using FreeBlocks = std::set<std::pair<int64_t, size_t>>;  // by size, then age

  static constexpr size_t kNone = ~size_t{0};

  size_t add_node(int64_t size, bool small);
  FreeBlocks& free_blocks(bool small) { return small ? small_ : large_; }
  size_t merged(size_t first, size_t second);

  std::vector<Node> nodes_;
  std::vector<size_t> unused_;
  FreeBlocks small_, large_;
  double excess_ = 0;
};

}  // namespace spillway::estimator
