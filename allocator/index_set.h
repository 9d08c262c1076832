// A set of small numbers that answers its least: a tree of bitmaps, 64 children to a word. Every operation
// looks at one word per level (three levels for a quarter million). Grows to the largest number inserted. Not
// thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway {

class IndexSet {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // Makes insert(index) need no memory. Throws bad_alloc.
  void reserve(uint32_t index) {
    // The top level is one word.
    if (levels_.empty()) levels_.emplace_back(1, 0);
    while (uint64_t{index} >> (6 * levels_.size()) != 0) {
      const bool any = levels_.back()[0] != 0;
      levels_.emplace_back(1, any ? 1 : 0);
    }
    for (std::vector<uint64_t>& words : levels_) {
      index /= 64;
      if (index >= words.size()) words.resize(index + 1, 0);
    }
  }
  void insert(uint32_t index) {
    reserve(index);
    for (std::vector<uint64_t>& words : levels_) {
      words[index / 64] |= uint64_t{1} << (index % 64);
      index /= 64;
    }
  }
  // The caller knows that it is in the set.
  void erase(uint32_t index) {
    for (std::vector<uint64_t>& words : levels_) {
      const uint32_t word = index / 64;
      words[word] &= ~(uint64_t{1} << (index % 64));
      if (words[word] != 0) return;
      index = word;
    }
  }
  uint32_t least() const {
    if (levels_.empty() || levels_.back()[0] == 0) return kNone;
    uint32_t index = 0;
    for (size_t level = levels_.size(); level-- > 0;) {
      index = index * 64 + static_cast<uint32_t>(std::countr_zero(levels_[level][index]));
    }
    return index;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;  // a bit of a level: a word of the one before it is not zero
};

}  // namespace spillway
