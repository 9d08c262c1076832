// Seconds, in which people and Prometheus are told what is counted in nanoseconds.
#pragma once

#include <cstdint>

namespace spillway {

inline double seconds(int64_t ns) {
  constexpr double kNsPerSecond = 1e9;
  return static_cast<double>(ns) / kNsPerSecond;
}

}  // namespace spillway
