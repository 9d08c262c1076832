// Size classes of small requests. Up to 4 KiB every multiple of 512 B is a class; above, a slab of 64 KiB is
// divided into n equal slots, each rounded down to 512 B; a slab's unused tail is at most 1/16 of it.
// Requests above the last class are large: best fit at 512 B wastes less than any class would.
#pragma once

#include <array>
#include <cstdint>

#include "allocator/units.h"

namespace spillway {

constexpr std::array<uint32_t, 18> kClassBytes = {512,  1024, 1536, 2048, 2560, 3072, 3584,  4096,  4608,
                                                  5120, 5632, 6144, 7168, 8192, 9216, 10752, 12800, 16384};
constexpr uint32_t kClassCount = kClassBytes.size();
constexpr uint64_t kLargestSmallBytes = kClassBytes.back();
constexpr uint32_t kMostSlots = kSlabBytes / kQuantumBytes;

// The class that serves each number of quanta.
constexpr auto kClassOfQuanta = [] {
  std::array<uint8_t, kLargestSmallBytes / kQuantumBytes + 1> table{};
  uint8_t size_class = 0;
  for (uint32_t quanta = 0; quanta < table.size(); ++quanta) {
    while (kClassBytes[size_class] < quanta * kQuantumBytes) ++size_class;
    table[quanta] = size_class;
  }
  return table;
}();

constexpr uint32_t slots_of_class(uint32_t size_class) {
  return static_cast<uint32_t>(kSlabBytes) / kClassBytes[size_class];
}

constexpr bool classes_are_valid() {
  for (uint32_t i = 0; i < kClassCount; ++i) {
    if (kClassBytes[i] % kQuantumBytes != 0) return false;
    if (i > 0 && kClassBytes[i] <= kClassBytes[i - 1]) return false;
    const uint64_t tail = kSlabBytes - uint64_t{slots_of_class(i)} * kClassBytes[i];
    if (tail * 16 > kSlabBytes) return false;
  }
  return true;
}
static_assert(classes_are_valid());

}  // namespace spillway
