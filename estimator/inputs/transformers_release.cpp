#include "estimator/inputs/transformers_release.h"

#include <charconv>

namespace spillway::estimator {

int transformers_release(KeyValues& values, const std::string& prefix) {
  constexpr int kUsual = 457, kMost = 99;
  const std::string text = values.text(prefix + "transformers_version", "");
  int first = 0, second = 0;
  const char* const end = text.data() + text.size();
  const auto [dot, error] = std::from_chars(text.data(), end, first);
  if (error != std::errc() || first < 1 || first > kMost) return kUsual;
  if (dot != end && *dot == '.') std::from_chars(dot + 1, end, second);
  return first * 100 + (second < 0 || second > kMost ? kMost : second);
}

}  // namespace spillway::estimator
