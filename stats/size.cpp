#include "stats/size.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace spillway {
namespace {

constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
constexpr std::string_view kDecimalUnits[] = {"B", "KB", "MB", "GB", "TB"};

bool is_same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::optional<double> unit_bytes(std::string_view unit) {
  if (unit.empty()) return 1;
  for (int i = 0; i < 5; ++i) {
    if (is_same_word(unit, kUnits[i]) || (i > 0 && is_same_word(unit, kUnits[i].substr(0, 1))))
      return std::ldexp(1.0, 10 * i);
    if (is_same_word(unit, kDecimalUnits[i])) return std::pow(1000.0, i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> parse_bytes(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (code != std::errc() || !std::isfinite(number) || std::signbit(number)) return std::nullopt;
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  if (unit.size() > 1 && unit.front() == ' ') unit.remove_prefix(1);
  const std::optional<double> scale = unit_bytes(unit);
  return scale ? std::optional(number * *scale) : std::nullopt;
}

std::optional<uint64_t> parse_size(std::string_view text) {
  const std::optional<double> bytes = parse_bytes(text);
  if (!bytes || *bytes < 1 || *bytes > std::ldexp(1.0, 60)) return std::nullopt;
  return static_cast<uint64_t>(*bytes);
}

}  // namespace spillway
