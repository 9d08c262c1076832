// Makes bytes as models have them, to be packed.
#pragma once

#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

namespace spillway::test {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Makes numbers of a normal distribution in bfloat16, as weights are.
inline Bytes weights(size_t size) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.02f);
  Bytes bytes(size);
  for (size_t at = 0; at + 2 <= size; at += 2) {
    const float value = normal(random);
    std::byte number[4];
    std::memcpy(number, &value, 4);
    std::memcpy(&bytes[at], number + 2, 2);
  }
  return bytes;
}

}  // namespace spillway::test
