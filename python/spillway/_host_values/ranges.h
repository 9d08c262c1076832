// A set of bytes: disjoint ranges of addresses, joined where they touch. Logarithmic in the number of ranges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace spillway::values {

class Ranges {
 public:
  void add(uint64_t begin, uint64_t end) {
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second >= begin) {
      --next;
      begin = next->first;
    }
    while (next != ranges_.end() && next->first <= end) {
      end = std::max(end, next->second);
      next = ranges_.erase(next);
    }
    ranges_.emplace_hint(next, begin, end);
  }

  bool overlaps(uint64_t begin, uint64_t end) const {
    const auto next = ranges_.lower_bound(begin);
    return (next != ranges_.end() && next->first < end) ||
           (next != ranges_.begin() && std::prev(next)->second > begin);
  }

  void remove(uint64_t begin, uint64_t end) {
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second > begin) {
      const auto before = std::prev(next);
      const uint64_t before_end = before->second;
      before->second = begin;
      if (before_end > end) {
        ranges_.emplace_hint(next, end, before_end);
        return;
      }
    }
    while (next != ranges_.end() && next->first < end) {
      const uint64_t left = next->second;
      next = ranges_.erase(next);
      if (left > end) ranges_.emplace_hint(next, end, left);
    }
  }

  bool covers(uint64_t begin, uint64_t end) const {
    const auto next = ranges_.upper_bound(begin);
    return next != ranges_.begin() && std::prev(next)->second >= end;
  }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // begin to end
};

}  // namespace spillway::values
