#include "estimator/inputs/transformers_release.h"

#include <charconv>

namespace spillway::estimator {

int transformers_release(const std::string& text) {
  constexpr int kUsual = 457, kMost = 99;
  int first = 0, second = 0;
  const char* const end = text.data() + text.size();
  const auto [dot, error] = std::from_chars(text.data(), end, first);
  if (error != std::errc() || first < 1 || first > kMost) return kUsual;
  if (dot == end || *dot != '.') return first * 100;
  const auto [rest, overflow] = std::from_chars(dot + 1, end, second);
  const bool is_large = overflow == std::errc::result_out_of_range || second > kMost;
  return first * 100 + (is_large ? kMost : second < 0 ? 0 : second);
}

int transformers_release(KeyValues& values, const std::string& prefix) {
  return transformers_release(values.text(prefix + "transformers_version", ""));
}

}  // namespace spillway::estimator
