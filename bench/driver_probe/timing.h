// Host time of single calls. Medians: one call in a thousand is interrupted, and a mean would tell of that
// one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace spillway::probe {

template <typename Call>
uint64_t time_ns(Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count());
}

inline uint64_t median(std::vector<uint64_t> times) {
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

template <typename Call>
uint64_t median_ns(int repeats, Call&& call) {
  std::vector<uint64_t> times;
  for (int i = 0; i < repeats; ++i) times.push_back(time_ns(call));
  return median(std::move(times));
}

}  // namespace spillway::probe
