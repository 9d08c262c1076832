// Holds a number for each index, and finds the lowest index whose number is at least so large, in a time that
// grows with the logarithm of the indices. Numbers are 0 until they are set. Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway {

class MaxTree {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // Indices below `count` may be used from now on; those of before keep their numbers. Throws bad_alloc, with
  // nothing changed.
  void grow(uint32_t count) {
    if (count <= leaves_) return;
    const uint32_t leaves = std::bit_ceil(count);
    std::vector<uint16_t> bigger(size_t{2} * leaves, 0);
    for (uint32_t i = 0; i < leaves_; ++i) bigger[leaves + i] = nodes_[leaves_ + i];
    for (uint32_t node = leaves; --node > 0;) bigger[node] = larger(bigger, node);
    nodes_.swap(bigger);
    leaves_ = leaves;
  }
  void set(uint32_t index, uint16_t number) {
    uint32_t node = leaves_ + index;
    if (nodes_[node] == number) return;
    nodes_[node] = number;
    while (node > 1) {
      node /= 2;
      const uint16_t now = larger(nodes_, node);
      if (nodes_[node] == now) return;
      nodes_[node] = now;
    }
  }
  // The lowest index whose number is at least `least`, which is not 0; kNone without one.
  uint32_t find_lowest(uint16_t least) const {
    if (leaves_ == 0 || nodes_[1] < least) return kNone;
    uint32_t node = 1;
    while (node < leaves_) {
      node *= 2;
      node += nodes_[node] < least;
    }
    return node - leaves_;
  }

  size_t metadata_bytes() const { return nodes_.capacity() * sizeof(uint16_t); }

 private:
  static uint16_t larger(const std::vector<uint16_t>& nodes, uint32_t node) {
    const uint16_t left = nodes[size_t{2} * node];
    const uint16_t right = nodes[size_t{2} * node + 1];
    return left < right ? right : left;
  }

  std::vector<uint16_t> nodes_;  // 1 is the root, the children of n are 2n and 2n + 1, leaves come last
  uint32_t leaves_ = 0;          // a power of two, or none
};

}  // namespace spillway
