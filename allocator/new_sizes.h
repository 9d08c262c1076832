// Tells whether a program asks for ever new sizes, as one that draws them at random does, long before the
// sequence of its requests could tell that nothing repeats.
//
// Guarded by the heap's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace spillway {

class NewSizes {
 public:
  // A request for so many quanta that was not served where one was before.
  void note(uint32_t quanta) {
    uint32_t& seen = seen_[slot(quanta)];
    const bool is_new = seen != quanta;
    seen = quanta;
    count_ += static_cast<uint32_t>(is_new) - static_cast<uint32_t>(latest_ >> (kWindow - 1));
    latest_ = latest_ << 1 | static_cast<uint64_t>(is_new);
  }
  // Tells whether three quarters of the last 64 were for sizes that had not been noted before, as far as a
  // thousand sizes are remembered. In recorded programs that repeat themselves it is at most 34 of them,
  // where a mixture of experts routes at random (docs/decisions/unrepeated.md).
  bool are_many() const { return count_ >= kMany; }
  // Begins to count anew. The sizes stay known.
  void forget() { latest_ = count_ = 0; }

 private:
  static constexpr uint32_t kWindow = 64;
  static constexpr uint32_t kMany = kWindow * 3 / 4;
  static constexpr int kSlotBits = 10;

  static size_t slot(uint32_t quanta) { return (quanta * 0x9E3779B1u) >> (32 - kSlotBits); }

  std::array<uint32_t, size_t{1} << kSlotBits> seen_{};  // the last of each hash
  uint64_t latest_ = 0;                                  // a bit each, the last one lowest: it was new
  uint32_t count_ = 0;                                   // of those
};

}  // namespace spillway
