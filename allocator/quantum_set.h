// The free quanta of one partly used page: sorted, disjoint, non-adjacent intervals. Most pages have one or
// two, kept inside the object; more go to the heap. All bits zero is a valid empty set, so pages may live in
// zeroed memory; that memory's owner calls reset() before it goes. Operations are linear in the number of
// intervals. Not thread-safe.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "allocator/units.h"

namespace spillway {

struct QuantumInterval {
  uint16_t begin;
  uint16_t end;
  uint32_t quanta() const { return static_cast<uint32_t>(end - begin); }
};

class QuantumSet {
 public:
  uint32_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  const QuantumInterval* begin() const { return data(); }
  const QuantumInterval* end() const { return data() + count_; }

  uint32_t prefix() const { return count_ > 0 && data()[0].begin == 0 ? data()[0].end : 0; }
  uint32_t suffix() const {
    if (count_ == 0) return 0;
    const QuantumInterval last = data()[count_ - 1];
    return last.end == kPageQuanta ? last.quanta() : 0;
  }
  // The largest interval that touches neither end of the page; {0, 0} if there is none.
  QuantumInterval largest_middle() const {
    QuantumInterval best{0, 0};
    for (const QuantumInterval& interval : *this) {
      if (interval.begin != 0 && interval.end != kPageQuanta && interval.quanta() > best.quanta())
        best = interval;
    }
    return best;
  }
  uint32_t total_quanta() const {
    uint32_t total = 0;
    for (const QuantumInterval& interval : *this) total += interval.quanta();
    return total;
  }

  bool contains(uint32_t first, uint32_t last) const {
    for (const QuantumInterval& interval : *this) {
      if (last <= interval.end) return first >= interval.begin;
    }
    return false;
  }

  // Takes [first, last) out; the caller knows that the set contains it.
  void take(uint32_t first, uint32_t last) {
    QuantumInterval* items = data();
    uint32_t at = 0;
    while (items[at].end < last) ++at;
    assert(at < count_ && items[at].begin <= first);
    const bool at_begin = items[at].begin == first;
    const bool at_end = items[at].end == last;
    if (at_begin && at_end) {
      erase(at);
    } else if (at_begin) {
      items[at].begin = static_cast<uint16_t>(last);
    } else if (at_end) {
      items[at].end = static_cast<uint16_t>(first);
    } else {
      const uint16_t old_end = items[at].end;
      items[at].end = static_cast<uint16_t>(first);
      insert(at + 1, {static_cast<uint16_t>(last), old_end});
    }
  }

  // Puts [first, last) in; the caller knows that no quantum of it is in the set.
  void give(uint32_t first, uint32_t last) {
    QuantumInterval* items = data();
    uint32_t at = 0;
    while (at < count_ && items[at].end < first) ++at;
    const bool joins_left = at < count_ && items[at].end == first;
    const uint32_t right = joins_left ? at + 1 : at;
    const bool joins_right = right < count_ && items[right].begin == last;
    if (joins_left && joins_right) {
      items[at].end = items[right].end;
      erase(right);
    } else if (joins_left) {
      items[at].end = static_cast<uint16_t>(last);
    } else if (joins_right) {
      items[right].begin = static_cast<uint16_t>(first);
    } else {
      insert(at, {static_cast<uint16_t>(first), static_cast<uint16_t>(last)});
    }
  }

  // Makes an empty set everything outside [first, last).
  void fill_outside(uint32_t first, uint32_t last) {
    QuantumInterval* items = data();
    if (first > 0) items[count_++] = {0, static_cast<uint16_t>(first)};
    if (last < kPageQuanta) items[count_++] = {static_cast<uint16_t>(last), kPageQuanta};
  }
  // Tells whether the set together with [first, last) is the whole page.
  bool is_all_outside(uint32_t first, uint32_t last) const {
    const QuantumInterval* items = data();
    const uint32_t before = first > 0;
    const uint32_t after = last < kPageQuanta;
    if (count_ != before + after) return false;
    if (before != 0 && (items[0].begin != 0 || items[0].end != first)) return false;
    return after == 0 || (items[before].begin == last && items[before].end == kPageQuanta);
  }
  void clear() { count_ = 0; }

  void reset() {
    if (capacity_ != 0) std::free(spilled_);
    count_ = 0;
    capacity_ = 0;
  }

 private:
  static constexpr uint16_t kInline = 4;

  QuantumInterval* data() { return capacity_ == 0 ? inline_ : spilled_; }
  const QuantumInterval* data() const { return capacity_ == 0 ? inline_ : spilled_; }

  void erase(uint32_t at) {
    QuantumInterval* items = data();
    std::memmove(items + at, items + at + 1, (count_ - at - 1) * sizeof(QuantumInterval));
    --count_;
  }
  void insert(uint32_t at, QuantumInterval interval) {
    if (count_ == (capacity_ == 0 ? kInline : capacity_)) grow();
    QuantumInterval* items = data();
    std::memmove(items + at + 1, items + at, (count_ - at) * sizeof(QuantumInterval));
    items[at] = interval;
    ++count_;
  }
  void grow() {
    const uint16_t bigger = static_cast<uint16_t>(capacity_ == 0 ? 4 * kInline : 2 * capacity_);
    auto* memory = static_cast<QuantumInterval*>(std::malloc(bigger * sizeof(QuantumInterval)));
    if (memory == nullptr) throw std::bad_alloc();
    std::memcpy(memory, data(), count_ * sizeof(QuantumInterval));
    if (capacity_ != 0) std::free(spilled_);
    spilled_ = memory;
    capacity_ = bigger;
  }

  union {
    QuantumInterval inline_[kInline];
    QuantumInterval* spilled_;
  };
  uint16_t count_;
  uint16_t capacity_;  // 0: the intervals are inline
};

}  // namespace spillway
