// A fixed number of bits, one for each page id, with the range operations the heap needs. The words come from
// an anonymous mapping, so a bitmap for the largest device costs memory only where it is used. Not
// thread-safe.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <new>

#include "allocator/units.h"

namespace spillway {

class Bitmap {
 public:
  explicit Bitmap(uint32_t bits) : words_count_((bits + 63) / 64 + 1) {
    void* memory = mmap(nullptr, words_count_ * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    words_ = static_cast<uint64_t*>(memory);
  }
  ~Bitmap() { munmap(words_, words_count_ * sizeof(uint64_t)); }
  Bitmap(const Bitmap&) = delete;
  Bitmap& operator=(const Bitmap&) = delete;

  bool test(PageId bit) const { return (words_[bit / 64] >> (bit % 64)) & 1; }

  void set(PageId bit) {
    words_[bit / 64] |= uint64_t{1} << (bit % 64);
    end_ = std::max(end_, bit + 1);
  }
  void clear(PageId bit) { words_[bit / 64] &= ~(uint64_t{1} << (bit % 64)); }

  bool all_set(PageId first, uint32_t count) const {
    return for_each_word(first, count,
                         [this](uint32_t word, uint64_t mask) { return (words_[word] & mask) == mask; });
  }
  void set(PageId first, uint32_t count) {
    for_each_word(first, count, [this](uint32_t word, uint64_t mask) { return words_[word] |= mask, true; });
    end_ = std::max(end_, first + count);
  }
  void clear(PageId first, uint32_t count) {
    for_each_word(first, count, [this](uint32_t word, uint64_t mask) { return words_[word] &= ~mask, true; });
  }

  // The first set bit at or after `from`, or end().
  PageId next_set(PageId from) const {
    for (uint32_t word = from / 64; word * 64 < end_; ++word) {
      uint64_t bits = words_[word];
      if (word == from / 64) bits &= ~uint64_t{0} << (from % 64);
      if (bits != 0) return word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
    }
    return end_;
  }
  // The first clear bit at or after `from`; at most end().
  PageId next_clear(PageId from) const {
    for (uint32_t word = from / 64; word * 64 < end_; ++word) {
      uint64_t bits = ~words_[word];
      if (word == from / 64) bits &= ~uint64_t{0} << (from % 64);
      if (bits != 0) return std::min(end_, word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
    }
    return end_;
  }
  // One past the highest bit ever set.
  PageId end() const { return end_; }

 private:
  // Calls `visit(word, mask)` for the words of [first, first + count) while it answers true; false if it
  // stopped.
  template <typename Visit>
  static bool for_each_word(PageId first, uint32_t count, Visit visit) {
    uint32_t word = first / 64;
    uint32_t shift = first % 64;
    while (count > 0) {
      const uint32_t in_word = std::min(count, 64 - shift);
      const uint64_t mask = (in_word == 64 ? ~uint64_t{0} : (uint64_t{1} << in_word) - 1) << shift;
      if (!visit(word, mask)) return false;
      count -= in_word;
      shift = 0;
      ++word;
    }
    return true;
  }

  uint64_t* words_ = nullptr;
  size_t words_count_;
  PageId end_ = 0;
};

}  // namespace spillway
