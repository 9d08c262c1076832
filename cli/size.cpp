#include "cli/size.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace spillway {

namespace {

constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};

std::optional<int> shift_of(std::string_view unit) {
  if (unit.empty()) return 0;
  for (int i = 0; i < 5; ++i) {
    if (unit == kUnits[i] || (i > 0 && unit == kUnits[i].substr(0, 1))) return 10 * i;
  }
  return std::nullopt;
}

}  // namespace

std::optional<uint64_t> parse_size(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (code != std::errc() || !std::isfinite(number)) return std::nullopt;
  const auto shift = shift_of(std::string_view(rest, static_cast<size_t>(end - rest)));
  if (!shift) return std::nullopt;
  const double bytes = std::ldexp(number, *shift);
  if (!(bytes >= 1) || bytes > std::ldexp(1.0, 60)) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

std::string format_size(uint64_t bytes) {
  int unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.3f} {}", value, kUnits[unit]);
}

int64_t whole(double bytes) {
  return static_cast<int64_t>(std::llround(bytes));
}

}  // namespace spillway
