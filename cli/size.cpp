#include "cli/size.h"

#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace spillway {

namespace {

constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};

}  // namespace

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
