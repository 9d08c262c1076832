#include "estimator/torch_allocator.h"

#include <algorithm>

namespace spillway::estimator {
namespace {

constexpr int64_t kRounding = 512;
constexpr int64_t kMega = 1 << 20;
constexpr int64_t kSmallSegment = 2 * kMega;
constexpr int64_t kLargeSegment = 20 * kMega;
constexpr int64_t kOwnSegment = 10 * kMega;  // requests from here on get a segment of their own size
constexpr int64_t kOwnRounding = 2 * kMega;

int64_t rounded(int64_t bytes, int64_t to) {
  return (bytes + to - 1) / to * to;
}

int64_t segment_size(int64_t size) {
  if (size <= kMega) return kSmallSegment;
  return size < kOwnSegment ? kLargeSegment : rounded(size, kOwnRounding);
}

}  // namespace

size_t TorchAllocator::add_node(int64_t size, bool small) {
  size_t index = nodes_.size();
  if (unused_.empty()) {
    nodes_.emplace_back();
  } else {
    index = unused_.back();
    unused_.pop_back();
  }
  nodes_[index] = Node{};
  nodes_[index].size = size;
  nodes_[index].small = small;
  return index;
}

TorchAllocator::Block TorchAllocator::allocate(double bytes) {
  const int64_t size = std::max(kRounding, rounded(static_cast<int64_t>(bytes), kRounding));
  const bool small = size <= kMega;
  FreeBlocks& free = free_blocks(small);
  size_t index = kNone;
  if (const auto found = free.lower_bound({size, 0}); found != free.end()) {
    index = found->second;
    free.erase(found);
  } else {
    index = add_node(segment_size(size), small);
  }
  const int64_t rest = nodes_[index].size - size;
  if (small ? rest >= kRounding : rest > kMega) {
    const size_t tail = add_node(rest, small);
    Node& head = nodes_[index];
    nodes_[tail].before = index;
    nodes_[tail].after = head.after;
    if (head.after != kNone) nodes_[head.after].before = tail;
    head.after = tail;
    head.size = size;
    free.insert({rest, tail});
  }
  Node& node = nodes_[index];
  node.live = true;
  node.requested = bytes;
  excess_ += static_cast<double>(node.size) - bytes;
  return index;
}

// `second` becomes part of `first`; both are free.
size_t TorchAllocator::merged(size_t first, size_t second) {
  Node& head = nodes_[first];
  const Node& tail = nodes_[second];
  head.size += tail.size;
  head.after = tail.after;
  if (tail.after != kNone) nodes_[tail.after].before = first;
  unused_.push_back(second);
  return first;
}

void TorchAllocator::free(Block block) {
  FreeBlocks& free = free_blocks(nodes_[block].small);
  Node& node = nodes_[block];
  node.live = false;
  excess_ -= static_cast<double>(node.size) - node.requested;
  size_t index = block;
  if (const size_t after = node.after; after != kNone && !nodes_[after].live) {
    free.erase({nodes_[after].size, after});
    index = merged(index, after);
  }
  if (const size_t before = nodes_[index].before; before != kNone && !nodes_[before].live) {
    free.erase({nodes_[before].size, before});
    index = merged(before, index);
  }
  free.insert({nodes_[index].size, index});
}

}  // namespace spillway::estimator
