#include "cli/size.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace spillway {

namespace {

constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
constexpr std::string_view kDecimalUnits[] = {"B", "KB", "MB", "GB", "TB"};

bool is_same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// Bytes in one of them; 0: it is no unit.
double unit_bytes(std::string_view unit) {
  if (unit.empty()) return 1;
  for (int i = 0; i < 5; ++i) {
    if (is_same_word(unit, kUnits[i]) || (i > 0 && is_same_word(unit, kUnits[i].substr(0, 1))))
      return std::ldexp(1.0, 10 * i);
    if (is_same_word(unit, kDecimalUnits[i])) return std::pow(1000.0, i);
  }
  return 0;
}

}  // namespace

std::optional<uint64_t> parse_size(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (code != std::errc() || !std::isfinite(number)) return std::nullopt;
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  if (unit.size() > 1 && unit.front() == ' ') unit.remove_prefix(1);
  const double bytes = number * unit_bytes(unit);
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

std::string grouped(uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string format_bound(uint64_t bytes) {
  std::string out = format_size(bytes);
  if (const size_t zeros = out.find(".000 "); zeros != std::string::npos) out.erase(zeros, 4);
  return out;
}

int64_t whole(double bytes) {
  return static_cast<int64_t>(std::llround(bytes));
}

}  // namespace spillway
