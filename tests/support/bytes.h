// Bytes of host memory, looked at by calls that sanitizers count once: a loop over them costs a minute.
#pragma once

#include <cstddef>
#include <cstring>

namespace spillway::test {

// Tells whether every byte is `value`.
inline bool holds_only(const void* memory, size_t bytes, unsigned char value) {
  const auto* first = static_cast<const unsigned char*>(memory);
  return bytes == 0 || (*first == value && std::memcmp(first, first + 1, bytes - 1) == 0);
}

}  // namespace spillway::test
