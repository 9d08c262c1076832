// Addresses are numbers to the device and pointers to the host; here they are the same.
#pragma once

#include <bit>
#include <cstdint>

namespace spillway::sim {

inline char* pointer_to(uint64_t address) {
  return std::bit_cast<char*>(address);
}

}  // namespace spillway::sim
