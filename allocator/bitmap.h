// A fixed number of bits, one for each page id, with the range operations the heap needs. The words come from
// an anonymous mapping, so a bitmap for the largest device costs memory only where it is used. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <new>

#include "allocator/units.h"
#include "allocator/zeroed_array.h"

namespace spillway {

class Bitmap {
 public:
  explicit Bitmap(uint32_t bits) : words_((bits + 63) / 64 + 1) {
    if (words_.empty()) throw std::bad_alloc();
  }
  Bitmap(const Bitmap&) = delete;
  Bitmap& operator=(const Bitmap&) = delete;

  bool test(PageId bit) const { return (words_[bit / 64] >> (bit % 64)) & 1; }

  void set(PageId bit) {
    words_[bit / 64] |= uint64_t{1} << (bit % 64);
    end_ = std::max(end_, bit + 1);
  }
  void clear(PageId bit) { words_[bit / 64] &= ~(uint64_t{1} << (bit % 64)); }

  bool all_set(PageId first, uint32_t count) const {
    const Span span(first, count);
    if (span.first_word == span.last_word)
      return (words_[span.first_word] & span.first_mask) == span.first_mask;
    uint64_t all = (words_[span.first_word] | ~span.first_mask) & (words_[span.last_word] | ~span.last_mask);
    for (uint32_t word = span.first_word + 1; word < span.last_word; ++word) all &= words_[word];
    return all == ~uint64_t{0};
  }
  void set(PageId first, uint32_t count) {
    const Span span(first, count);
    words_[span.first_word] |= span.first_mask;
    if (span.first_word != span.last_word) {
      for (uint32_t word = span.first_word + 1; word < span.last_word; ++word) words_[word] = ~uint64_t{0};
      words_[span.last_word] |= span.last_mask;
    }
    end_ = std::max(end_, first + count);
  }
  void clear(PageId first, uint32_t count) {
    const Span span(first, count);
    words_[span.first_word] &= ~span.first_mask;
    if (span.first_word != span.last_word) {
      for (uint32_t word = span.first_word + 1; word < span.last_word; ++word) words_[word] = 0;
      words_[span.last_word] &= ~span.last_mask;
    }
  }

  // Clears the bits if all of them are set, in one pass; otherwise leaves all as they were.
  bool clear_if_all_set(PageId first, uint32_t count) {
    const Span span(first, count);
    uint64_t& first_word = words_[span.first_word];
    if ((first_word & span.first_mask) != span.first_mask) return false;
    if (span.first_word != span.last_word) {
      if ((words_[span.last_word] & span.last_mask) != span.last_mask) return false;
      for (uint32_t word = span.first_word + 1; word < span.last_word; ++word) {
        if (words_[word] != ~uint64_t{0}) {
          while (--word > span.first_word) words_[word] = ~uint64_t{0};
          return false;
        }
        words_[word] = 0;
      }
      words_[span.last_word] &= ~span.last_mask;
    }
    first_word &= ~span.first_mask;
    return true;
  }

  // The first set bit at or after `from`, or end().
  PageId next_set(PageId from) const { return next(from, 0); }
  // The first clear bit at or after `from`; at most end().
  PageId next_clear(PageId from) const { return next(from, ~uint64_t{0}); }
  // The first clear bit at or after `from`, at most end(); `from` itself where that is beyond the end.
  PageId next_clear_within(PageId from) const { return from < end_ ? next_clear(from) : from; }
  // The first of the set bits in a row of which `bit` is one.
  PageId run_begin(PageId bit) const {
    uint32_t word = bit / 64;
    uint64_t clear = ~words_[word] & (~uint64_t{0} >> (63 - bit % 64));
    while (clear == 0 && word > 0) clear = ~words_[--word];
    return clear == 0 ? 0 : word * 64 + 64 - static_cast<uint32_t>(std::countl_zero(clear));
  }
  // 64 bits, the lowest of which is bit 64 * `index`.
  uint64_t word(uint32_t index) const { return words_[index]; }
  // One past the highest bit ever set.
  PageId end() const { return end_; }

 private:
  // The first bit at or after `from` that is set where the words are flipped by `flip`; at most end().
  PageId next(PageId from, uint64_t flip) const {
    if (from >= end_) return end_;
    uint32_t word = from / 64;
    const uint32_t last = (end_ - 1) / 64;
    uint64_t bits = (words_[word] ^ flip) & (~uint64_t{0} << (from % 64));
    while (bits == 0) {
      if (word == last) return end_;
      bits = words_[++word] ^ flip;
    }
    return std::min(end_, word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
  }

  // The words of [first, first + count), count > 0, and which bits of the first and the last belong to it.
  struct Span {
    Span(PageId first, uint32_t count)
        : first_word(first / 64),
          last_word((first + count - 1) / 64),
          first_mask(~uint64_t{0} << (first % 64)),
          last_mask(~uint64_t{0} >> (63 - (first + count - 1) % 64)) {
      if (first_word == last_word) first_mask &= last_mask;
    }
    uint32_t first_word;
    uint32_t last_word;
    uint64_t first_mask;
    uint64_t last_mask;
  };

  ZeroedArray<uint64_t> words_;
  PageId end_ = 0;
};

}  // namespace spillway
