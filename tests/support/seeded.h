// Seeded numbers for tests: the same ones in every run and with every standard library.
#pragma once

#include <cstdint>

namespace spillway::test {

// The high bits of a linear congruential generator.
struct Random {
  uint32_t state;
  explicit Random(uint32_t seed) : state(seed * 2654435761u + 1) {}
  uint32_t operator()() {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
  }
};

}  // namespace spillway::test
